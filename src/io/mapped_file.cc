#include "io/mapped_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

namespace levin::io {
namespace {

Error system_error(ErrorKind kind, std::string_view action, const std::filesystem::path& path) {
  const int code = errno;
  if (code == ENOMEM) kind = ErrorKind::kOutOfMemory;  // no fault of the file
  return Error{kind, fmt::format("cannot {} {}: {}", action, path.string(), std::generic_category().message(code))};
}

// An open file that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

std::string_view type_name(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

Error not_a_file(ErrorKind kind, const std::filesystem::path& path, mode_t mode) {
  return Error{kind, fmt::format("cannot read {}: it is {}, expected a file", path.string(), type_name(mode))};
}

// O_NONBLOCK: opening a pipe without a writer must not wait.
int open_to_read(const std::filesystem::path& path, bool wait_for_writer) {
  return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | (wait_for_writer ? 0 : O_NONBLOCK));
}

std::string link_to(int fd) { return fmt::format("/proc/self/fd/{}", fd); }

// A file next to `path` that has no name yet, so that it is gone if this process ends before it gets one. -1 where the file
// system has no such files.
int open_unnamed(const std::filesystem::path& path) {
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  const int fd = ::open(folder.c_str(), O_WRONLY | O_TMPFILE | O_CLOEXEC, 0666);
  if (fd < 0 || ::access(link_to(fd).c_str(), F_OK) == 0) return fd;
  ::close(fd);
  return -1;
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::filesystem::path& path, ErrorKind kind) {
  const Descriptor file(open_to_read(path, false));
  struct stat info = {};
  if (file.get() < 0) return system_error(kind, "open", path);
  if (::fstat(file.get(), &info) != 0) return system_error(kind, "read the size of", path);
  if (!S_ISREG(info.st_mode)) return not_a_file(kind, path, info.st_mode);

  MappedFile mapped;
  mapped.path_ = path;
  const auto n_bytes = static_cast<size_t>(info.st_size);
  if (n_bytes == 0) return mapped;
  void* address = ::mmap(nullptr, n_bytes, PROT_READ, MAP_SHARED, file.get(), 0);
  if (address == MAP_FAILED) return system_error(kind, "map", path);
  mapped.bytes_ = {static_cast<const std::byte*>(address), n_bytes};
  return mapped;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    unmap();
    path_ = std::move(other.path_);
    bytes_ = std::exchange(other.bytes_, {});
  }
  return *this;
}

MappedFile::~MappedFile() { unmap(); }

void MappedFile::unmap() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  bytes_ = {};
}

Result<std::string> read_file(const std::filesystem::path& path, const ReadOptions& options) {
  const Descriptor file(open_to_read(path, options.accept_pipes));
  struct stat info = {};
  if (file.get() < 0) return system_error(options.kind, "open", path);
  if (::fstat(file.get(), &info) != 0) return system_error(options.kind, "read", path);
  const bool readable = S_ISREG(info.st_mode) || (options.accept_pipes && !S_ISDIR(info.st_mode));
  if (!readable) return not_a_file(options.kind, path, info.st_mode);

  std::string content;
  constexpr size_t kPipeChunk = size_t{1} << 16;
  size_t chunk = S_ISREG(info.st_mode) ? static_cast<size_t>(info.st_size) + 1 : kPipeChunk;
  while (true) {
    const size_t n_before = content.size();
    // One byte above the limit is asked for, to notice that the file is longer.
    content.resize(n_before + std::min(chunk - 1, options.max_bytes - n_before) + 1);
    const ssize_t n_read = ::read(file.get(), content.data() + n_before, content.size() - n_before);
    if (n_read < 0 && errno != EINTR) return system_error(options.kind, "read", path);
    content.resize(n_before + static_cast<size_t>(std::max<ssize_t>(n_read, 0)));
    if (content.size() > options.max_bytes) {
      return Error{options.kind, fmt::format("{} is too long: more than {} bytes", path.string(), options.max_bytes)};
    }
    if (n_read == 0) return content;
    chunk = kPipeChunk;
  }
}

Result<AtomicFile> AtomicFile::create(const std::filesystem::path& path) {
  constexpr auto kKind = ErrorKind::kRuntime;
  struct stat info = {};
  if (::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return Error{kKind, fmt::format("cannot write {}: it is {}, name a file", path.string(), type_name(info.st_mode))};
  }
  AtomicFile file;
  file.path_ = path;
  file.fd_ = open_unnamed(path);
  if (file.fd_ >= 0) return file;
  const bool made = file.take_temporary_name([&](const char* name) {
    file.fd_ = ::open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    return file.fd_ >= 0;
  });
  if (!made) return system_error(kKind, "write", path);
  return file;
}

bool AtomicFile::take_temporary_name(const std::function<bool(const char*)>& take) {
  constexpr int kMaxAttempts = 100;  // names left over by crashed processes of the same id
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    temporary_ = path_;
    temporary_ += fmt::format(".tmp-{}-{}", ::getpid(), attempt);
    if (take(temporary_.c_str())) return true;
    if (errno != EEXIST) break;
  }
  temporary_.clear();
  return false;
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)), temporary_(std::move(other.temporary_)), fd_(std::exchange(other.fd_, -1)) {}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

Status AtomicFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n_written = ::write(fd_, bytes.data(), bytes.size());
    if (n_written < 0) {
      if (errno == EINTR) continue;
      return system_error(ErrorKind::kRuntime, "write", path_);
    }
    bytes = bytes.subspan(static_cast<size_t>(n_written));
  }
  return {};
}

Status AtomicFile::write(std::string_view text) { return write(std::as_bytes(std::span(text))); }

Status AtomicFile::commit() {
  if (::fsync(fd_) != 0) return system_error(ErrorKind::kRuntime, "write", path_);
  const bool named = !temporary_.empty() || take_temporary_name([this](const char* name) {
    return ::linkat(AT_FDCWD, link_to(fd_).c_str(), AT_FDCWD, name, AT_SYMLINK_FOLLOW) == 0;
  });
  if (!named) return system_error(ErrorKind::kRuntime, "write", path_);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) return system_error(ErrorKind::kRuntime, "write", path_);
  ::close(std::exchange(fd_, -1));
  return {};
}

Status write_file_atomically(const std::filesystem::path& path, std::string_view content) {
  LEVIN_ASSIGN(AtomicFile file, AtomicFile::create(path));
  LEVIN_TRY(file.write(content));
  return file.commit();
}

Status check_writable(const std::filesystem::path& path) {
  LEVIN_ASSIGN(const AtomicFile uncommitted, AtomicFile::create(path));
  return {};
}

}  // namespace levin::io
