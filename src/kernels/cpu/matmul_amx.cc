// Products by the matrix unit: bf16 operands in tiles of 16 rows and 32 k against four panels at a time, of bf16 weights
// as they lie and of others as they are widened. f32 operands take the f32 kernel.
//
//   few rows    steps of 32 k; the next step's weights are widened during the tile products of the present one, into 4 KB
//               that stay in the nearest cache. So the work is bound by widening, or by reading
//   many rows   blocks of 128 k, widened once for all rows of a chunk
//
// The operand of many rows lies in groups of 16, [ceil(K / 32)][rows][32], zero beyond K; an a tile is a run of it. Few rows
// are brought into that form as far as the next pass over the panels goes.
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

constexpr int kMostPanels = 4;  // that rows meet at a time
constexpr int64_t kBlockSteps = kPromoteBlock / kTileK;
constexpr int64_t kTileSums = kTileRows * kLanes;

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

// --- steps and blocks ---

template <int kPanels, int kPanel = 0>
LEVIN_INLINE void zero_sums() {
  zero_tile<kPanel>();
  if constexpr (kPanel + 1 < kPanels) zero_sums<kPanels, kPanel + 1>();
}
// sums [panels, 16, 16]
template <int kPanels, int kPanel = 0>
LEVIN_INLINE void store_sums(float* sums) {
  store_tile<kPanel>(sums + kPanel * kTileSums, 64);
  if constexpr (kPanel + 1 < kPanels) store_sums<kPanels, kPanel + 1>(sums);
}

// What is done after each product of tiles while it runs, which the matrix unit does not notice.
enum class Meanwhile { kNothing, kFetch, kWiden };

// 32 k of some panels.
struct Step {
  const uint16_t* x = nullptr;      // the rows' tile
  const std::byte* w = nullptr;     // the first panel's pairs
  int64_t w_stride = 0;             // bytes between panels
  const std::byte* next = nullptr;  // kWiden: the first panel's weights of the step to widen
  int64_t next_stride = 0;
  std::byte* wide = nullptr;  // and where to, [panels][1024]
  int64_t ahead = 0;          // bytes to the weights that are fetched, from `next`, or from `w` with kFetch
};

template <class W, Meanwhile kMeanwhile, int kPanels, int kPanel = 0>
LEVIN_INLINE void multiply_panels(const Step& t) {
  constexpr int kB = 5 + kPanel % 3;
  const std::byte* w = t.w + kPanel * t.w_stride;
  if constexpr (kMeanwhile == Meanwhile::kFetch) prefetch<kTileBytes>(w + t.ahead);
  load_tile<kB>(w, 64);
  multiply_tiles<kPanel, 4, kB>();
  if constexpr (kMeanwhile == Meanwhile::kWiden) {
    Widen<V, W>::run(t.next + kPanel * t.next_stride, kTileK, t.wide + kPanel * kTileBytes, t.ahead);
  }
  if constexpr (kPanel + 1 < kPanels) multiply_panels<W, kMeanwhile, kPanels, kPanel + 1>(t);
}

template <class W, Meanwhile kMeanwhile, int kPanels>
LEVIN_INLINE void multiply_step(const Step& step) {
  const Step t = step;  // a copy, which stores to `wide` cannot change
  load_tile<4>(t.x, 2 * kTileK);
  multiply_panels<W, kMeanwhile, kPanels>(t);
}

// Up to 32 k of a panel as a tile of pairs, zero beyond.
template <class W>
LEVIN_INLINE void widen_tile(const std::byte* w, int64_t n_k, std::byte* out, int64_t ahead) {
  if (n_k < kTileK) __builtin_memset(out, 0, kTileBytes);
  if constexpr (Widen<V, W>::kNone) {
    __builtin_memcpy(out, w, static_cast<size_t>(ceil_div(n_k, 2) * 64));
  } else {
    Widen<V, W>::run(w, n_k, out, ahead);
  }
}

// Bytes of a panel that hold 32 k.
template <class W>
constexpr int64_t kStepBytes = kTileK / W::kStep * W::kStepBytes;

// Sums of a block that are yet to join their totals.
struct BlockSums {
  int64_t block = 0;
  int64_t panel = 0;
  int64_t n_panels = 0;
  int64_t row = 0;
  int64_t n_rows = 0;
  const float* sums = nullptr;  // [panels, 16, 16]
};

// Joins sums to their totals: total = fma(sum, sx * sw, total), or from zero in the first block.
struct Fold {
  const ProductJob& job;
  const BlockSums& b;
  float* totals;  // [rows, panels of 16], the block's first row and panel
  int64_t stride;

