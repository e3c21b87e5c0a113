// How fast a checkpoint comes to where a model runs, against what its disk and the link to the device give.
//
//   bench_load_rate make FROM TO [KEY=VALUE...]   writes a checkpoint of dummies to the folder TO: the model of the folder
//                                                 FROM with other values in its config.json, and its other files as they are
//   bench_load_rate measure FOLDER [cpu|cuda]     loads it with nothing of it in memory, then again with all of it
//
// of 20 GB: bench_load_rate make models/demo-v32 TO hidden_size=2048 intermediate_size=8192 moe_intermediate_size=1408
//           n_routed_experts=128 num_hidden_layers=18
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "arch/load_config.h"
#include "base/thread_pool.h"
#include "engine/engine.h"
#include "io/json.h"
#include "io/mapped_file.h"
#include "io/safetensors.h"
#include "model/tensor_source.h"
#include "model/weight_table.h"
#include "tensor/cuda/device.h"
#include "tensor/cuda/probe.h"

namespace levin {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int64_t kShardBytes = int64_t{1} << 30;
constexpr int64_t kReadBytes = int64_t{8} << 20;

int n_threads() { return static_cast<int>(std::max(1u, std::thread::hardware_concurrency())); }

double gb_per_s(int64_t n_bytes, const std::function<void()>& work) {
  const Clock::time_point start = Clock::now();
  work();
  return static_cast<double>(n_bytes) / std::chrono::duration<double>(Clock::now() - start).count() / 1e9;
}

// ---- make ----

// A shard's tensors, with bytes of their own.
class Shard {
 public:
  Status add(const TensorSource& source, const WeightRow& row) {
    return source.read(row, [this](const io::StoredTensor& tensor, const StoredScales* scales) -> Status {
      keep(tensor);
      if (scales == nullptr) return {};
      if (tensor.dtype == io::StoredDtype::kU8) return Error{ErrorKind::kUsage, "NVFP4 is not written"};
      keep(*scales->of_blocks);
      return {};
    });
  }
  Status write(const fs::path& path) const { return writer_.write(path); }
  const std::vector<std::string>& names() const { return names_; }

 private:
  void keep(const io::StoredTensor& tensor) {
    const auto& bytes =
        bytes_.emplace_back(std::make_unique<std::vector<std::byte>>(tensor.bytes.begin(), tensor.bytes.end()));
    writer_.add({.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape, .bytes = *bytes});
    names_.push_back(tensor.name);
  }

