// Rows of bf16 pairs against a tile of 64 columns of pairs, by the bf16 dot instruction: dot_tile.h for the avx512-bf16
// set. Pairs are moved about as floats, whose values nobody looks at.
#pragma once

#include "kernels/cpu/dot_tile.h"

namespace levin::kernels {
namespace {

using V = Avx512Bf16;

constexpr int kTileVectors = kTile / 16;
constexpr int64_t kPairBlock = kDotBlock / 2;  // pairs per block of a dot

// out[r, 0..63] (+)= the sum over pairs begin .. end-1 of row r's pairs with those of the tile, for kRows rows.
struct PairProduct {
  const float* rows = nullptr;
  int64_t row_stride = 0;
  const float* tile = nullptr;
  int64_t begin = 0;
  int64_t end = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
  const float* factor = nullptr;  // [rows], kScaled only
};

template <int kRows, Start kStart>
[[gnu::always_inline]] inline void multiply_pairs_block(const PairProduct& a) {
  V::F32 sum[kRows][kTileVectors];
  LEVIN_UNROLL
  for (int r = 0; r < kRows; ++r) {
    LEVIN_UNROLL
    for (int v = 0; v < kTileVectors; ++v) {
      sum[r][v] = V::zero();
      if constexpr (kStart == Start::kScaled) {
        sum[r][v] = V::mul(V::load(a.out + r * a.out_stride + 16 * v), V::broadcast(a.factor[r]));
      }
    }
  }
  for (int64_t i = a.begin; i < a.end; ++i) {
    V::Bf16 column[kTileVectors];
    LEVIN_UNROLL
    for (int v = 0; v < kTileVectors; ++v) column[v] = _mm512_load_si512(a.tile + i * kTile + 16 * v);
    LEVIN_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const V::Bf16 row = V::broadcast_pair(reinterpret_cast<const uint16_t*>(a.rows + r * a.row_stride + i));
      LEVIN_UNROLL
      for (int v = 0; v < kTileVectors; ++v) sum[r][v] = V::dot(row, column[v], sum[r][v]);
    }
  }
  LEVIN_UNROLL
  for (int r = 0; r < kRows; ++r) {
    LEVIN_UNROLL
    for (int v = 0; v < kTileVectors; ++v) {
      float* out = a.out + r * a.out_stride + 16 * v;
      V::store(out, kStart == Start::kZeroThenAdd ? V::add(V::load(out), sum[r][v]) : sum[r][v]);
    }
  }
}

// The same for n_rows <= kRowBlock.
template <Start kStart, int kRows = kRowBlock>
inline void multiply_pairs(const PairProduct& a, int64_t n_rows) {
  if constexpr (kRows > 1) {
    if (n_rows < kRows) return multiply_pairs<kStart, kRows - 1>(a, n_rows);
  }
  multiply_pairs_block<kRows, kStart>(a);
}

// Block `begin` of the dots of some rows with all columns of a tile.
inline void dot_pairs_block(const PairProduct& a, int64_t begin, int64_t n_pairs, int64_t n_rows) {
  PairProduct block = a;
  block.begin = begin;
  block.end = begin + kPairBlock < n_pairs ? begin + kPairBlock : n_pairs;
  begin == 0 ? multiply_pairs<Start::kZero>(block, n_rows) : multiply_pairs<Start::kZeroThenAdd>(block, n_rows);
}

// Pairs of 16 rows side by side: tile[i * stride + j] = row[j][i], for i = 0 .. n-1 and j = 0 .. 15. Nothing beyond n is
// read.
inline void transpose_pairs(const float* const (&row)[16], int64_t n, float* tile, int64_t stride = kTile) {
  const int64_t n_whole = n / 4 * 4;  // what transpose_block reads at once
  transpose_block<V>(row, n_whole, tile, stride);
  for (int64_t i = n_whole; i < n; ++i) {
    for (int64_t j = 0; j < 16; ++j) __builtin_memcpy(tile + i * stride + j, row[j] + i, 4);
  }
}

}  // namespace
}  // namespace levin::kernels
