// MXFP4 products of an expert layer on one device: time, share of the floor, tile by tile.
//
//   bench_gemm_mxfp4 [--all-tiles]      CSV to stdout
//
// Shapes are the experts of DeepSeek-V4-Flash and -Pro: 32 of them with 1 to 256 rows each, of which two copies take turns,
// so that weights are cold, and 256 of them whose rows chance shares out.
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

// The experts' weights, packed, and where a copy of them begins.
struct GroupedWeights {
  GroupedWeights(const cuda::Stream& stream, int outputs, int inputs, int groups, const std::vector<uint8_t>& one)
      : n(outputs),
        k(inputs),
        n_groups(groups),
        n_copies(groups > 32 ? 1 : 2),
        copy_bytes(groups * static_cast<int64_t>(one.size())),
        w(stream, n_copies * copy_bytes) {
    repeat(stream, w, one);
  }

  const int n, k, n_groups, n_copies;
  const int64_t copy_bytes;
  const cuda::DeviceArray<uint8_t> w;
};

void bench_grouped(const cuda::Stream& stream, const GroupedWeights& weights, const GroupRows& rows, bool all_tiles) {
  const int n = weights.n, k = weights.k;
  const int64_t n_tokens = rows.n_rows();
  const cuda::DeviceArray<uint16_t> x(stream, n_tokens * k), out(stream, n_tokens * n);
  repeat(stream, x, cuda::MlaProblem::random_bf16(std::min<int64_t>(n_tokens, 1024) * k, 3));
  const cuda::DeviceArray<int32_t> group_begin(stream, rows.begin());
  cuda::GemmMxfp4 a;
  a.x = x.data();
  a.x_ld = k;
  a.out = out.data();
  a.n_tokens = static_cast<int>(n_tokens);
  a.n = n;
  a.k = k;
  a.n_groups = rows.n_groups;
  a.group_begin = group_begin.data();
  a.pdl = true;
  const double bytes = static_cast<double>(weights.copy_bytes) + 2.0 * static_cast<double>(n_tokens) * (n + k);
  const double flop = 2.0 * static_cast<double>(n_tokens) * n * k;
  const double floor = std::max(bytes / kCopyBytesPerSecond, flop / kBf16FlopPerSecond) * 1e6;
  const int chosen = cuda::plan_gemm_mxfp4(rows.mean, rows.n_groups);
  for (const int tile : {8, 16, 32, 64, 128}) {
    if (tile != chosen && !all_tiles) continue;
    const double us = time_in_graph(stream, {rows.n_groups > 32 ? 2 : 8, 7}, [&](int i) {
      a.w = reinterpret_cast<const std::byte*>(weights.w.data()) + i % weights.n_copies * weights.copy_bytes;
      cuda::gemm_mxfp4(a, tile, stream.handle());
    });
    fmt::print("mxfp4,{}x{}{},{},{},{}{},{:.2f},{:.2f},{:.3f},{:.1f}\n", rows.n_groups, rows.mean, rows.kind(), n, k,
               tile == chosen ? "" : "alt ", tile, us, floor, floor / us, flop * 1e-6 / us);
    std::fflush(stdout);
  }
}

void bench_experts(const cuda::Stream& stream, int n, int k, bool all_tiles) {
  const std::vector<uint8_t> one = packed_weights(n, k);
  const GroupedWeights few(stream, n, k, 32, one), many(stream, n, k, 256, one);
  for (const int mean : {1, 2, 4, 8, 16, 32, 64, 128, 256}) bench_grouped(stream, few, {32, mean}, all_tiles);
  for (const int mean : {4, 6, 8, 12, 16, 24, 32, 48, 64}) bench_grouped(stream, many, {256, mean, true}, all_tiles);
}

int run(bool all_tiles) {
  if (const std::string why = cuda::why_no_device(); !why.empty()) {
    fmt::print(stderr, "{}\n", why);
    return 5;
  }
  const cuda::Stream stream = cuda::must(cuda::Stream::create());
  fmt::print("kind,rows,N,K,tile,us,floor_us,share,tflops\n");
  for (const auto& [n, k] : {std::pair{4096, 4096}, {4096, 2048}, {6144, 7168}, {7168, 3072}})
    bench_experts(stream, n, k, all_tiles);
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
