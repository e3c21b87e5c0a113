// matmul.h for any vector type of simd.h; the tree is in ops/matmul.h.
//
// The innermost unit is a tile: R rows of a group against P panels over one block of 128 k, its sums in registers,
// folded into `out` at the end of the block. Every order of tiles that takes a row's blocks in ascending order gives
// the same bits, so the order is free:
//
//   few rows    panels, then blocks: each weight is loaded once, straight from memory, and used for all rows, which are
//               read where they lie
//   many rows   chunks of rows, then of k (so that their x stays in the second cache), then panels, blocks
//               and groups; weights of a narrower type are widened once for all groups into the first cache
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/matmul.h"
#include "kernels/cpu/matmul_steps_simd.h"
#include "kernels/cpu/simd.h"

namespace levin::kernels {
namespace {

constexpr int64_t kChunkRows = 256;                  // rows whose x is cached together
constexpr int64_t kChunkBytes = int64_t{128} << 10;  // of x between two passes over the panels
constexpr int64_t kAheadBytes = 2048;                // weights are fetched so far ahead; 512 to 4096 measured

LEVIN_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
LEVIN_INLINE int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

// --- tiles ---

struct TileArgs {
  const void* const* plain_rows;  // the tile's first
  int64_t first_k;                // of the block
  const void* grouped;            // or else the tile's first row at the block's first k
  int64_t group_rows;
  const std::byte* w;  // the tile's first panel at the block's first k
  int64_t w_stride;    // bytes between panels
  int64_t n_k;         // of the block: at most kPromoteBlock
  const float* scale;  // [rows][kMaxPanels]
  float* out;          // the tile's first row and panel
  int64_t out_stride;
  int64_t n_last;  // outputs of the tile's last panel
  int64_t ahead;   // bytes between a weight in use and the one that is fetched
  bool first;      // the total so far is zero
};

constexpr int kMaxPanels = 4;

template <int64_t kBytes>
LEVIN_INLINE void prefetch(const std::byte* p) {
  LEVIN_UNROLL
  for (int64_t line = 0; line < kBytes; line += 64) __builtin_prefetch(p + line);
}

// The two forms of an operand, for R rows of a tile.
struct Plain {
  static constexpr bool kFullTiles = false;
  template <class Element, int R>
  LEVIN_INLINE PlainRows<Element, R> rows(const TileArgs& t) {
    PlainRows<Element, R> rows{};
    rows.first = t.first_k;
    for (int r = 0; r < R; ++r) rows.x[r] = static_cast<const Element*>(t.plain_rows[r]);
    return rows;
  }
};
struct Grouped {
  static constexpr bool kFullTiles = true;
  template <class Element, int R>
  LEVIN_INLINE GroupedRows<Element> rows(const TileArgs& t) {
    return {static_cast<const Element*>(t.grouped), t.group_rows};
  }
};

template <class V, class W, class Form, int R, int P>
[[gnu::noinline]] void run_tile(const TileArgs& args) {
  const TileArgs t = args;  // a copy, which stores to `out` cannot change
  using F32 = typename V::F32;
  F32 acc[R][P];
  LEVIN_UNROLL
  for (int r = 0; r < R; ++r) {
    LEVIN_UNROLL
    for (int p = 0; p < P; ++p) acc[r][p] = V::zero();
  }
  const std::byte* w = t.w;
  const int64_t w_stride = t.w_stride;
  auto x = Form::template rows<typename W::Element, R>(t);
  for (int64_t k = 0; k + W::kStep <= t.n_k; k += W::kStep) {
    LEVIN_UNROLL
    for (int p = 0; p < P; ++p) prefetch<W::kStepBytes>(w + p * w_stride + t.ahead);
    W::template step<R, P>(w, w_stride, x, acc);
    w += W::kStepBytes;
    x.advance(W::kStep);
  }
  if constexpr (W::kStep > 1) {
    if (t.n_k % W::kStep != 0) W::template rest<R, P>(w, w_stride, x, t.n_k % W::kStep, acc);
  }
  // One path for all of a tile: at first nothing is loaded to add to, and of the last panel perhaps not all lanes are stored.
  const int n_last = static_cast<int>(t.n_last);
  LEVIN_UNROLL
  for (int r = 0; r < R; ++r) {
    LEVIN_UNROLL
    for (int p = 0; p < P; ++p) {
      float* out = t.out + r * t.out_stride + p * kLanes;
      const int n = p + 1 < P ? int{kLanes} : n_last;
      const F32 total = V::load_n(out, t.first ? 0 : n);
      V::store_n(out, V::fma(acc[r][p], V::broadcast(t.scale[r * kMaxPanels + p]), total), n);
    }
  }
}

// How many rows and panels a tile takes, so that its sums and one step of weights fit the registers.
template <class V>
struct TileShape {  // 32 registers
  static constexpr int kMaxRows = 8;
  static constexpr int panels(int n_rows) { return n_rows <= 4 ? 4 : 3; }
};
#if !defined(__AVX512F__)
template <>
struct TileShape<Avx2> {  // 16 registers, two to a vector
  static constexpr int kMaxRows = 4;
  static constexpr int panels(int n_rows) { return n_rows <= 2 ? 2 : 1; }
};
#endif

// Where a panel brings scales, they take registers too: tiles that fill all of them have a panel less. Tiles of a group all have the
// panels of one that is full.
template <class V, class W, class Form>
constexpr int tile_panels(int n_rows) {
  const int n = TileShape<V>::panels(Form::kFullTiles ? TileShape<V>::kMaxRows : n_rows);
  constexpr bool kHasScales = W::kStep > kWordK;
  return kHasScales && (n == 2 || n == 3) ? n - 1 : n;
}

template <class V, class W, class Form, int R>
LEVIN_INLINE void run_tile_of(int n_panels, const TileArgs& t) {
  constexpr int kMost = tile_panels<V, W, Form>(R);
  if constexpr (kMost == 4) {
    if (n_panels == 4) return run_tile<V, W, Form, R, 4>(t);
  }
  if constexpr (kMost >= 3) {
    if (n_panels == 3) return run_tile<V, W, Form, R, 3>(t);
  }
  if constexpr (kMost >= 2) {
    if (n_panels == 2) return run_tile<V, W, Form, R, 2>(t);
  }
  run_tile<V, W, Form, R, 1>(t);
}

template <class V, class W, class Form>
void run_tile_rows(int n_rows, int n_panels, const TileArgs& t) {
  switch (n_rows) {
    case 1:
      return run_tile_of<V, W, Form, 1>(n_panels, t);
    case 2:
      return run_tile_of<V, W, Form, 2>(n_panels, t);
    case 3:
      return run_tile_of<V, W, Form, 3>(n_panels, t);
    case 4:
      return run_tile_of<V, W, Form, 4>(n_panels, t);
    default:
      break;
  }
  if constexpr (TileShape<V>::kMaxRows == 8) {
    switch (n_rows) {
      case 5:
        return run_tile_of<V, W, Form, 5>(n_panels, t);
      case 6:
        return run_tile_of<V, W, Form, 6>(n_panels, t);
      case 7:
        return run_tile_of<V, W, Form, 7>(n_panels, t);
      default:
        return run_tile_of<V, W, Form, 8>(n_panels, t);
    }
  }
}

// --- the order of tiles ---

// Part of a product: some panels, one block of k, wherever their weights now lie.
struct PanelBlock {
  int64_t panel;  // the first
  int n_panels;
  int64_t block;  // k = block * kPromoteBlock ...
  int64_t n_k;
  const std::byte* w;
  int64_t w_stride;
  int64_t ahead;
};

LEVIN_INLINE int64_t even_k(const ProductJob& job) {
  return job.operand_dtype == DType::kBF16 ? (job.k + 1) / 2 * 2 : job.k;
}

// Rows row .. row+n_rows-1, of one group, against a panel block.
template <class V, class W, class Form>
LEVIN_INLINE void run_rows(const ProductJob& job, const PanelBlock& b, int64_t row, int64_t n_rows) {
  const int64_t n_blocks = (job.k + kPromoteBlock - 1) / kPromoteBlock;
  float scale[kRowGroup * kMaxPanels];
  for (int64_t r = 0; r < n_rows; ++r) {
    const int64_t scale_row = job.x_scale_rows != nullptr ? job.x_scale_rows[row + r] : row + r;
    const float sx = job.x_scale != nullptr ? job.x_scale[scale_row * job.x_scale_stride + b.block] : 1.0f;
    for (int p = 0; p < b.n_panels; ++p) {
      const int64_t weight_block = (b.panel + p) / (kPromoteBlock / kLanes) * n_blocks + b.block;
      scale[r * kMaxPanels + p] = job.w_scales != nullptr ? sx * job.w_scales[weight_block] : sx;
    }
  }
  const int64_t group = row / kRowGroup * kRowGroup;
  const int64_t group_rows = smaller(kRowGroup, job.n_rows - group);
  constexpr int64_t side = GroupedRows<typename W::Element>::kSide;
  const auto* operand = static_cast<const typename W::Element*>(job.operand);
  const int64_t first = group * even_k(job) + b.block * kPromoteBlock * group_rows + side * (row - group);
  const TileArgs t = {.plain_rows = job.plain_rows.data() + (row - group),
                      .first_k = b.block * kPromoteBlock,
                      .grouped = operand == nullptr ? nullptr : operand + first,
                      .group_rows = group_rows,
                      .w = b.w,
                      .w_stride = b.w_stride,
                      .n_k = b.n_k,
                      .scale = scale,
                      .out = job.out + row * job.out_stride + b.panel * kLanes,
                      .out_stride = job.out_stride,
                      .n_last = smaller(kLanes, job.n - (b.panel + b.n_panels - 1) * kLanes),
                      .ahead = b.ahead,
                      .first = b.block == 0};
  run_tile_rows<V, W, Form>(static_cast<int>(n_rows), b.n_panels, t);
}

template <class V, class W>
LEVIN_INLINE PanelBlock panel_block(const ProductJob& job, int64_t panel, int n_panels, int64_t block) {
  const int64_t k = block * kPromoteBlock;
  return {.panel = panel,
          .n_panels = n_panels,
          .block = block,
          .n_k = smaller(kPromoteBlock, job.k - k),
          .w = job.panels + panel * job.panel_bytes + k / W::kStep * W::kStepBytes,
          .w_stride = job.panel_bytes,
          .ahead = kAheadBytes};
}

template <class V, class W>
void product_few_rows(const ProductJob& job) {
  constexpr int64_t kMaxRows = TileShape<V>::kMaxRows;
  const int64_t n_rows = job.row_end - job.row_begin;
  const int64_t n_blocks = (job.k + kPromoteBlock - 1) / kPromoteBlock;
  const int64_t max_panels = tile_panels<V, W, Plain>(static_cast<int>(smaller(n_rows, kMaxRows)));
  constexpr int64_t next_tile = kPromoteBlock / W::kStep * W::kStepBytes;  // bytes, within a panel
  for (int64_t panel = job.panel_begin; panel < job.panel_end; panel += max_panels) {
    const int n_panels = static_cast<int>(smaller(max_panels, job.panel_end - panel));
    for (int64_t block = 0; block < n_blocks; ++block) {
      PanelBlock b = panel_block<V, W>(job, panel, n_panels, block);
      b.ahead = next_tile;
      if (block + 1 == n_blocks) {
        b.ahead = panel + max_panels < job.panel_end ? max_panels * job.panel_bytes - block * next_tile : 0;
      }
      for (int64_t r = 0; r < n_rows; r += kMaxRows) {
        run_rows<V, W, Plain>(job, b, job.row_begin + r, smaller(kMaxRows, n_rows - r));
      }
    }
  }
}

// Weights of one block of k as the type of the operand: [panels][kPromoteBlock / 2][16][2] or [panels][kPromoteBlock][16].
template <class V, class W>
struct Widen;

template <class V, class W>
void product_many_rows_chunk(const ProductJob& job, int64_t row_begin, int64_t row_end) {
  using Wide = typename Widen<V, W>::Wide;
  constexpr int64_t kMaxRows = TileShape<V>::kMaxRows;
  constexpr int64_t kTilePanels = TileShape<V>::panels(TileShape<V>::kMaxRows);
  alignas(64) std::byte wide[kTilePanels * kPromoteBlock * kLanes * sizeof(typename W::Element)];
  constexpr int64_t kWideStride = kPromoteBlock * kLanes * int64_t{sizeof(typename W::Element)};

  const int64_t n_blocks = (job.k + kPromoteBlock - 1) / kPromoteBlock;
  const int64_t block_bytes = (row_end - row_begin) * kPromoteBlock * int64_t{sizeof(typename W::Element)};
  const int64_t chunk_blocks = larger(1, kChunkBytes / block_bytes);
  for (int64_t begin = 0; begin < n_blocks; begin += chunk_blocks) {
    const int64_t end = smaller(n_blocks, begin + chunk_blocks);
    for (int64_t panel = job.panel_begin; panel < job.panel_end; panel += kTilePanels) {
      const int n_panels = static_cast<int>(smaller(kTilePanels, job.panel_end - panel));
      for (int64_t block = begin; block < end; ++block) {
        PanelBlock b = panel_block<V, W>(job, panel, n_panels, block);
        if constexpr (!Widen<V, W>::kNone) {
          for (int p = 0; p < n_panels; ++p) Widen<V, W>::run(b.w + p * b.w_stride, b.n_k, wide + p * kWideStride);
          b.w = wide;
          b.w_stride = kWideStride;
          b.ahead = 0;
        }
        for (int64_t row = row_begin; row < row_end; row += kMaxRows) {
          run_rows<V, Wide, Grouped>(job, b, row, smaller(kMaxRows, row_end - row));
        }
      }
    }
  }
}

template <class V, class W>
void product_rows(const ProductJob& job) {
  if (job.n_rows <= kRowGroup) return product_few_rows<V, W>(job);
  for (int64_t row = job.row_begin; row < job.row_end; row += kChunkRows) {
    product_many_rows_chunk<V, W>(job, row, smaller(row + kChunkRows, job.row_end));
  }
}

template <class V>
struct Widen<V, FmaF32<V>> {
  using Wide = FmaF32<V>;
  static constexpr bool kNone = true;
};
template <class V>
struct Widen<V, FmaE4m3<V>> {
  using Wide = FmaF32<V>;
  static constexpr bool kNone = false;
  LEVIN_INLINE void run(const std::byte* w, int64_t n_k, std::byte* out) {
    auto* to = reinterpret_cast<float*>(out);
    for (int64_t begin = 0; begin < n_k; begin += 4, w += kFoursBytes, to += 4 * kLanes) {
      __builtin_prefetch(w + kAheadBytes);
      typename V::F32 value[4];
      V::load_e4m3_fours(reinterpret_cast<const uint8_t*>(w), value);
      for (int k = 0; k < 4; ++k) V::store(to + k * kLanes, value[k]);
    }
  }
};
template <class V, class Pair>
struct Widen<V, FmaPairs<V, Pair>> {
  using Wide = FmaF32<V>;
  static constexpr bool kNone = false;
  LEVIN_INLINE void run(const std::byte* w, int64_t n_k, std::byte* out) {
    auto* to = reinterpret_cast<float*>(out);
    for (int64_t k = 0; k < n_k; k += 2, w += Pair::kBytes, to += 2 * kLanes) {
      __builtin_prefetch(w + kAheadBytes);
      typename V::F32 even, odd;
      Pair::load(w, even, odd);
      V::store(to, even);
      V::store(to + kLanes, odd);
    }
  }
};

// Whole words, which `out` has room for.
template <class V, class Group>
struct Widen<V, FmaFp4<V, Group>> {
  using Wide = FmaF32<V>;
  static constexpr bool kNone = false;
  LEVIN_INLINE void run(const std::byte* w, int64_t n_k, std::byte* out) {
    auto* to = reinterpret_cast<float*>(out);
    for (int64_t begin = 0; begin < n_k; begin += Group::kK, w += Group::kBytes) {
      prefetch<Group::kBytes>(w + kAheadBytes);
      const typename V::F32 scale = Group::scales(w);
      for (int64_t k = 0; k < smaller(Group::kK, n_k - begin); k += kWordK, to += kWordK * kLanes) {
        const typename V::I32 word = load_words<V>(w, k);
        store_pair<0>(word, scale, to);
        store_pair<1>(word, scale, to);
        store_pair<2>(word, scale, to);
        store_pair<3>(word, scale, to);
      }
    }
  }

