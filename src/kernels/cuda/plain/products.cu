// products.h: a block has 32 outputs of 16 rows. It stages 128 columns of both, a block of the tree, in shared memory; then
// a lane is an output and a warp has every fourth row.
#include "base/numbers.h"
#include "kernels/cuda/plain/launch.cuh"
#include "kernels/cuda/plain/products.h"
#include "kernels/cuda/plain/stage.cuh"

namespace levin::cuda::plain {
namespace {

constexpr int kPromoteBlock = 128;  // k between two folds
constexpr int kOutputs = 32;
constexpr int kRows = kPairTile;
constexpr int kWarps = kThreads / 32;
constexpr int kRowsPerThread = kRows / kWarps;

// What all three calls are: rows of tiles, and which matrix a tile is multiplied with.
struct Product {
  ProductInput x;
  Weights w;
  float* out = nullptr;
  int64_t out_ld = 0;
  int64_t n_rows = 0;
  int64_t x_head_ld = 0, out_head_ld = 0;  // blockIdx.z is the head
  const PairTile* tiles = nullptr;         // null: rows in order
  const int32_t* order = nullptr;
  int64_t pairs_per_row = 1;
};

// Bytes of the scales of one matrix of 4-bit codes.
__device__ int64_t scales_bytes(const Weights& w) {
  return w.dtype == DType::kNvfp4 ? w.n * (w.k / 16) + int64_t{sizeof(float)} : w.n * ((w.k + 31) / 32);
}

// The factor of a matrix of nvfp4.
__device__ float factor_of(const Weights& w, int64_t matrix) {
  const uint8_t* bytes = w.group_scales + (matrix + 1) * scales_bytes(w) - sizeof(float);
  return __uint_as_float(bytes[0] | bytes[1] << 8 | bytes[2] << 16 | static_cast<uint32_t>(bytes[3]) << 24);
}

// Column k of rows row .. row + n - 1 of a matrix, each times the scale of its group, where it has one.
template <class Use>
__device__ void read_weights(const Weights& w, int64_t matrix, int64_t row, int n, int64_t k, const Use& use) {
  const int64_t first = matrix * w.n + row;
  if (w.group_scales == nullptr) {
    return read_many<kOutputs>(w.data, w.dtype, n, [&](int i) { return (first + i) * w.k + k; }, use);
  }
  const bool nvfp4 = w.dtype == DType::kNvfp4;
  const int64_t n_groups = nvfp4 ? w.k / 16 : (w.k + 31) / 32, group = nvfp4 ? k / 16 : k / 32;
  const uint8_t* group_scales = w.group_scales + matrix * scales_bytes(w);
  uint8_t codes[kOutputs], scales[kOutputs];
#pragma unroll
  for (int i = 0; i < kOutputs; ++i) {
    const int64_t at = i < n ? i : 0;
    codes[i] = static_cast<const uint8_t*>(w.data)[(first + at) * (w.k / 2) + k / 2];
    scales[i] = group_scales[(row + at) * n_groups + group];
  }
#pragma unroll
  for (int i = 0; i < kOutputs; ++i) {
    const float scale = nvfp4 ? e4m3_to_f32(scales[i]) : e8m0_to_f32(scales[i]);
    if (i < n) use(i, e2m1_to_f32(codes[i] >> (k % 2 * 4) & 0xF) * scale);
  }
}

struct Tile {
  int64_t matrix = 0;  // in memory
  int n_rows = 0;
  int64_t first = 0;
};

__device__ Tile tile_of(const Product& a) {
  if (a.tiles != nullptr) {
    const PairTile tile = a.tiles[blockIdx.y];
    return {tile.expert * a.w.step, tile.expert < 0 ? 0 : tile.n, tile.begin};
  }
  const int64_t first = int64_t{blockIdx.y} * kRows;
  return {blockIdx.z * a.w.step, static_cast<int>(a.n_rows - first < kRows ? a.n_rows - first : kRows), first};
}

__global__ void product_kernel(Product a) {
  follow_earlier_kernels();
  __shared__ float w[kOutputs][kPromoteBlock + 1];
  __shared__ float x[kRows][kPromoteBlock];
  const Tile tile = tile_of(a);
  if (tile.n_rows == 0) return;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int64_t first_n = int64_t{blockIdx.x} * kOutputs, n = first_n + lane,
                n_blocks = (a.w.k + kPromoteBlock - 1) / kPromoteBlock;
  const auto out_row = [&](int r) { return a.order != nullptr ? a.order[tile.first + r] : tile.first + r; };
  const auto x_row = [&](int r) { return out_row(r) / a.pairs_per_row; };

  const int n_outputs = static_cast<int>(a.w.n - first_n < kOutputs ? a.w.n - first_n : kOutputs);
  const float factor = a.w.dtype == DType::kNvfp4 ? factor_of(a.w, tile.matrix) : 1.0f;
  float total[kRowsPerThread] = {};
  for (int64_t block = 0; block < n_blocks; ++block) {
    const int64_t first_k = block * kPromoteBlock, k = first_k + threadIdx.x;
    __syncthreads();
    if (k < a.w.k) {
      read_weights(a.w, tile.matrix, first_n, n_outputs, k, [&](int i, float v) { w[i][threadIdx.x] = v; });
      const auto place = [&](int r) { return x_row(r) * a.x.ld + blockIdx.z * a.x_head_ld + k; };
      read_many<kRows>(a.x.x, a.x.dtype, tile.n_rows, place, [&](int r, float v) { x[r][threadIdx.x] = v; });
    }
    __syncthreads();

    const int n_k = static_cast<int>(a.w.k - first_k < kPromoteBlock ? a.w.k - first_k : kPromoteBlock);
    const float* scales =
        a.w.scales == nullptr ? nullptr : a.w.scales + (tile.matrix * ((a.w.n + 127) / 128)) * n_blocks;
    const float sw = scales != nullptr && n < a.w.n ? scales[n / 128 * n_blocks + block] : factor;
    if (warp >= tile.n_rows) continue;
    float sum[kRowsPerThread] = {};
#pragma unroll 8
    for (int j = 0; j < n_k; ++j) {
      for (int i = 0; i < kRowsPerThread; ++i) sum[i] = __fmaf_rn(x[warp + i * kWarps][j], w[lane][j], sum[i]);
    }
    for (int i = 0; i < kRowsPerThread && warp + i * kWarps < tile.n_rows; ++i) {
      const float sx = a.x.scale != nullptr ? a.x.scale[x_row(warp + i * kWarps) * a.x.scale_ld + block] : 1.0f;
      total[i] = __fmaf_rn(sum[i], sx * sw, total[i]);
    }
  }
  if (n >= a.w.n) return;
  for (int i = 0; i < kRowsPerThread && warp + i * kWarps < tile.n_rows; ++i) {
    a.out[out_row(warp + i * kWarps) * a.out_ld + blockIdx.z * a.out_head_ld + n] = total[i];
  }
}
static_assert(kThreads == kPromoteBlock, "a thread stages a column");

}  // namespace

void matmul(const Matmul& a, StreamHandle stream) {
  const Product product = {.x = a.x, .w = a.w, .out = a.out, .out_ld = a.out_ld, .n_rows = a.n_rows};
  start(product_kernel, {.x = div_up(a.w.n, kOutputs), .y = div_up(a.n_rows, kRows)}, stream, product);
}

void matmul_per_head(const MatmulPerHead& a, StreamHandle stream) {
  const Product product = {.x = a.x,
                           .w = a.w,
                           .out = a.out,
                           .out_ld = a.out_ld,
                           .n_rows = a.n_rows,
                           .x_head_ld = a.x_head_ld,
                           .out_head_ld = a.out_head_ld};
  start(product_kernel, {.x = div_up(a.w.n, kOutputs), .y = div_up(a.n_rows, kRows), .z = a.n_heads}, stream, product);
}

void matmul_grouped(const MatmulGrouped& a, StreamHandle stream) {
  const Product product = {.x = a.x,
                           .w = a.w,
                           .out = a.out,
                           .out_ld = a.out_ld,
                           .tiles = a.tiles,
                           .order = a.order,
                           .pairs_per_row = a.pairs_per_row};
  start(product_kernel, {.x = div_up(a.w.n, kOutputs), .y = a.n_tiles}, stream, product);
}

}  // namespace levin::cuda::plain
