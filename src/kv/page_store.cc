#include "kv/page_store.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/recovery.h"
#include "io/mapped_file.h"

namespace levin {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSuffix = ".page";
constexpr size_t kNameDigits = 2 * std::tuple_size_v<Digest>;
constexpr size_t kFolderDigits = 16;
constexpr uint32_t kVersion = 2;

// What a file begins with; tokens, state, rows and the checksum follow.
struct Header {
  std::array<char, 8> magic = {'L', 'E', 'V', 'I', 'N', 'P', 'G', '\n'};
  uint32_t version = kVersion;
  uint32_t n_tokens = 0;
  uint64_t n_state = 0;
  uint64_t n_row_bytes = 0;
  Digest fingerprint = {};
  BlockKey before = {};
};
static_assert(sizeof(Header) == 96 && std::is_trivially_copyable_v<Header>);

bool is_hex(std::string_view text) { return text.find_first_not_of("0123456789abcdef") == std::string_view::npos; }

bool is_page_name(std::string_view name) {
  return name.size() == kNameDigits + kSuffix.size() && name.ends_with(kSuffix) && is_hex(name.substr(0, kNameDigits));
}

BlockKey key_of_name(std::string_view name) {
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  BlockKey key;
  for (size_t i = 0; i < key.size(); ++i)
    key[i] = static_cast<std::byte>(digit(name[2 * i]) << 4 | digit(name[2 * i + 1]));
  return key;
}

// Left by a process that died while writing.
bool is_left_over(std::string_view name) {
  return name.size() > kNameDigits && is_hex(name.substr(0, kNameDigits)) && name.find(".page.tmp-") == kNameDigits;
}

// The whole file into `out`; false if it cannot be had or is longer than `out`, which is cut to what was read.
bool read_whole(const fs::path& path, std::vector<std::byte>& out) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return false;
  size_t n = 0;
  ssize_t n_read = 0;
  while (n < out.size() && (n_read = ::read(fd, out.data() + n, out.size() - n)) != 0) {
    if (n_read < 0 && errno != EINTR) break;
    if (n_read > 0) n += static_cast<size_t>(n_read);
  }
  ::close(fd);
  const bool fits = n < out.size();
  out.resize(n);
  return fits;
}

Error folder_error(const fs::path& folder, const std::string& why) {
  return {ErrorKind::kUsage, fmt::format("--cache-dir {}: {}", folder.string(), why)};
}

}  // namespace

struct PageStore::Found {
  File file;
  struct timespec used = {};
};

PageStore::PageStore(PageStoreOptions options)
    : options_(std::move(options)), own_folder_(options_.folder / hex(options_.fingerprint).substr(0, kFolderDigits)) {}

Result<std::unique_ptr<PageStore>> PageStore::open(const PageStoreOptions& options) {
  std::unique_ptr<PageStore> store(new PageStore(options));
  if (store->file_bytes() > options.max_bytes) {
    return Error{
        ErrorKind::kUsage,
        fmt::format("--cache-dir-size of {} bytes is too small for a page of this model, which has {}; raise it",
                    options.max_bytes, store->file_bytes())};
  }
  std::error_code failed;
  fs::create_directories(store->own_folder_, failed);
  if (failed) return folder_error(options.folder, fmt::format("cannot be made: {}", failed.message()));
  fs::permissions(store->own_folder_, fs::perms::owner_all, failed);  // what users wrote can be had from its files
  LEVIN_TRY(store->lock());
  LEVIN_TRY(store->scan());
  store->thread_ = std::thread([s = store.get()] { s->work(); });
  return store;
}

PageStore::~PageStore() {
  if (thread_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  if (lock_ >= 0) ::close(lock_);
}

Status PageStore::lock() {
  const fs::path path = options_.folder / "lock";
  lock_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (lock_ < 0) return folder_error(options_.folder, fmt::format("cannot be written: {}", std::strerror(errno)));
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    return folder_error(options_.folder, "another process uses it; give each server a folder of its own");
  }
  return {};
}

// ---- what is there -----------------------------------------------------------------------------------------------