  float row_scale(int64_t r) const {
    const int64_t row = b.row + r, scale_row = job.x_scale_rows != nullptr ? job.x_scale_rows[row] : row;
    return job.x_scale[scale_row * job.x_scale_stride + b.block];
  }
  float panel_scale(int64_t p) const {
    const int64_t block = (b.panel + p) / (kPromoteBlock / kLanes) * ceil_div(job.k, kPromoteBlock) + b.block;
    return job.w_scales != nullptr ? job.w_scales[block] : 1.0f;
  }
  const float* sums(int64_t r, int64_t p) const { return b.sums + p * kTileSums + r * kLanes; }

  template <int kPanels, bool kRowScales, bool kFirst>
  [[gnu::always_inline]] void whole_panels() const {
    V::F32 sw[kPanels];
    LEVIN_UNROLL
    for (int p = 0; p < kPanels; ++p) sw[p] = V::broadcast(panel_scale(p));
    for (int64_t r = 0; r < b.n_rows; ++r) {
      float* total = totals + r * stride;
      LEVIN_UNROLL
      for (int p = 0; p < kPanels; ++p) {
        const V::F32 scale = kRowScales ? V::mul(V::broadcast(row_scale(r)), sw[p]) : sw[p];
        const V::F32 before = kFirst ? V::zero() : V::load(total + p * kLanes);
        V::store(total + p * kLanes, V::fma(V::load(sums(r, p)), scale, before));
      }
    }
  }
  template <int kPanels>
  [[gnu::always_inline]] void whole_panels_of() const {
    const bool first = b.block == 0;
    if (job.x_scale == nullptr) {
      return first ? whole_panels<kPanels, false, true>() : whole_panels<kPanels, false, false>();
    }
    first ? whole_panels<kPanels, true, true>() : whole_panels<kPanels, true, false>();
  }

  // The last panel, which n outputs have.
  [[gnu::always_inline]] void part_of_panel(int64_t p, int n) const {
    for (int64_t r = 0; r < b.n_rows; ++r) {
      float* total = totals + r * stride + p * kLanes;
      const float scale = job.x_scale != nullptr ? row_scale(r) * panel_scale(p) : panel_scale(p);
      const V::F32 before = b.block == 0 ? V::zero() : V::load_n(total, n);
      V::store_n(total, V::fma(V::load(sums(r, p)), V::broadcast(scale), before), n);
    }
  }
};

void promote(const ProductJob& job, const BlockSums& b, float* totals, int64_t stride) {
  const Fold f = {job, b, totals, stride};
  const int64_t n_whole = smaller(b.n_panels, job.n / kLanes - b.panel);
  switch (n_whole) {
    case 1:
      f.whole_panels_of<1>();
      break;
    case 2:
      f.whole_panels_of<2>();
      break;
    case 3:
      f.whole_panels_of<3>();
      break;
    case 4:
      f.whole_panels_of<4>();
      break;
    default:
      break;
  }
  if (n_whole < b.n_panels) f.part_of_panel(n_whole, static_cast<int>(job.n % kLanes));
}

// --- few rows ---

constexpr int64_t kFewBlocks = 16;  // of k that few rows are copied for at a time
constexpr int64_t kStepsAhead = 4;  // from weights that are widened or multiplied to those that are fetched

// A pass of up to kRowGroup rows over a job's panels, for some blocks of k.
template <class W>
class GemvPass {
 public:
  // x [steps][rows][32], from block first_block on
  GemvPass(const ProductJob& job, const uint16_t* x, int64_t n_rows, int64_t first_block, int64_t n_k)
      : job_(job), x_(x), n_rows_(n_rows), first_block_(first_block), n_k_(n_k) {}

  void run() {
    Place at = place(job_.panel_begin, 0);
    widen(at, wide_[0]);
    for (int turn = 0; at.n_panels > 0; turn ^= 1) {
      const Place next = at.step + 1 < n_steps() ? place(at.panel, at.step + 1) : place(at.panel + kMostPanels, 0);
      switch (at.n_panels) {
        case 1:
          run_step<1>(at, next, turn);
          break;
        case 2:
          run_step<2>(at, next, turn);
          break;
        case 3:
          run_step<3>(at, next, turn);
          break;
        default:
          run_step<4>(at, next, turn);
      }
      at = next;
    }
    promote_waiting();
  }

 private:
  // A step: 32 k of up to four panels, none of them after the last.
  struct Place {
    int64_t panel;
    int64_t n_panels;
    int64_t step;
    const std::byte* w;  // the first panel's weights
  };