 private:
  template <int kPair>
  LEVIN_INLINE void store_pair(typename V::I32 word, typename V::F32 scale, float* to) {
    typename V::F32 even, odd;
    FmaFp4<V, Group>::template widen<kPair>(word, scale, even, odd);
    V::store(to + 2 * kPair * kLanes, even);
    V::store(to + (2 * kPair + 1) * kLanes, odd);
  }
};

template <class V>
void product_f32(const ProductJob& job) {
  switch (job.w_dtype) {
    case DType::kF32:
      return product_rows<V, FmaF32<V>>(job);
    case DType::kBF16:
      return product_rows<V, FmaBf16<V>>(job);
    case DType::kMxfp4:
      return product_rows<V, FmaMxfp4<V>>(job);
    case DType::kNvfp4:
      return product_rows<V, FmaNvfp4<V>>(job);
    default:
      return product_rows<V, FmaE4m3<V>>(job);
  }
}

// --- the operand ---

// 16 values of a row from column k; those beyond n_k are zero.
template <class V>
LEVIN_INLINE typename V::F32 load_as_f32(const void* row, DType dtype, int64_t k, int64_t n_k) {
  const bool whole = k + kLanes <= n_k;
  const int64_t n = smaller(kLanes, n_k - k);
  if (dtype == DType::kF32) {
    const float* p = static_cast<const float*>(row) + k;
    return whole ? V::load(p) : V::load_n(p, static_cast<int>(n));
  }
  if (dtype == DType::kBF16) {
    const uint16_t* p = static_cast<const uint16_t*>(row) + k;
    if (whole) return V::load_bf16(p);
    uint16_t padded[kLanes] = {};
    for (int64_t i = 0; i < n; ++i) padded[i] = p[i];
    return V::load_bf16(padded);
  }
  const uint8_t* p = static_cast<const uint8_t*>(row) + k;
  if (whole) return V::load_e4m3(p);
  uint8_t padded[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) padded[i] = p[i];
  return V::load_e4m3(padded);
}

LEVIN_INLINE const std::byte* source_row(const PrepareJob& job, int64_t row, int64_t element_bytes) {
  const int64_t source = job.rows != nullptr ? job.rows[row] : row;
  return static_cast<const std::byte*>(job.x) + source * job.x_stride * element_bytes;
}

// Lays 16 columns of the rows of a group, a vector for each row, side by side: four rows at a time, then the rest.
template <class V>
LEVIN_INLINE void store_columns(typename V::F32 (&rows)[kRowGroup], int64_t n_columns, int64_t n_rows, float* out) {
  if (n_rows == 1) return V::store_n(out, rows[0], static_cast<int>(n_columns));
  for (int64_t first = 0; first < n_rows; first += 4) {
    typename V::F32 four[4] = {rows[first], rows[first + 1], rows[first + 2], rows[first + 3]};
    V::interleave(four);
    if (n_rows == 4 && n_columns == kLanes) {
      for (int64_t i = 0; i < 4; ++i) V::store(out + i * kLanes, four[i]);
      return;
    }
    alignas(64) float columns[kLanes * 4];
    for (int64_t i = 0; i < 4; ++i) V::store(columns + i * kLanes, four[i]);
    const int64_t n = smaller(4, n_rows - first);
    for (int64_t i = 0; i < n_columns; ++i) {
      float* to = out + i * n_rows + first;
      if (n == 4) {
        __builtin_memcpy(to, columns + 4 * i, 16);
      } else {
        for (int64_t r = 0; r < n; ++r) to[r] = columns[4 * i + r];
      }
    }
  }
}

template <class V>
void prepare_f32(const PrepareJob& job) {
  const int64_t bytes = job.x_dtype == DType::kF32 ? 4 : job.x_dtype == DType::kBF16 ? 2 : 1;
  for (int64_t group = job.row_begin; group < job.row_end; group += kRowGroup) {
    const int64_t n_rows = smaller(kRowGroup, job.n_rows - group);
    float* out = static_cast<float*>(job.operand) + group * job.k;
    for (int64_t k = 0; k < job.k; k += kLanes) {
      typename V::F32 rows[kRowGroup];
      for (int64_t r = 0; r < kRowGroup; ++r) {
        rows[r] = r < n_rows ? load_as_f32<V>(source_row(job, group + r, bytes), job.x_dtype, k, job.k) : V::zero();
      }
      store_columns<V>(rows, smaller(kLanes, job.k - k), n_rows, out + k * n_rows);
    }
  }
}

}  // namespace
}  // namespace levin::kernels