Status PageStore::scan() {
  std::vector<Found> found;
  std::error_code failed;
  for (const fs::directory_entry& entry : fs::directory_iterator(options_.folder, failed)) {
    const std::string name = entry.path().filename().string();
    std::error_code ignored;
    if (name.size() == kFolderDigits && is_hex(name) && entry.is_directory(ignored)) scan_folder(entry.path(), found);
  }
  if (failed) return folder_error(options_.folder, fmt::format("cannot be read: {}", failed.message()));
  std::stable_sort(found.begin(), found.end(), [](const Found& a, const Found& b) {
    return std::pair(a.used.tv_sec, a.used.tv_nsec) < std::pair(b.used.tv_sec, b.used.tv_nsec);
  });
  for (Found& f : found) {
    counts_.n_bytes += f.file.n_bytes;
    const Files::iterator file = files_.insert(files_.end(), std::move(f.file));
    if (!file->own) continue;
    by_key_.emplace(file->key, file);
    ++counts_.n_pages;
  }
  stay_within_budget();
  return {};
}

void PageStore::scan_folder(const fs::path& folder, std::vector<Found>& found) {
  int64_t n_strange = 0, n_cut = 0;
  std::string strange;
  std::error_code failed;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, failed)) {
    const std::string name = entry.path().filename().string();
    std::error_code ignored;
    if (is_left_over(name)) {
      fs::remove(entry.path(), ignored);
      continue;
    }
    struct stat info = {};
    if (!is_page_name(name) || ::lstat(entry.path().c_str(), &info) != 0 || !S_ISREG(info.st_mode)) {
      if (n_strange++ == 0) strange = name;
      continue;
    }
    const bool own = folder == own_folder_;
    if (own && info.st_size != file_bytes()) {
      ++n_cut;
      fs::remove(entry.path(), ignored);
      continue;
    }
    found.push_back({.file = {.path = entry.path(),
                              .n_bytes = static_cast<int64_t>(info.st_size),
                              .written = true,
                              .key = own ? key_of_name(name) : BlockKey{},
                              .own = own},
                     .used = info.st_mtim});
  }
  if (n_strange > 0) {
    note(fmt::format("cache folder {}: {} files are not cache pages and are ignored, \"{}\" the first", folder.string(),
                     n_strange, strange));
  }
  if (n_cut > 0) {
    counts_.n_refused += n_cut;
    note(fmt::format("cache folder {}: {} pages had the wrong length and are removed", folder.string(), n_cut));
  }
}

fs::path PageStore::path_of(const BlockKey& key) const { return own_folder_ / (hex(key) + std::string(kSuffix)); }

bool PageStore::has(const BlockKey& key) const {
  const std::lock_guard lock(mutex_);
  const auto found = by_key_.find(key);
  return found != by_key_.end() && found->second->written;
}

bool PageStore::wants(const BlockKey& key, const BlockKey& before) {
  const std::lock_guard lock(mutex_);
  if (by_key_.contains(key)) return false;
  const bool follows = before == first_key() || by_key_.contains(before);
  const bool has_room = n_waiting_bytes_ == 0 || n_waiting_bytes_ + file_bytes() <= options_.max_queued_bytes;
  if (!follows || !has_room) ++counts_.n_dropped;
  return follows && has_room;
}

PageStoreCounts PageStore::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void PageStore::use(std::span<const BlockKey> path) {
  const std::lock_guard lock(mutex_);
  for (size_t i = path.size(); i-- > 0;) {
    const auto found = by_key_.find(path[i]);
    if (found == by_key_.end()) continue;
    found->second->used = times_stale_ = true;
    files_.splice(files_.end(), files_, found->second);
  }
}

// With mutex_ held: the file is gone, or is to be.
void PageStore::forget(Files::iterator file) {
  counts_.n_bytes -= file->written ? file->n_bytes : 0;
  if (file->own) {
    --counts_.n_pages;
    by_key_.erase(file->key);
  }
  files_.erase(file);
}

// ---- the format --------------------------------------------------------------------------------------------------