  Place place(int64_t panel, int64_t step) const {
    return {panel, larger(0, smaller(kMostPanels, job_.panel_end - panel)), step,
            job_.panels + panel * job_.panel_bytes + (first_block_ * kBlockSteps + step) * kStepBytes<W>};
  }
  int64_t n_steps() const { return ceil_div(n_k_, kTileK); }
  int64_t n_k_of(const Place& at) const { return smaller(kTileK, n_k_ - at.step * kTileK); }
  bool is_direct(const Place& at) const { return Widen<V, W>::kNone && n_k_of(at) == kTileK; }
  int64_t ahead(const Place& at) const {
    if (at.step + kStepsAhead < n_steps()) return kStepsAhead * kStepBytes<W>;
    const bool is_last = at.panel + kMostPanels >= job_.panel_end;
    return is_last ? 0 : kMostPanels * job_.panel_bytes + (kStepsAhead - n_steps()) * kStepBytes<W>;
  }

  void widen(const Place& at, std::byte* wide) const {
    if (is_direct(at)) return;
    for (int64_t p = 0; p < at.n_panels; ++p) {
      widen_tile<W>(at.w + p * job_.panel_bytes, n_k_of(at), wide + p * kTileBytes, ahead(at));
    }
  }

  // The step's weights lie in wide_[turn], or in the panels; the next one's are put into the other.
  template <int kPanels>
  [[gnu::noinline]] void run_step(const Place& at, const Place& next, int turn) {
    const bool direct = is_direct(at), first_of_block = at.step % kBlockSteps == 0;
    const Step step = {.x = x_ + at.step * n_rows_ * kTileK,
                       .w = direct ? at.w : wide_[turn],
                       .w_stride = direct ? job_.panel_bytes : kTileBytes,
                       .next = next.w,
                       .next_stride = job_.panel_bytes,
                       .wide = wide_[turn ^ 1],
                       .ahead = ahead(direct ? at : next)};
    if (first_of_block) zero_sums<kPanels>();
    if constexpr (Widen<V, W>::kNone) {
      direct ? multiply_step<W, Meanwhile::kFetch, kPanels>(step)
             : multiply_step<W, Meanwhile::kNothing, kPanels>(step);
      widen(next, wide_[turn ^ 1]);
    } else if (next.n_panels == kPanels && n_k_of(next) == kTileK) {
      multiply_step<W, Meanwhile::kWiden, kPanels>(step);
    } else {
      multiply_step<W, Meanwhile::kNothing, kPanels>(step);
      widen(next, wide_[turn ^ 1]);
    }
    if (next.step % kBlockSteps == 0 || next.step == 0) end_block<kPanels>(at);
  }

  // The matrix unit is still at work on the sums: they are folded when the next block has been issued.
  template <int kPanels>
  void end_block(const Place& at) {
    float* sums = waiting_.sums == sums_[0] ? sums_[1] : sums_[0];
    store_sums<kPanels>(sums);
    promote_waiting();
    waiting_ = {.block = first_block_ + at.step / kBlockSteps,
                .panel = at.panel,
                .n_panels = kPanels,
                .row = job_.row_begin,
                .n_rows = n_rows_,
                .sums = sums};
  }
  void promote_waiting() {
    promote(job_, waiting_, job_.out + waiting_.row * job_.out_stride + waiting_.panel * kLanes, job_.out_stride);
  }

  const ProductJob& job_;
  const uint16_t* x_;
  int64_t n_rows_;
  int64_t first_block_;
  int64_t n_k_;
  BlockSums waiting_;
  alignas(64) std::byte wide_[2][kMostPanels * kTileBytes];
  alignas(64) float sums_[2][kMostPanels * kTileSums];
};

// Up to kRowGroup rows, wherever they lie.
template <class W>
void product_few_rows_bf16(const ProductJob& job) {
  alignas(64) uint16_t x[kFewBlocks * kPromoteBlock * kRowGroup];
  const int64_t n_rows = job.row_end - job.row_begin, n_blocks = ceil_div(job.k, kPromoteBlock);
  const TileShapes shapes(kMostPanels, 1, n_rows);
  for (int64_t block = 0; block < n_blocks; block += kFewBlocks) {
    const int64_t first_k = block * kPromoteBlock, n_k = smaller(job.k - first_k, kFewBlocks * kPromoteBlock);
    for (int64_t r = 0; r < n_rows; ++r) {
      const std::byte* row = static_cast<const std::byte*>(job.plain_rows[job.row_begin + r]) + 2 * first_k;
      for (int64_t k = 0; k < n_k; k += kTileK) {
        V::store(reinterpret_cast<float*>(x + k * n_rows + r * kTileK), load_as_bf16_pairs(row, DType::kBF16, k, n_k));
      }
    }
    GemvPass<W>(job, x, n_rows, block, n_k).run();
  }
}

