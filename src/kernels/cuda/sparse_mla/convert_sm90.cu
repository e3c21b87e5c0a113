// convert_latent_rows, sm_90a: the FP8 latent rows that a prefill's queries may select, as bf16 rows.
//
//   in    pages of 64 rows of 656 bytes, through a page table for each request       out  [tables, stride, 64, 1152] bytes
//   grid  last top-k indices: 8 query rows a block; conversion: pages of a table x tables; 8 warps, a row each at a time
//   flow  The last index of any query of a request bounds its pages: entries of the table after it are not read.
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/prims/launch.h"
#include "kernels/cuda/sparse_mla/load.cuh"

namespace levin::cuda::mla {
namespace {

constexpr int kConvertThreads = 256;
constexpr int kConvertWarps = kConvertThreads / 32;

__global__ void __launch_bounds__(kConvertThreads) clear_counts_kernel(int32_t* n_tokens, int n_tables) {
  const int table = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (table < n_tables) n_tokens[table] = 0;
}

// Tokens of each request up to the last that any of its queries has selected. Lane i looks at the first index of tile i, then
// at top-k indices i and i + 32 of the last tile that has any.
__global__ void __launch_bounds__(kConvertThreads)
    count_tokens_kernel(const __grid_constant__ SparseMla a, int32_t* n_tokens) {
  const int64_t row = int64_t{blockIdx.x} * kConvertWarps + threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (row >= a.n_rows || is_padding(a, row)) return;
  const int32_t* topk = a.topk + row * a.n_topk;
  const bool has_topk = lane < a.n_topk / kTileKeys && topk[lane * kTileKeys] >= 0;
  const int last = 31 - __clz(static_cast<int>(__ballot_sync(0xffffffff, has_topk)));
  if (last < 0) return;
  int highest = max(topk[last * kTileKeys + lane], topk[last * kTileKeys + lane + 32]);
  highest = __reduce_max_sync(0xffffffff, highest);
  if (lane == 0) atomicMax(n_tokens + a.table_row[row], highest + 1);
}

__global__ void __launch_bounds__(kConvertThreads)
    convert_kernel(const __grid_constant__ SparseMla a, const int32_t* n_tokens, std::byte* rows) {
  using Fp8 = RowFormat<LatentRows::kFp8>;
  const int64_t table = blockIdx.y, page = blockIdx.x;
  if (page * kIndexPageTokens >= n_tokens[table]) return;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const std::byte* from = a.cache + a.tables.data[table * a.tables.stride + page] * a.page_bytes;
  std::byte* to = rows + (table * a.tables.stride + page) * kIndexPageTokens * kConvertedRowBytes;
#pragma unroll 4
  for (int token = warp; token < kIndexPageTokens; token += kConvertWarps) {
    const std::byte* row = from + token * Fp8::kRowBytes;
    const uint4 codes = load_16(row + lane * 16, true);
    const uint4 rope = load_16(row + Fp8::kRopeOffset + lane * 16, lane < kRope * 2 / 16);
    const float scale = *reinterpret_cast<const float*>(row + Fp8::kScaleOffset + lane / 8 * 4);
    uint4 low = convert_8(codes.x, codes.y, code_factor(scale)), high = convert_8(codes.z, codes.w, code_factor(scale));
    if (scale > kMaxFactorScale) {
      const uint32_t rest = power_pair(scale / kMaxFactorScale);
      low = multiply_8(low, rest);
      high = multiply_8(high, rest);
    }
    auto* out = reinterpret_cast<uint4*>(to + token * kConvertedRowBytes);
    out[2 * lane] = low;
    out[2 * lane + 1] = high;
    if (lane < kRope * 2 / 16) out[kLatent * 2 / 16 + lane] = rope;
  }
}

}  // namespace
}  // namespace levin::cuda::mla

namespace levin::cuda {

void launch_convert_latent_rows(const SparseMla& a, int64_t n_tables, int32_t* n_tokens, std::byte* rows,
                                StreamHandle stream) {
  const auto table_blocks = static_cast<unsigned>((n_tables + mla::kConvertThreads - 1) / mla::kConvertThreads);
  launch_kernel(mla::clear_counts_kernel,
                Launch{.grid = {table_blocks}, .block = {mla::kConvertThreads}, .stream = stream}, n_tokens,
                static_cast<int>(n_tables));
  const auto row_blocks = static_cast<unsigned>((a.n_rows + mla::kConvertWarps - 1) / mla::kConvertWarps);
  launch_kernel(mla::count_tokens_kernel,
                Launch{.grid = {row_blocks}, .block = {mla::kConvertThreads}, .stream = stream}, a, n_tokens);
  launch_kernel(mla::convert_kernel,
                Launch{.grid = {static_cast<unsigned>(a.tables.stride), static_cast<unsigned>(n_tables)},
                       .block = {mla::kConvertThreads},
                       .stream = stream},
                a, n_tokens, rows);
}

}  // namespace levin::cuda