int64_t PageStore::file_bytes() const {
  return static_cast<int64_t>(sizeof(Header) + sizeof(uint64_t)) + 4 * (options_.n_tokens + options_.n_state) +
         options_.n_row_bytes;
}

std::string PageStore::encode(const BlockPlace& place, const BlockRecord& record) const {
  LEVIN_CHECK(std::ssize(place.tokens) == options_.n_tokens && std::ssize(record.state) == options_.n_state &&
                  std::ssize(record.rows) == options_.n_row_bytes,
              "a page of {} tokens, {} state and {} bytes for a store of {}, {} and {}", place.tokens.size(),
              record.state.size(), record.rows.size(), options_.n_tokens, options_.n_state, options_.n_row_bytes);
  Header header;
  header.n_tokens = static_cast<uint32_t>(options_.n_tokens);
  header.n_state = static_cast<uint64_t>(options_.n_state);
  header.n_row_bytes = static_cast<uint64_t>(options_.n_row_bytes);
  header.fingerprint = options_.fingerprint;
  header.before = place.before;
  std::string out;
  out.reserve(static_cast<size_t>(file_bytes()));
  const auto append = [&](const void* bytes, size_t n) { out.append(static_cast<const char*>(bytes), n); };
  append(&header, sizeof(header));
  append(place.tokens.data(), place.tokens.size_bytes());
  append(record.state.data(), record.state.size() * sizeof(float));
  append(record.rows.data(), record.rows.size());
  const uint64_t sum = checksum64(std::as_bytes(std::span(out)));
  append(&sum, sizeof(sum));
  return out;
}

// Why a file is not the page that is looked for; empty if it is.
std::string PageStore::refusal_of(std::span<const std::byte> file, const BlockPlace& place) const {
  if (std::ssize(file) != file_bytes()) return fmt::format("it has {} bytes instead of {}", file.size(), file_bytes());
  Header header;
  std::memcpy(&header, file.data(), sizeof(header));
  const Header wanted;
  if (header.magic != wanted.magic) return "it does not begin as one";
  if (header.version != wanted.version) return fmt::format("its format is version {}", header.version);
  uint64_t sum = 0;
  const size_t n_summed = file.size() - sizeof(sum);
  std::memcpy(&sum, file.data() + n_summed, sizeof(sum));
  if (sum != checksum64(file.first(n_summed))) return "its checksum is wrong";
  if (header.fingerprint != options_.fingerprint || header.n_tokens != options_.n_tokens ||
      header.n_state != static_cast<uint64_t>(options_.n_state) ||
      header.n_row_bytes != static_cast<uint64_t>(options_.n_row_bytes)) {
    return "it is of another model";
  }
  const bool same_tokens =
      std::memcmp(file.data() + sizeof(header), place.tokens.data(), place.tokens.size_bytes()) == 0;
  if (header.before != place.before || !same_tokens) return "it has other tokens";
  return {};
}

std::optional<BlockRecord> PageStore::read(const BlockKey& key, const BlockPlace& place) {
  if (!has(key)) return std::nullopt;
  const fs::path path = path_of(key);
  read_buffer_.resize(static_cast<size_t>(file_bytes()) + 1);
  const bool fits = read_whole(path, read_buffer_);
  const std::string refusal = fits ? refusal_of(read_buffer_, place) : "it cannot be read";
  const std::lock_guard lock(mutex_);
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return std::nullopt;  // removed meanwhile
  if (!refusal.empty()) {
    note(fmt::format("cache page {} is ignored and removed: {}", path.string(), refusal));
    ++counts_.n_refused;
    std::error_code ignored;
    fs::remove(path, ignored);
    forget(found->second);
    return std::nullopt;
  }
  BlockRecord record;
  const std::byte* state = read_buffer_.data() + sizeof(Header) + place.tokens.size_bytes();
  record.state.resize(static_cast<size_t>(options_.n_state));
  std::memcpy(record.state.data(), state, record.state.size() * sizeof(float));
  const std::byte* rows = state + record.state.size() * sizeof(float);
  record.rows.assign(rows, rows + options_.n_row_bytes);
  ++counts_.n_read;
  return record;
}

