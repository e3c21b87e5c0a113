// MXFP4 products of an expert layer on one device: time, share of the floor, tile by tile.
//
//   bench_gemm_mxfp4 [--all-tiles]      CSV to stdout
//
// Shapes are the experts of DeepSeek-V4-Flash and -Pro, 32 of them on the device, 1 to 256 rows each. Two copies of the
// weights take turns, so that they are cold.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <random>
#include <vector>

#include "base/check.h"
#include "device_data.h"
#include "device_timing.h"
#include "kernels/cuda/gemm/gemm_mxfp4.h"
#include "kernels/cuda/mla_problem.h"

namespace levin::bench {
namespace {

constexpr int kGroups = 32, kCopies = 2;

// One packed matrix of random codes, scales near 2^-8.
std::vector<uint8_t> packed_weights(int n, int k) {
  std::mt19937_64 generator(7);
  std::vector<uint8_t> codes(static_cast<size_t>(n) * k / 2), scales(static_cast<size_t>(n) * (k / 32));
  for (uint8_t& v : codes) v = static_cast<uint8_t>(generator());
  for (uint8_t& v : scales) v = static_cast<uint8_t>(117 + generator() % 4);
  std::vector<uint8_t> out(static_cast<size_t>(cuda::packed_mxfp4_bytes(n, k)));
  const auto packed = cuda::pack_mxfp4({codes.data(), scales.data(), n, k}, reinterpret_cast<std::byte*>(out.data()));
  LEVIN_CHECK(packed == cuda::Mxfp4Scales::kNarrow, "scales out of range");
  return out;
}

void bench_grouped(const cuda::Stream& stream, int n, int k, bool all_tiles) {
  const std::vector<uint8_t> one = packed_weights(n, k);
  const int64_t copy_bytes = kGroups * static_cast<int64_t>(one.size());
  const cuda::DeviceArray<uint8_t> w(stream, kCopies * copy_bytes);
  repeat(stream, w, one);
  for (const int rows : {1, 2, 4, 8, 16, 32, 64, 128, 256}) {
    const int64_t n_tokens = int64_t{kGroups} * rows;
    const cuda::DeviceArray<uint16_t> x(stream, cuda::MlaProblem::random_bf16(n_tokens * k, 3)),
        out(stream, n_tokens * n);
    std::vector<int32_t> begin(kGroups + 1);
    for (int g = 0; g <= kGroups; ++g) begin[static_cast<size_t>(g)] = g * rows;
    const cuda::DeviceArray<int32_t> group_begin(stream, begin);
    cuda::GemmMxfp4 a;
    a.x = x.data();
    a.x_ld = k;
    a.out = out.data();
    a.n_tokens = static_cast<int>(n_tokens);
    a.n = n;
    a.k = k;
    a.n_groups = kGroups;
    a.group_begin = group_begin.data();
    a.pdl = true;
    const double bytes = static_cast<double>(copy_bytes) + 2.0 * static_cast<double>(n_tokens) * (n + k);
    const double flop = 2.0 * static_cast<double>(n_tokens) * n * k;
    const double floor = std::max(bytes / kCopyBytesPerSecond, flop / kBf16FlopPerSecond) * 1e6;
    const int chosen = cuda::plan_gemm_mxfp4(rows);
    for (const int tile : {8, 16, 32, 64, 128}) {
      if (tile != chosen && !all_tiles) continue;
      const double us = time_in_graph(stream, {8, 7}, [&](int i) {
        a.w = reinterpret_cast<const std::byte*>(w.data()) + i % kCopies * copy_bytes;
        cuda::gemm_mxfp4(a, tile, stream.handle());
      });
      fmt::print("mxfp4,{}x{},{},{},{}{},{:.2f},{:.2f},{:.3f},{:.1f}\n", kGroups, rows, n, k,
                 tile == chosen ? "" : "alt ", tile, us, floor, floor / us, flop * 1e-6 / us);
      std::fflush(stdout);
    }
  }
}

int run(bool all_tiles) {
  if (const std::string why = cuda::why_no_device(); !why.empty()) {
    fmt::print(stderr, "{}\n", why);
    return 5;
  }
  const cuda::Stream stream = cuda::must(cuda::Stream::create());
  fmt::print("kind,rows,N,K,tile,us,floor_us,share,tflops\n");
  for (const auto& [n, k] : {std::pair{4096, 4096}, {4096, 2048}, {6144, 7168}, {7168, 3072}})
    bench_grouped(stream, n, k, all_tiles);
  return 0;
}

}  // namespace
}  // namespace levin::bench

int main(int argc, char** argv) {
  bool all_tiles = false;
  CLI::App app("MXFP4 products of groups, and how near to the limits of the card they are");
  app.add_flag("--all-tiles", all_tiles, "each tile of a product, not only the chosen one");
  CLI11_PARSE(app, argc, argv);
  return levin::bench::run(all_tiles);
}
