// Rows against a tile of 64 columns: the inner loops that attention and indexer share. Lanes run along the tile's
// columns.
#pragma once

#include <cstdint>

#include "kernels/cpu/simd.h"
#include "tensor/dtype.h"

namespace levin::kernels {
namespace {

constexpr int64_t kTile = 64;       // columns of a tile: keys of a page, top-k indices of a softmax step
constexpr int64_t kDotBlock = 128;  // values per block of a dot (ops/matmul.h)

// How many rows and vectors of columns the registers hold: 24 sums of 32 registers on AVX-512, 12 of 16 on AVX2.
constexpr int kRowBlock = 6;
#if defined(__AVX512F__)
constexpr int kVectorBlock = 4;
#else
constexpr int kVectorBlock = 1;
#endif
constexpr int64_t kColumnBlock = 16 * kVectorBlock;

// out[r, c] (+)= sum over steps i, ascending, of rows[r, i] * tile[i, c], for kColumnBlock columns and up to kRowBlock
// rows.
struct TileProduct {
  const float* rows = nullptr;
  int64_t row_stride = 0;
  const float* tile = nullptr;
  int64_t tile_stride = 0;
  int64_t n_steps = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
  const float* factor = nullptr;  // [rows], kScaled only
};

// The product from zero; from zero and then added to out; or accumulated onto out * factor.
enum class Start { kZero, kZeroThenAdd, kScaled };

template <class V, int kRows, Start kStart>
[[gnu::always_inline]] inline void multiply_block(const TileProduct& a) {
  typename V::F32 sum[kRows][kVectorBlock];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectorBlock; ++v) {
      sum[r][v] = V::zero();
      if constexpr (kStart == Start::kScaled) {
        sum[r][v] = V::mul(V::load(a.out + r * a.out_stride + 16 * v), V::broadcast(a.factor[r]));
      }
    }
  }
  const float* tile = a.tile;
  const float* rows = a.rows;
  for (int64_t i = 0; i < a.n_steps; ++i, tile += a.tile_stride, ++rows) {
    typename V::F32 column[kVectorBlock];
#pragma GCC unroll 4
    for (int v = 0; v < kVectorBlock; ++v) column[v] = V::load(tile + 16 * v);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const typename V::F32 row = V::broadcast(rows[r * a.row_stride]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectorBlock; ++v) sum[r][v] = V::fma(row, column[v], sum[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectorBlock; ++v) {
      float* out = a.out + r * a.out_stride + 16 * v;
      V::store(out, kStart == Start::kZeroThenAdd ? V::add(V::load(out), sum[r][v]) : sum[r][v]);
    }
  }
}

// The same for n_rows <= kRowBlock.
template <class V, Start kStart, int kRows = kRowBlock>
inline void multiply_rows(const TileProduct& a, int64_t n_rows) {
  if constexpr (kRows > 1) {
    if (n_rows < kRows) return multiply_rows<V, kStart, kRows - 1>(a, n_rows);
  }
  multiply_block<V, kRows, kStart>(a);
}

// Block `begin` of the dots of some rows with all columns of a tile: out[r, 0..63] = or += the sum over steps begin ..
// begin+127.
template <class V>
inline void dot_block(const TileProduct& a, int64_t begin, int64_t n_rows) {
  TileProduct block = a;
  block.rows += begin;
  block.n_steps = a.n_steps - begin < kDotBlock ? a.n_steps - begin : kDotBlock;
  for (int64_t column = 0; column < kTile; column += kColumnBlock) {
    block.tile = a.tile + begin * a.tile_stride + column;
    block.out = a.out + column;
    if (begin == 0) {
      multiply_rows<V, Start::kZero>(block, n_rows);
    } else {
      multiply_rows<V, Start::kZeroThenAdd>(block, n_rows);
    }
  }
}

// 16 rows of 16 values side by side: tile[i * stride + j] = row[j][i], for i = 0 .. n-1 and j = 0 .. 15. All 16 values
// of a row are read.
template <class V>
inline void transpose_block(const float* const (&row)[16], int64_t n, float* tile, int64_t stride = kTile) {
#if defined(__AVX512F__)
  // Four columns of four rows in each 128-bit part: the parts are brought together by loads, so that only shuffles
  // inside them are left.
  for (int64_t i = 0; i < n; i += 4) {
    __m512 z[4];
    for (int j = 0; j < 4; ++j) {
      z[j] = _mm512_castps128_ps512(_mm_loadu_ps(row[j] + i));
      z[j] = _mm512_insertf32x4(z[j], _mm_loadu_ps(row[4 + j] + i), 1);
      z[j] = _mm512_insertf32x4(z[j], _mm_loadu_ps(row[8 + j] + i), 2);
      z[j] = _mm512_insertf32x4(z[j], _mm_loadu_ps(row[12 + j] + i), 3);
    }
    const __m512 low01 = _mm512_unpacklo_ps(z[0], z[1]), low23 = _mm512_unpacklo_ps(z[2], z[3]);
    const __m512 high01 = _mm512_unpackhi_ps(z[0], z[1]), high23 = _mm512_unpackhi_ps(z[2], z[3]);
    const __m512 column[4] = {_mm512_shuffle_ps(low01, low23, 0x44), _mm512_shuffle_ps(low01, low23, 0xEE),
                              _mm512_shuffle_ps(high01, high23, 0x44), _mm512_shuffle_ps(high01, high23, 0xEE)};
    for (int64_t k = 0; k < 4 && i + k < n; ++k) V::store(tile + (i + k) * stride, column[k]);
  }
#else
  typename V::F32 block[16];
  for (int j = 0; j < 16; ++j) block[j] = V::load(row[j]);
  V::transpose(block);
  for (int64_t i = 0; i < n; ++i) V::store(tile + i * stride, block[i]);
#endif
}

inline int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// 16 values of type `dtype` at p as f32, the first n of them there, zero beyond.
template <class V>
[[gnu::always_inline]] inline typename V::F32 load_values(const void* p, DType dtype, int64_t n) {
  if (dtype == DType::kF32) {
    const float* values = static_cast<const float*>(p);
    return n >= 16 ? V::load(values) : V::load_n(values, static_cast<int>(n));
  }
  if (dtype == DType::kBF16) {
    const uint16_t* values = static_cast<const uint16_t*>(p);
    if (n >= 16) return V::load_bf16(values);
    uint16_t some[16] = {};
    for (int64_t i = 0; i < n; ++i) some[i] = values[i];
    return V::load_bf16(some);
  }
  const uint8_t* values = static_cast<const uint8_t*>(p);
  if (n >= 16) return V::load_e4m3(values);
  uint8_t some[16] = {};
  for (int64_t i = 0; i < n; ++i) some[i] = values[i];
  return V::load_e4m3(some);
}

inline int64_t bytes_of(DType dtype) { return dtype == DType::kF32 ? 4 : dtype == DType::kBF16 ? 2 : 1; }

// d values at p as f32; out has room for d rounded up to 16.
template <class V>
inline void widen(const void* p, DType dtype, int64_t d, float* out) {
  for (int64_t i = 0; i < d; i += 16) {
    V::store(out + i, load_values<V>(static_cast<const char*>(p) + i * bytes_of(dtype), dtype, d - i));
  }
}

}  // namespace
}  // namespace levin::kernels