// ---- writing -----------------------------------------------------------------------------------------------------

// What is thrown costs a page: it serves later requests alone.
template <class Work>
void PageStore::guarded(const Work& work) {
  try {
    const Recovery recovery;
    work();
  } catch (const std::exception& thrown) {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(failing_, true)) note(fmt::format("cache pages are not stored: {}", thrown.what()));
  }
}

void PageStore::write(const BlockKey& key, const BlockPlace& place, const BlockRecord& record) {
  guarded([&] { enqueue(key, place, record); });
}

void PageStore::enqueue(const BlockKey& key, const BlockPlace& place, const BlockRecord& record) {
  Waiting waiting{.key = key, .path = path_of(key), .bytes = encode(place, record)};
  {
    const std::lock_guard lock(mutex_);
    LEVIN_CHECK(!by_key_.contains(key), "page {} is written twice", hex(key));
    n_waiting_bytes_ += std::ssize(waiting.bytes);
    const Files::iterator file = files_.insert(
        files_.end(), {.path = waiting.path, .n_bytes = std::ssize(waiting.bytes), .key = key, .own = true});
    by_key_.emplace(key, file);
    ++counts_.n_pages;
    waiting_.push_back(std::move(waiting));
  }
  changed_.notify_all();
}

void PageStore::flush() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return waiting_.empty() && !writing_; });
}

void PageStore::work() {
  constexpr auto kTimesInterval = std::chrono::seconds(1);  // at most so often, and only when nothing waits
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait_for(lock, kTimesInterval, [this] { return ending_ || !waiting_.empty(); });
    if (waiting_.empty()) {
      lock.unlock();
      set_times();
      lock.lock();
      if (ending_ && waiting_.empty()) return;
      continue;
    }
    const Waiting next = std::move(waiting_.front());
    waiting_.pop_front();
    writing_ = true;
    lock.unlock();
    guarded([&] {
      write_one(next);
      stay_within_budget();
    });
    lock.lock();
    writing_ = false;
    n_waiting_bytes_ -= std::ssize(next.bytes);
    changed_.notify_all();
  }
}

void PageStore::write_one(const Waiting& waiting) {
  const Status written = io::write_file_atomically(waiting.path, waiting.bytes);
  const std::lock_guard lock(mutex_);
  const auto found = by_key_.find(waiting.key);
  LEVIN_CHECK(found != by_key_.end(), "page {} was forgotten while it was being written", hex(waiting.key));
  if (!written.ok()) {
    if (!std::exchange(failing_, true)) note(fmt::format("cache pages are not stored: {}", written.error().message));
    ++counts_.n_dropped;
    forget(found->second);
    return;
  }
  failing_ = false;
  found->second->written = true;
  counts_.n_bytes += found->second->n_bytes;
  ++counts_.n_written;
}

void PageStore::stay_within_budget() {
  const std::lock_guard lock(mutex_);
  for (Files::iterator at = files_.begin(); at != files_.end() && counts_.n_bytes > options_.max_bytes;) {
    const Files::iterator file = at++;
    if (!file->written) continue;
    std::error_code ignored;
    fs::remove(file->path, ignored);
    ++counts_.n_removed;
    forget(file);
  }
}

// The order of use, for the next process. Times rise by a nanosecond, so that they are told apart.
void PageStore::set_times() {
  std::vector<fs::path> used;
  {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(times_stale_, false)) return;
    for (File& file : files_) {
      if (!file.used || !file.written) continue;
      file.used = false;
      used.push_back(file.path);
    }
  }
  struct timespec now = {};
  ::clock_gettime(CLOCK_REALTIME, &now);
  for (const fs::path& path : used) {
    if (++now.tv_nsec == 1'000'000'000) {
      now.tv_nsec = 0;
      ++now.tv_sec;
    }
    const struct timespec times[2] = {now, now};
    ::utimensat(AT_FDCWD, path.c_str(), times, 0);
  }
}

void PageStore::note(const std::string& line) const {
  if (options_.note) options_.note(line);
}

}  // namespace levin
