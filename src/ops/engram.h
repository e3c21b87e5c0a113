// The n-gram memory of DeepSeek-V4.1 (Engram): rows of a table that the last tokens choose by a hash, and their way into the
// residual streams.
//
//   ngram_rows    n-grams of 2 .. N tokens that end at a token, H hashes of each: column j = (n - 2) H + h of a row is
//                   offset[j] + ((c_0 m_0) xor (c_1 m_1) xor .. xor (c_{n-1} m_{n-1})) mod prime[j]
//                 c_i is the class of the token i before, `pad` before the first; products are of 64 bits and positive
//   read_table_soon   asks for the memory pages of those rows, whose table is in a mapped file; changes speed alone
//   table_rows    out[t, j * d + i] = code[r, i] * 2^(scale[r, i / block] - 127) of row r = rows[t, j]; zeros without a table
//   gate_streams  R[t,k,:] += g_k value[t,:],  g_k = sigmoid(sign(s) sqrt(max(|s|, 1e-6))),
//                 s = D^-1/2 sum_d R[t,k,d] w[k,d] key[t,k,d] (mean R[t,k]^2 + eps)^-1/2 (mean key[t,k]^2 + eps)^-1/2
//                 where a sum of zero counts as positive
//
// The classes of the tokens before this step stand in the sequence's ring of compressor state, as f32 values of one channel,
// exact below 2^24 (ops/pool_windows.h: keep_state() puts them there).
//
// Tree      gate_streams: three sums of a stream in 16 parts each, column i into part i mod 16 ascending by fused
//           multiply-adds ((R w) key for the first), then folded 8, 4, 2, 1; R <- fma(g, value, R). sigmoid as in
//           kernels/cpu/simd_math.h
// Numerics  f32; codes times scales are exact
// CUDA      none
// Misuse    wrong shape or dtype, or a row beyond the table, stops the process and names the argument
// Source    model_spec.md 11.6
#pragma once

#include <span>

#include "ops/pool_windows.h"

namespace levin::ops {

// One layer's hashes.
struct NgramHash {
  std::span<const int64_t> multipliers;  // N
  std::span<const int64_t> primes;       // (N - 1) H
  std::span<const int64_t> offsets;      // (N - 1) H
  int64_t pad = 0;                       // class of what stands before the first token
};

struct NgramRows {
  WindowTokens tokens;  // values [T, 1]: classes
  NgramHash hash;
  View out;  // [T, (N - 1) H] i32, overwritten
};
void ngram_rows(OpContext& ctx, const NgramRows& a);

// Where a file is mapped.
struct MappedTable {
  const std::byte* codes = nullptr;   // [n_rows, d] e4m3; null: no table
  const std::byte* scales = nullptr;  // [n_rows, ceil(d / block)] e8m0
  int64_t n_rows = 0;
  int64_t d = 0;
  int64_t block = 0;  // columns that share a scale

  int64_t n_scales() const { return (d + block - 1) / block; }
};

struct TableRows {
  MappedTable table;
  View rows;  // [T, J] i32
  View out;   // [T, J * d] f32, overwritten
};
void table_rows(OpContext& ctx, const TableRows& a);

struct ReadTableSoon {
  MappedTable table;
  View rows;  // [T, J] i32
};
void read_table_soon(OpContext& ctx, const ReadTableSoon& a);

struct GateStreams {
  View streams;  // [T, M, D] f32, updated
  View keys;     // [T, M, D] f32
  View value;    // [T, D] f32
  View weight;   // [M, D] f32
  float eps = 0;
};
void gate_streams(OpContext& ctx, const GateStreams& a);

}  // namespace levin::ops
