// Rows against a tile of 64 columns: the inner loops that attention and indexer share. Lanes run along the tile's
// columns.
//
//   tile   [n_steps][width]   units side by side; a unit is what one step of the reduction takes from one column
//   rows   [n_rows][stride]   units, broadcast
//
// FmaDot has one f32 per unit and one fused multiply-add per step; PairDot two bf16 and the bf16 dot instruction.
#pragma once

#include <cstdint>

#include "kernels/cpu/simd.h"

namespace levin::kernels {
namespace {

constexpr int64_t kTile = 64;       // columns of a tile: keys of a page, picks of a softmax step
constexpr int64_t kDotBlock = 128;  // values per block of a dot (ops/matmul.h)

template <class Vector>
struct FmaDot {
  using V = Vector;
  using Unit = float;
  using Units = typename V::F32;
  static constexpr int64_t kValues = 1;  // per unit
  [[gnu::always_inline]] static Units load(const Unit* p) { return V::load(p); }
  [[gnu::always_inline]] static Units broadcast(const Unit* p) { return V::broadcast(*p); }
  [[gnu::always_inline]] static typename V::F32 step(Units a, Units b, typename V::F32 sum) {
    return V::fma(a, b, sum);
  }
};

#if defined(__AVX512BF16__)
struct PairDot {
  using V = Avx512Bf16;
  using Unit = int32_t;
  using Units = V::Bf16;
  static constexpr int64_t kValues = 2;
  [[gnu::always_inline]] static Units load(const Unit* p) { return V::load_i(p); }
  [[gnu::always_inline]] static Units broadcast(const Unit* p) { return V::broadcast_i(*p); }
  [[gnu::always_inline]] static V::F32 step(Units a, Units b, V::F32 sum) { return V::dot(a, b, sum); }
};
#endif

// How many rows and vectors of columns the registers hold: 24 sums of 32 registers on AVX-512, 12 of 16 on AVX2.
constexpr int kRowBlock = 6;
#if defined(__AVX512F__)
constexpr int kVectorBlock = 4;
#else
constexpr int kVectorBlock = 1;
#endif
constexpr int64_t kColumnBlock = 16 * kVectorBlock;

template <class D>
struct TileProduct {
  const typename D::Unit* rows = nullptr;
  int64_t row_stride = 0;  // units
  const typename D::Unit* tile = nullptr;
  int64_t tile_stride = 0;  // units between steps
  int64_t n_steps = 0;
  float* out = nullptr;  // [rows, kColumnBlock]
  int64_t out_stride = 0;
};

enum class Start { kZero, kZeroThenAdd, kScaled };

// out = product, out += product, or out = product accumulated onto out * factor[row].
template <class D, int kRows, Start kStart>
[[gnu::always_inline]] inline void multiply_block(const TileProduct<D>& a, const float* factor) {
  using V = typename D::V;
  constexpr int kVectors = kVectorBlock;
  typename V::F32 sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = V::zero();
      if constexpr (kStart == Start::kScaled) {
        sum[r][v] = V::mul(V::load(a.out + r * a.out_stride + 16 * v), V::broadcast(factor[r]));
      }
    }
  }
  const typename D::Unit* tile = a.tile;
  const typename D::Unit* rows = a.rows;
  for (int64_t i = 0; i < a.n_steps; ++i, tile += a.tile_stride, ++rows) {
    typename D::Units column[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) column[v] = D::load(tile + 16 * v);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const typename D::Units row = D::broadcast(rows + r * a.row_stride);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] = D::step(row, column[v], sum[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      float* out = a.out + r * a.out_stride + 16 * v;
      V::store(out, kStart == Start::kZeroThenAdd ? V::add(V::load(out), sum[r][v]) : sum[r][v]);
    }
  }
}

