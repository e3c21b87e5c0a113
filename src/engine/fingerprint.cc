#include "engine/fingerprint.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>

namespace levin {
namespace {

namespace fs = std::filesystem;

constexpr size_t kSamples = 64;        // of a weight file, evenly spread
constexpr size_t kSampleBytes = 1024;  // each
constexpr size_t kMaxHeaderBytes = size_t{1} << 20;

void add_file(Sha256& sum, const io::MappedFile& file) {
  const std::span<const std::byte> bytes = file.bytes();
  sum.add(file.path().filename().string()).add_number(bytes.size());
  std::error_code unknown;
  const auto written = fs::last_write_time(file.path(), unknown);
  if (!unknown) sum.add_number(static_cast<uint64_t>(written.time_since_epoch().count()));
  sum.add(bytes.first(std::min(bytes.size(), kMaxHeaderBytes)));
  for (size_t i = 0; i < kSamples; ++i) {
    const size_t begin = bytes.size() / kSamples * i;
    sum.add(bytes.subspan(begin, std::min(kSampleBytes, bytes.size() - begin)));
  }
}

}  // namespace

Result<Digest> cache_fingerprint(const FingerprintParts& parts) {
  Sha256 sum;
  LEVIN_ASSIGN(const std::string config, io::read_file(parts.model_folder / "config.json"));
  sum.add_number(config.size()).add(config);
  sum.add_number(parts.overrides.size()).add(parts.overrides);
  if (parts.checkpoint != nullptr) {
    for (const io::MappedFile& file : parts.checkpoint->files()) add_file(sum, file);
  }
  LEVIN_ASSIGN(const io::MappedFile program, io::MappedFile::open("/proc/self/exe", ErrorKind::kRuntime));
  sum.add_number(checksum64(program.bytes()));
  sum.add(
      fmt::format("{}; {}; pages of {}; drafts {}", parts.numerics, parts.kernels, parts.n_page_tokens, parts.drafts));
  return sum.finish();
}

}  // namespace levin