// --- many rows ---

constexpr int64_t kManyRows = 128;  // of a chunk
constexpr int64_t kTotalStride = kMostPanels * kLanes;

// Rows of a group that meet panels together.
struct RowTile {
  const uint16_t* x;  // the first row at k = 0
  int64_t k_stride;   // values between two steps of 32 k
  int64_t row;        // of the product
  int64_t n_rows;

  RowTile(const ProductJob& job, int64_t first, int64_t end) : row(first) {
    const int64_t group = row / kTileRows * kTileRows, n_group = smaller(kTileRows, job.n_rows - group);
    x = static_cast<const uint16_t*>(job.operand) + group * padded_k(job.k) + (row - group) * kTileK;
    k_stride = n_group * kTileK;
    n_rows = smaller(group + n_group, end) - row;
  }
};

// A block of up to four panels: their weights as pairs, or the panels themselves.
struct WideBlock {
  const std::byte* w;
  int64_t w_stride;
  int64_t step_bytes;
  int64_t n_steps;
  int64_t ahead;  // bytes to the weights that are fetched; 0: those of the block have been
};

template <class W>
LEVIN_INLINE WideBlock widen_block(const ProductJob& job, int64_t panel, int64_t n_panels, int64_t block, int64_t ahead,
                                   std::byte* wide) {
  const PanelBlock b = panel_block<V, W>(job, panel, static_cast<int>(n_panels), block);
  const int64_t n_steps = ceil_div(b.n_k, kTileK);
  if (Widen<V, W>::kNone && b.n_k % kTileK == 0) return {b.w, b.w_stride, kTileBytes, n_steps, ahead};
  for (int64_t p = 0; p < n_panels; ++p) {
    for (int64_t s = 0; s < n_steps; ++s) {
      widen_tile<W>(b.w + p * b.w_stride + s * kStepBytes<W>, smaller(kTileK, b.n_k - s * kTileK),
                    wide + (s * kMostPanels + p) * kTileBytes, ahead);
    }
  }
  return {wide, kTileBytes, kMostPanels * kTileBytes, n_steps, 0};
}

template <Meanwhile kMeanwhile, int kPanels>
[[gnu::noinline]] void multiply_block(const WideBlock& b, const uint16_t* x, int64_t k_stride, float* sums) {
  zero_sums<kPanels>();
  for (int64_t s = 0; s < b.n_steps; ++s) {
    multiply_step<DotBf16<V>, kMeanwhile, kPanels>(
        {.x = x + s * k_stride, .w = b.w + s * b.step_bytes, .w_stride = b.w_stride, .ahead = b.ahead});
  }
  store_sums<kPanels>(sums);
}

template <int kPanels>
LEVIN_INLINE void multiply_block(const WideBlock& b, const uint16_t* x, int64_t k_stride, float* sums) {
  b.ahead != 0 ? multiply_block<Meanwhile::kFetch, kPanels>(b, x, k_stride, sums)
               : multiply_block<Meanwhile::kNothing, kPanels>(b, x, k_stride, sums);
}

LEVIN_INLINE void multiply_block_of(int64_t n_panels, const WideBlock& b, const uint16_t* x, int64_t k_stride,
                                    float* sums) {
  switch (n_panels) {
    case 1:
      return multiply_block<1>(b, x, k_stride, sums);
    case 2:
      return multiply_block<2>(b, x, k_stride, sums);
    case 3:
      return multiply_block<3>(b, x, k_stride, sums);
    default:
      return multiply_block<4>(b, x, k_stride, sums);
  }
}

// Totals [rows, 64] of a chunk with up to four panels, from and to the output: side by side here, while the same columns of
// the output's rows may lie so that they drive each other from the cache.
LEVIN_INLINE void load_totals(const float* out, int64_t stride, int64_t n_rows, int64_t n, float* totals) {
  for (int64_t r = 0; r < n_rows; ++r, out += stride, totals += kTotalStride) {
    for (int64_t i = 0; i < n; i += kLanes) {
      V::store(totals + i, V::load_n(out + i, static_cast<int>(smaller(kLanes, n - i))));
    }
  }
}
LEVIN_INLINE void store_totals(const float* totals, int64_t n_rows, int64_t n, float* out, int64_t stride) {
  for (int64_t r = 0; r < n_rows; ++r, out += stride, totals += kTotalStride) {
    for (int64_t i = 0; i < n; i += kLanes) {
      V::store_n(out + i, V::load(totals + i), static_cast<int>(smaller(kLanes, n - i)));
    }
  }
}