// The same for n_rows <= kRowBlock.
template <class D, Start kStart, int kRows = kRowBlock>
inline void multiply_rows(const TileProduct<D>& a, int64_t n_rows, const float* factor) {
  if constexpr (kRows > 1) {
    if (n_rows < kRows) return multiply_rows<D, kStart, kRows - 1>(a, n_rows, factor);
  }
  multiply_block<D, kRows, kStart>(a, factor);
}

// out[r, 0..63] = dot of row r with each of the tile's columns, n_rows <= kRowBlock, in blocks of 128 values.
template <class D>
inline void dot_rows(TileProduct<D> a, int64_t n_rows) {
  constexpr int64_t kSteps = kDotBlock / D::kValues;
  const int64_t n_steps = a.n_steps;
  for (int64_t column = 0; column < kTile; column += kColumnBlock) {
    TileProduct<D> block = a;
    block.out += column;
    for (int64_t begin = 0; begin < n_steps; begin += kSteps) {
      block.rows = a.rows + begin;
      block.tile = a.tile + begin * a.tile_stride + column;
      block.n_steps = n_steps - begin < kSteps ? n_steps - begin : kSteps;
      if (begin == 0) {
        multiply_rows<D, Start::kZero>(block, n_rows, nullptr);
      } else {
        multiply_rows<D, Start::kZeroThenAdd>(block, n_rows, nullptr);
      }
    }
  }
}

// Columns of 16 rows side by side: tile[i][j] = row[j][i] for j = 0..15 and i = 0..n_units-1.
template <class D>
inline void transpose_units(const void* const (&row)[16], int64_t n_units, typename D::Unit* tile) {
  using V = typename D::V;
  for (int64_t i = 0; i < n_units; i += 16) {
    const int n = n_units - i < 16 ? static_cast<int>(n_units - i) : 16;
    typename V::F32 block[16];
    for (int j = 0; j < 16; ++j) {
      const float* p = static_cast<const float*>(row[j]) + i;
      block[j] = n == 16 ? V::load(p) : V::load_n(p, n);
    }
    V::transpose(block);
    for (int k = 0; k < n; ++k) V::store(reinterpret_cast<float*>(tile) + (i + k) * kTile, block[k]);
  }
}

// 16 values from p, the first n of them there, zero beyond.
template <class V>
[[gnu::always_inline]] inline typename V::F32 load_f32(const void* p, int64_t n) {
  return n >= 16 ? V::load(static_cast<const float*>(p)) : V::load_n(static_cast<const float*>(p), static_cast<int>(n));
}
template <class V>
[[gnu::always_inline]] inline typename V::F32 load_bf16(const void* p, int64_t n) {
  if (n >= 16) return V::load_bf16(static_cast<const uint16_t*>(p));
  uint16_t some[16] = {};
  for (int64_t i = 0; i < n; ++i) some[i] = static_cast<const uint16_t*>(p)[i];
  return V::load_bf16(some);
}
template <class V>
[[gnu::always_inline]] inline typename V::F32 load_e4m3(const void* p, int64_t n) {
  if (n >= 16) return V::load_e4m3(static_cast<const uint8_t*>(p));
  uint8_t some[16] = {};
  for (int64_t i = 0; i < n; ++i) some[i] = static_cast<const uint8_t*>(p)[i];
  return V::load_e4m3(some);
}

// Stores 16 values as units: 16 f32, or 16 bf16 (8 units), which the values must be exactly.
template <class D>
[[gnu::always_inline]] inline void store_units(void* units, int64_t value, typename D::V::F32 x) {
  if constexpr (D::kValues == 1) {
    D::V::store(static_cast<float*>(units) + value, x);
  } else {
    D::V::store_bf16(static_cast<uint16_t*>(units) + value, x);
  }
}

// Units of a row of d values, and the same with room for stores of 16 values at any place.
template <class D>
constexpr int64_t units_of(int64_t d) {
  return (d + D::kValues - 1) / D::kValues;
}
template <class D>
constexpr int64_t padded_units_of(int64_t d) {
  return (units_of<D>(d) + 31) / 16 * 16;
}

}  // namespace
}  // namespace levin::kernels
