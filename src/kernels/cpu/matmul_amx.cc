// Products by the matrix unit: bf16 operands in tiles of 16 rows and 32 k against panels of bf16 weights as they lie, and
// of others as they are widened, a block of 128 k after the other. f32 operands take the f32 kernel.
//
// The operand lies in groups of 16 rows, [ceil(K / 32)][rows][32], zero beyond K; an a tile is a run of it. Up to
// kRowGroup plain rows are brought into that form as far as the next pass over the panels goes.
//
//   tiles     0-3   sums of 16 rows with four panels
//             4     rows
//             5-7   weights, in turn
#include "kernels/cpu/round_simd.h"
#include "kernels/cpu/tiles_amx.h"
#include "kernels/cpu/widen_bf16_simd.h"

namespace levin::kernels {
namespace {

using V = Avx512Bf16;

constexpr int kMostPanels = 4;                            // of a step
constexpr int64_t kBlockTileBytes = kFoldBlock / 2 * 64;  // of a panel's bf16 pairs over a block
constexpr int64_t kFewBlocks = 16;                        // of k that few rows are copied for at a time
constexpr int64_t kTileValues = kTileRows * kTileK;

LEVIN_INLINE int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
LEVIN_INLINE int64_t padded_k(int64_t k) { return ceil_div(k, kTileK) * kTileK; }

// --- the operand ---

void prepare_tiles(const PrepareJob& job) {
  const int64_t bytes = job.x_dtype == DType::kBF16 ? 2 : 1;
  for (int64_t row = job.row_begin; row < job.row_end; ++row) {
    const int64_t group = row / kTileRows * kTileRows, n_rows = smaller(kTileRows, job.n_rows - group);
    uint16_t* out = static_cast<uint16_t*>(job.operand) + group * padded_k(job.k) + (row - group) * kTileK;
    for (int64_t k = 0; k < job.k; k += kTileK, out += n_rows * kTileK) {
      V::store(reinterpret_cast<float*>(out), load_as_bf16_pairs(source_row(job, row, bytes), job.x_dtype, k, job.k));
    }
  }
}

void prepare(const PrepareJob& job) {
  if (job.operand_dtype == DType::kBF16) return prepare_tiles(job);
  prepare_f32<V>(job);
}

// Rows of a group that meet a panel together, from some block of k on.
struct RowTile {
  const uint16_t* x;  // the first row at that block
  int64_t k_stride;   // values between two steps of 32 k
  int64_t row;        // of the product
  int64_t n_rows;
};

// --- a block ---

struct BlockArgs {
  const std::byte* w;  // the first panel's pairs
  int64_t w_stride;    // bytes between panels
  int64_t n_steps;     // of 32 k
  int64_t ahead;       // bytes between weights in use and those that are fetched; 0: none are
};

template <int kPanels, int kPanel = 0>
LEVIN_INLINE void multiply_panels(const BlockArgs& t, const std::byte* w) {
  constexpr int kB = 5 + kPanel % 3;
  if (t.ahead != 0) prefetch<kTileBytes>(w + t.ahead);
  load_tile<kB>(w, 64);
  multiply_tiles<kPanel, 4, kB>();
  if constexpr (kPanel + 1 < kPanels) multiply_panels<kPanels, kPanel + 1>(t, w + t.w_stride);
}

template <int kPanels, int kPanel = 0>
LEVIN_INLINE void zero_sums() {
  zero_tile<kPanel>();
  if constexpr (kPanel + 1 < kPanels) zero_sums<kPanels, kPanel + 1>();
}
template <int kPanels, int kPanel = 0>
LEVIN_INLINE void store_sums(float* sums) {
  store_tile<kPanel>(sums + kPanel * kTileRows * kLanes, 64);
  if constexpr (kPanel + 1 < kPanels) store_sums<kPanels, kPanel + 1>(sums);
}

// sums [panels, 16, 16] = rows times panels over a block.
template <int kPanels>
[[gnu::noinline]] void multiply_block(const BlockArgs& t, const RowTile& rows, float* sums) {
  zero_sums<kPanels>();
  for (int64_t step = 0; step < t.n_steps; ++step) {
    load_tile<4>(rows.x + step * rows.k_stride, 2 * kTileK);
    multiply_panels<kPanels>(t, t.w + step * kTileBytes);
  }
  store_sums<kPanels>(sums);
}

LEVIN_INLINE void multiply_block(int n_panels, const BlockArgs& t, const RowTile& rows, float* sums) {
  switch (n_panels) {
    case 1:
      return multiply_block<1>(t, rows, sums);
    case 2:
      return multiply_block<2>(t, rows, sums);
    case 3:
      return multiply_block<3>(t, rows, sums);
    default:
      return multiply_block<4>(t, rows, sums);
  }
}

// out = fma(sums, scale, out), or from zero in the first block.
LEVIN_INLINE void fold_panel(const ProductJob& job, const PanelBlock& b, const RowTile& rows, int64_t panel,
                             const float* sums) {
  const int64_t n_blocks = ceil_div(job.k, kFoldBlock);
  const float sw = job.w_scales == nullptr ? 1.0f : job.w_scales[panel / (kFoldBlock / kLanes) * n_blocks + b.block];
  const int n = static_cast<int>(smaller(kLanes, job.n - panel * kLanes));
  for (int64_t r = 0; r < rows.n_rows; ++r) {
    const int64_t row = rows.row + r, scale_row = job.x_scale_rows != nullptr ? job.x_scale_rows[row] : row;
    const float sx = job.x_scale != nullptr ? job.x_scale[scale_row * job.x_scale_stride + b.block] : 1.0f;
    float* out = job.out + row * job.out_stride + panel * kLanes;
    const V::F32 scale = V::broadcast(job.w_scales != nullptr ? sx * sw : sx), sum = V::load(sums + r * kLanes);
    if (n == kLanes) {
      V::store(out, V::fma(sum, scale, b.block == 0 ? V::zero() : V::load(out)));
    } else {
      V::store_n(out, V::fma(sum, scale, b.block == 0 ? V::zero() : V::load_n(out, n)), n);
    }
  }
}

// --- the order of blocks ---

// The block's weights as pairs of bf16, whole steps of them.
template <class W>
LEVIN_INLINE BlockArgs widen_block(const PanelBlock& b, std::byte* wide) {
  const int64_t n_steps = ceil_div(b.n_k, kTileK);
  if (Widen<V, W>::kNone && b.n_k % kTileK == 0) return {b.w, b.w_stride, n_steps, b.ahead};
  for (int p = 0; p < b.n_panels; ++p) {
    std::byte* out = wide + p * kBlockTileBytes;
    if (b.n_k % kTileK != 0) __builtin_memset(out, 0, static_cast<size_t>(n_steps * kTileBytes));
    if constexpr (Widen<V, W>::kNone) {
      __builtin_memcpy(out, b.w + p * b.w_stride, static_cast<size_t>(ceil_div(b.n_k, 2) * 64));
    } else {
      Widen<V, W>::run(b.w + p * b.w_stride, b.n_k, out);
    }
  }
  return {wide, kBlockTileBytes, n_steps, 0};
}

// Rows against the job's panels over blocks begin .. end-1; `tile_at(row)` has the rows from block `begin` on.
template <class W, class TileAt>
LEVIN_INLINE void run_panels(const ProductJob& job, int64_t row_begin, int64_t row_end, int64_t begin, int64_t end,
                             const TileAt& tile_at) {
  alignas(64) std::byte wide[kMostPanels * kBlockTileBytes];
  alignas(64) float sums[kMostPanels * kTileRows * kLanes];
  for (int64_t panel = job.panel_begin; panel < job.panel_end; panel += kMostPanels) {
    const int n_panels = static_cast<int>(smaller(kMostPanels, job.panel_end - panel));
    for (int64_t block = begin; block < end; ++block) {
      const PanelBlock b = panel_block<V, W>(job, panel, n_panels, block);
      BlockArgs args = widen_block<W>(b, wide);
      for (int64_t row = row_begin; row < row_end;) {
        RowTile rows = tile_at(row);
        rows.x += (block - begin) * (kFoldBlock / kTileK) * rows.k_stride;
        multiply_block(n_panels, args, rows, sums);
        for (int p = 0; p < n_panels; ++p) fold_panel(job, b, rows, panel + p, sums + p * kTileRows * kLanes);
        args.ahead = 0;
        row += rows.n_rows;
      }
    }
  }
}

// Up to kRowGroup rows, wherever they lie.
template <class W>
void product_few_rows(const ProductJob& job) {
  alignas(64) uint16_t x[kFewBlocks * kFoldBlock * kRowGroup];
  const int64_t n_rows = job.row_end - job.row_begin, n_blocks = ceil_div(job.k, kFoldBlock);
  const TileShapes shapes(kMostPanels, 1, n_rows);
  for (int64_t begin = 0; begin < n_blocks; begin += kFewBlocks) {
    const int64_t end = smaller(n_blocks, begin + kFewBlocks);
    const int64_t first_k = begin * kFoldBlock, n_k = smaller(job.k, end * kFoldBlock) - first_k;
    for (int64_t r = 0; r < n_rows; ++r) {
      const std::byte* row = static_cast<const std::byte*>(job.plain_rows[job.row_begin + r]) + 2 * first_k;
      for (int64_t k = 0; k < n_k; k += kTileK) {
        V::store(reinterpret_cast<float*>(x + k * n_rows + r * kTileK), load_as_bf16_pairs(row, DType::kBF16, k, n_k));
      }
    }
    run_panels<W>(job, job.row_begin, job.row_end, begin, end,
                  [&](int64_t row) { return RowTile{x, n_rows * kTileK, row, n_rows}; });
  }
}

// Tiles of 16 rows, and one of less at the end.
template <class W>
void product_many_rows(const ProductJob& job) {
  const int64_t n_blocks = ceil_div(job.k, kFoldBlock);
  const auto run = [&](int64_t row_begin, int64_t row_end) {
    const TileShapes shapes(kMostPanels, 1, smaller(kTileRows, row_end - row_begin));
    const int64_t chunk_blocks = larger(1, kChunkBytes / ((row_end - row_begin) * kFoldBlock * 2));
    for (int64_t begin = 0; begin < n_blocks; begin += chunk_blocks) {
      run_panels<W>(job, row_begin, row_end, begin, smaller(n_blocks, begin + chunk_blocks), [&](int64_t row) {
        const int64_t group = row / kTileRows * kTileRows, n_group = smaller(kTileRows, job.n_rows - group);
        const uint16_t* x =
            static_cast<const uint16_t*>(job.operand) + group * padded_k(job.k) + (row - group) * kTileK;
        return RowTile{x + begin * kFoldBlock * n_group, n_group * kTileK, row,
                       smaller(group + n_group, row_end) - row};
      });
    }
  };
  for (int64_t row = job.row_begin; row < job.row_end;) {
    // up to the next whole group, whole groups, the rest
    const int64_t into_group = row % kTileRows;
    const int64_t whole = (job.row_end - row) / kTileRows * kTileRows;
    const int64_t n = into_group != 0 ? smaller(kTileRows - into_group, job.row_end - row)
                      : whole > 0     ? smaller(whole, kChunkRows)
                                      : job.row_end - row;
    run(row, row + n);
    row += n;
  }
}

template <class W>
void product_rows_bf16(const ProductJob& job) {
  if (job.n_rows <= kRowGroup) return product_few_rows<W>(job);
  product_many_rows<W>(job);
}

void product(const ProductJob& job) {
  if (job.operand_dtype == DType::kF32) return product_f32<V>(job);
  if (job.w_dtype == DType::kBF16) return product_rows_bf16<DotBf16<V>>(job);
  if (job.w_dtype == DType::kMxfp4) return product_rows_bf16<DotMxfp4<V>>(job);
  product_rows_bf16<DotE4m3<V>>(job);
}

}  // namespace

MatmulKernels matmul_kernels_amx_bf16() {
  MatmulKernels kernels = round_kernels<V>();
  kernels.operand_dtype = [](DType x, DType w) { return bf16_operand_dtype(x, w); };
  kernels.prepare = prepare;
  kernels.product = product;
  return kernels;
}

}  // namespace levin::kernels