  io::SafetensorsWriter writer_;
  std::vector<std::unique_ptr<std::vector<std::byte>>> bytes_;
  std::vector<std::string> names_;
};

std::vector<std::vector<const WeightRow*>> cut_into_shards(const std::vector<WeightRow>& rows) {
  std::vector<std::vector<const WeightRow*>> shards(1);
  int64_t n_elements_here = 0;
  for (const WeightRow& row : rows) {
    if (n_elements_here >= kShardBytes) {
      shards.emplace_back();
      n_elements_here = 0;
    }
    shards.back().push_back(&row);
    n_elements_here += n_elements(row);
  }
  return shards;
}

Status copy_other_files(const fs::path& from, const fs::path& to) {
  fs::create_directories(to);
  for (const auto& entry : fs::directory_iterator(from)) {
    const std::string name = entry.path().filename().string();
    if (name == "config.json" || name.find("safetensors") != std::string::npos) continue;
    fs::copy_file(entry.path(), to / name, fs::copy_options::overwrite_existing);
  }
  return {};
}

Status write_config(const fs::path& from, const fs::path& to, const std::vector<std::string>& texts) {
  LEVIN_ASSIGN(const std::string text, io::read_file(from / "config.json"));
  LEVIN_ASSIGN(io::JsonValue document, io::parse_json(text, "config.json"));
  std::vector<ConfigOverride> overrides;
  for (const std::string& override : texts) {
    LEVIN_ASSIGN(ConfigOverride parsed, parse_config_override(override));
    overrides.push_back(std::move(parsed));
  }
  apply_overrides(overrides, "config.json", &document);
  return io::write_file_atomically(to / "config.json", io::dump_json(document));
}

Status make(const fs::path& from, const fs::path& to, const std::vector<std::string>& overrides) {
  LEVIN_TRY(copy_other_files(from, to));
  LEVIN_TRY(write_config(from, to, overrides));
  LEVIN_ASSIGN(const ParsedConfig parsed, load_model_config(to.string()));
  const TensorSource source = dummy_tensors(parsed.config);
  const std::vector<WeightRow> rows = weight_table(parsed.config, nullptr, nullptr);
  const std::vector<std::vector<const WeightRow*>> shards = cut_into_shards(rows);
  const auto shard_name = [&](size_t i) {
    return fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
  };
  std::vector<std::vector<std::string>> names(shards.size());
  std::vector<Status> statuses(shards.size());
  std::atomic<size_t> next{0};
  ThreadPool pool(n_threads());
  pool.run([&](int) {
    for (size_t i = next++; i < shards.size(); i = next++) {
      Shard shard;
      for (const WeightRow* row : shards[i]) {
        if (statuses[i].ok()) statuses[i] = shard.add(source, *row);
      }
      if (statuses[i].ok()) statuses[i] = shard.write(to / shard_name(i));
      names[i] = shard.names();
    }
  });
  io::JsonObject map;
  for (size_t i = 0; i < shards.size(); ++i) {
    LEVIN_TRY(statuses[i]);
    for (const std::string& name : names[i]) map.set(name, shard_name(i));
  }
  return io::write_file_atomically(to / "model.safetensors.index.json",
                                   io::dump_json(io::JsonObject{{"weight_map", std::move(map)}}));
}

// ---- measure ----

struct Descriptor {
  explicit Descriptor(const fs::path& path, int flags) : fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags)) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
  int fd;
};

void forget(const io::Checkpoint& checkpoint) {
  for (const io::MappedFile& file : checkpoint.files()) {
    ::madvise(const_cast<std::byte*>(file.bytes().data()), file.size_bytes(), MADV_DONTNEED);
    const Descriptor open(file.path(), 0);
    ::fsync(open.fd);
    ::posix_fadvise(open.fd, 0, 0, POSIX_FADV_DONTNEED);
  }
}

// From front to back, by all threads. False: the system does not read these files so.
bool read_all(const io::Checkpoint& checkpoint, int flags) {
  struct Piece {
    const fs::path* path;
    int64_t offset;
  };
  std::vector<Piece> pieces;
  for (const io::MappedFile& file : checkpoint.files()) {
    for (int64_t at = 0; at < static_cast<int64_t>(file.size_bytes()); at += kReadBytes)
      pieces.push_back({&file.path(), at});
  }
  std::atomic<size_t> next{0};
  std::atomic<bool> ok{true};
  ThreadPool pool(n_threads());
  pool.run([&](int) {
    const std::unique_ptr<void, void (*)(void*)> memory(std::aligned_alloc(4096, static_cast<size_t>(kReadBytes)),
                                                        std::free);
    for (size_t i = next++; i < pieces.size() && ok; i = next++) {
      const Descriptor open(*pieces[i].path, flags);
      for (int64_t done = 0; done < kReadBytes;) {
        const ssize_t n = ::pread(open.fd, static_cast<std::byte*>(memory.get()) + done,
                                  static_cast<size_t>(kReadBytes - done), pieces[i].offset + done);
        if (n < 0) ok = false;
        if (n <= 0 || n % 4096 != 0) break;  // the end of the file
        done += n;
      }
    }
  });
  return ok;
}