// A chunk of rows, whole groups or a part of one, over blocks begin .. end-1.
template <class W>
void product_chunk(const ProductJob& job, int64_t row_begin, int64_t row_end, int64_t begin, int64_t end) {
  alignas(64) std::byte wide[kMostPanels * kPromoteBlock / 2 * 64];
  alignas(64) float totals[kManyRows * kTotalStride];
  alignas(64) float sums[2][kMostPanels * kTileSums];
  constexpr int64_t block_bytes = kBlockSteps * kStepBytes<W>;  // of a panel
  const auto total_of = [&](int64_t row) { return totals + (row - row_begin) * kTotalStride; };
  for (int64_t panel = job.panel_begin; panel < job.panel_end; panel += kMostPanels) {
    const int64_t n_panels = smaller(kMostPanels, job.panel_end - panel);
    const int64_t n = smaller(n_panels * kLanes, job.n - panel * kLanes);
    float* out = job.out + row_begin * job.out_stride + panel * kLanes;
    if (begin > 0) load_totals(out, job.out_stride, row_end - row_begin, n, totals);
    BlockSums waiting;
    for (int64_t block = begin; block < end; ++block) {
      const int64_t ahead =
          block + 1 < end ? block_bytes : kMostPanels * job.panel_bytes - (block - begin) * block_bytes;
      WideBlock weights = widen_block<W>(job, panel, n_panels, block, ahead, wide);
      for (int64_t row = row_begin; row < row_end;) {
        const RowTile rows(job, row, row_end);
        float* to = waiting.sums == sums[0] ? sums[1] : sums[0];
        multiply_block_of(n_panels, weights, rows.x + block * kBlockSteps * rows.k_stride, rows.k_stride, to);
        promote(job, waiting, total_of(waiting.row), kTotalStride);
        waiting = {block, panel, n_panels, row, rows.n_rows, to};
        weights.ahead = 0;
        row += rows.n_rows;
      }
    }
    promote(job, waiting, total_of(waiting.row), kTotalStride);
    store_totals(totals, row_end - row_begin, n, out, job.out_stride);
  }
}

// The rest of a group that the job begins in, then whole groups, then a part of one.
template <class W>
void product_many_rows(const ProductJob& job) {
  const int64_t n_blocks = ceil_div(job.k, kPromoteBlock);
  for (int64_t row = job.row_begin; row < job.row_end;) {
    const int64_t n_left = job.row_end - row, in_group = kTileRows - row % kTileRows;
    const int64_t n = in_group < kTileRows ? smaller(in_group, n_left)
                      : n_left < kTileRows ? n_left
                                           : smaller(n_left / kTileRows * kTileRows, kManyRows);
    const TileShapes shapes(kMostPanels, 1, smaller(kTileRows, n));
    const int64_t chunk_blocks = larger(1, (int64_t{1024} << 10) / (n * kPromoteBlock * 2));
    for (int64_t begin = 0; begin < n_blocks; begin += chunk_blocks) {
      product_chunk<W>(job, row, row + n, begin, smaller(n_blocks, begin + chunk_blocks));
    }
    row += n;
  }
}

template <class W>
void product_rows_bf16(const ProductJob& job) {
  if (job.n_rows <= kRowGroup) return product_few_rows_bf16<W>(job);
  product_many_rows<W>(job);
}

void product(const ProductJob& job) {
  if (job.operand_dtype == DType::kF32) return product_f32_avx512_vbmi(job);
  if (job.w_dtype == DType::kBF16) return product_rows_bf16<DotBf16<V>>(job);
  if (job.w_dtype == DType::kMxfp4) return product_rows_bf16<DotMxfp4<V>>(job);
  if (job.w_dtype == DType::kNvfp4) return product_rows_bf16<DotNvfp4<V>>(job);
  product_rows_bf16<DotE4m3<V>>(job);
}

}  // namespace

MatmulKernels matmul_kernels_amx_bf16() {
  MatmulKernels kernels = round_kernels<V>();
  kernels.free_rows = kRowGroup;
  kernels.operand_dtype = [](DType x, DType w) { return bf16_operand_dtype(x, w); };
  kernels.prepare = prepare;
  kernels.product = product;
  return kernels;
}

}  // namespace levin::kernels