// From pinned memory to the device.
Result<double> link_gb_per_s() {
  constexpr int64_t kBytes = int64_t{512} << 20;
  constexpr int kCopies = 8;
  LEVIN_ASSIGN(const cuda::DeviceInfo found, cuda::find_device(0, cuda::KernelSet::kPlain));
  LEVIN_TRY(cuda::use_device(found.index));
  LEVIN_ASSIGN(const cuda::Stream stream, cuda::Stream::create());
  LEVIN_ASSIGN(const cuda::DeviceBuffer device, cuda::DeviceBuffer::create(kBytes));
  LEVIN_ASSIGN(const cuda::PinnedBuffer host, cuda::PinnedBuffer::create(kBytes));
  Status status;
  const double rate = gb_per_s(kCopies * kBytes, [&] {
    for (int i = 0; i < kCopies; ++i) cuda::copy_to_device(stream, device.data(), host.data(), kBytes);
    status = stream.synchronize();
  });
  LEVIN_TRY(status);
  return rate;
}

Status load(const fs::path& folder, Device device, const char* how, double most) {
  const EngineOptions options{.model_folder = folder.string(),
                              .device = device,
                              .n_threads = n_threads(),
                              .numerics = NumericsMode::kOfficial,
                              .max_model_len_tokens = 2048};
  LEVIN_ASSIGN(const std::unique_ptr<Engine> engine, Engine::load(options, {}));
  const WeightsLoad& weights = engine->weights_load();
  fmt::print("load {:<6} {:.2f} GB in {:.2f} s, {:.2f} GB/s", how, static_cast<double>(weights.n_bytes) / 1e9,
             weights.seconds, weights.gb_per_s());
  if (most > 0) fmt::print(", {:.0f}% of {:.2f} GB/s", 100 * weights.gb_per_s() / most, most);
  fmt::print("; {:.2f} s with all else\n", engine->load_seconds());
  return {};
}

Status measure(const fs::path& folder, Device device) {
  LEVIN_ASSIGN(const io::Checkpoint checkpoint, io::Checkpoint::open(folder));
  const int64_t n_bytes = checkpoint.total_bytes();
  fmt::print("{:.2f} GB in {} files, {} threads\n", static_cast<double>(n_bytes) / 1e9, checkpoint.files().size(),
             n_threads());
  const auto read_rate = [&](const char* how, int flags) {
    bool ok = true;
    const double rate = gb_per_s(n_bytes, [&] { ok = read_all(checkpoint, flags); });
    if (!ok) return 0.0;
    fmt::print("read {:<6} {:.2f} GB/s\n", how, rate);
    return rate;
  };
  double link = std::numeric_limits<double>::infinity();
  if (device == Device::kCuda) {
    LEVIN_ASSIGN(link, link_gb_per_s());
    fmt::print("link        {:.2f} GB/s from pinned memory\n", link);
  }
  forget(checkpoint);
  double disk = read_rate("direct", O_DIRECT);
  if (disk == 0) disk = read_rate("cold", 0);
  forget(checkpoint);
  LEVIN_TRY(load(folder, device, "cold", std::min(disk, link)));
  const double memory = read_rate("warm", 0);
  return load(folder, device, "warm", std::min(memory, link));
}

Status run(const std::vector<std::string>& arguments) {
  const size_t n = arguments.size();
  if (n >= 3 && arguments[0] == "make")
    return make(arguments[1], arguments[2], {arguments.begin() + 3, arguments.end()});
  if (n >= 2 && n <= 3 && arguments[0] == "measure") {
    return measure(arguments[1], n == 3 && arguments[2] == "cpu" ? Device::kCpu : Device::kCuda);
  }
  return Error{ErrorKind::kUsage, "bench_load_rate make FROM TO [KEY=VALUE...] | measure FOLDER [cpu|cuda]"};
}

}  // namespace
}  // namespace levin

int main(int argc, char** argv) {
  const levin::Status status = levin::run(std::vector<std::string>(argv + 1, argv + argc));
  if (status.ok()) return 0;
  fmt::print(stderr, "error: {}\n", status.error().message);
  return status.error().exit_code();
}
