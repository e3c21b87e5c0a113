// Sparse attention over bf16 rows with the bf16 dot instruction: the latent parts of queries and rows in pairs of
// columns, weights and values in pairs of candidates. Twice the products an instruction, and rows are never widened.
// Other rows go to the f32 kernel.
//
// Tiles, the order of loops and the softmax are attention_simd.h's; a tile is laid out as
//
//   keys     [d_latent / 2, 64] pairs     candidates side by side
//   rope     [d_rope, 64] f32             the same
//   values   [blocks of 64 columns, 32, 64] pairs of candidates, columns side by side in the order that interleaving
//            32 of them leaves: 0-3, 8-11, 16-19, 24-27 of them, then 4-7, 12-15, 20-23, 28-31
//   q        [n_lines, d_latent / 2] pairs, q_rope [n_lines, d_rope] f32
//   p        [n_lines, 64] f32 scores; weights as bf16 in their place
//   sums     [n_lines, columns in whole blocks] in the order of the values
#include "kernels/cpu/attention_simd.h"
#include "kernels/cpu/pair_tile.h"

namespace levin::kernels {
namespace {

using F32Kernel = Attention<Avx512>;

constexpr int64_t kPairs = kTile / 2;  // of candidates

struct Scratch {
  float* q;  // pairs of bf16
  float* q_rope;
  float* keys;  // pairs of bf16
  float* rope;
  float* values;    // pairs of bf16
  float* row_rope;  // [16, d_rope rounded up], on its way into rope
  float* p;
  float* sums;
  float* factor;
  float* maximum;
  float* sum;
  int64_t n_pairs;  // of latent columns
  int64_t d_rope_padded;
  int64_t d_sums;
  int64_t n_bytes;
};

Scratch lay_out(std::byte* scratch, const LatentFormat& f, int64_t n_lines) {
  Scratch s{};
  s.n_pairs = f.d_latent / 2;
  s.d_rope_padded = round_up(f.d_rope, 16);
  s.d_sums = round_up(f.d_latent, kTile);
  s.q = reinterpret_cast<float*>(scratch);
  s.q_rope = s.q + n_lines * round_up(s.n_pairs, 16);
  s.keys = s.q_rope + n_lines * s.d_rope_padded;
  s.rope = s.keys + s.n_pairs * kTile;
  s.values = s.rope + s.d_rope_padded * kTile;
  s.row_rope = s.values + s.d_sums * kPairs;
  s.p = s.row_rope + 16 * s.d_rope_padded;
  s.sums = s.p + n_lines * kTile;
  s.factor = s.sums + n_lines * s.d_sums;
  s.maximum = s.factor + n_lines;
  s.sum = s.maximum + n_lines;
  s.n_bytes = reinterpret_cast<std::byte*>(s.sum + n_lines) - scratch;
  return s;
}

int64_t scratch_bytes(const LatentFormat& f, int64_t n_lines) {
  alignas(64) std::byte origin[64];
  const int64_t own = lay_out(origin, f, n_lines).n_bytes, other = F32Kernel::scratch_bytes(f, n_lines);
  return own > other ? own : other;
}

void prepare_queries(const AttentionJob& a, const Scratch& s) {
  const int64_t width = bytes_of(a.q_dtype), d = a.format.d_latent;
  for (int64_t l = 0; l < a.n_lines(); ++l) {
    const std::byte* latent = static_cast<const std::byte*>(a.q_latent) + a.offset(l, a.q_latent_strides) * width;
    const std::byte* rope = static_cast<const std::byte*>(a.q_rope) + a.offset(l, a.q_rope_strides) * width;
    auto* q = reinterpret_cast<uint16_t*>(s.q + l * round_up(s.n_pairs, 16));
    for (int64_t i = 0; i < d; i += 16) V::store_bf16(q + i, load_values<V>(latent + i * width, a.q_dtype, d - i));
    widen<V>(rope, a.q_dtype, a.format.d_rope, s.q_rope + l * s.d_rope_padded);
  }
}

// Keys of 16 candidates, whose rows are given, into the tile at their first column.
void gather_keys(const AttentionJob& a, const Scratch& s, const std::byte* const (&rows)[16], int64_t column) {
  const LatentFormat& f = a.format;
  const float* latent[16];
  const float* rope[16];
  for (int64_t j = 0; j < 16; ++j) {
    latent[j] = reinterpret_cast<const float*>(rows[j]);
    rope[j] = s.row_rope + j * s.d_rope_padded;
    widen<V>(rows[j] + f.rope_offset, DType::kF32, f.d_rope, s.row_rope + j * s.d_rope_padded);
  }
  transpose_pairs(latent, s.n_pairs, s.keys + column);
  transpose_block<V>(rope, f.d_rope, s.rope + column);
}

// The latent columns of two candidates side by side.
void gather_values(const AttentionJob& a, const Scratch& s, const std::byte* even, const std::byte* odd, int64_t pair) {
  const int64_t d = a.format.d_latent;
  for (int64_t i = 0; i < s.d_sums; i += 32) {
    const int64_t n = d - i;
    const __mmask32 there = n >= 32 ? ~__mmask32{0} : n > 0 ? (__mmask32{1} << n) - 1 : 0;
    const __m512i x = _mm512_maskz_loadu_epi16(there, even + 2 * i);
    const __m512i y = _mm512_maskz_loadu_epi16(there, odd + 2 * i);
    float* out = s.values + i / kTile * kTile * kPairs + pair * kTile + i % kTile;
    _mm512_store_si512(out, _mm512_unpacklo_epi16(x, y));
    _mm512_store_si512(out + 16, _mm512_unpackhi_epi16(x, y));
  }
}

// Candidates begin .. begin+n-1. Beyond n in a group is the last one again.
void gather(const AttentionJob& a, const Scratch& s, int64_t begin, int64_t n) {
  for (int64_t group = 0; group < n; group += 16) {
    const std::byte* rows[16];
    for (int64_t j = 0; j < 16; ++j) rows[j] = a.row(begin + (group + j < n ? group + j : n - 1));
    gather_keys(a, s, rows, group);
    for (int64_t j = 0; j < 16 && group + j < n; j += 2) gather_values(a, s, rows[j], rows[j + 1], (group + j) / 2);
  }
}

// Leaves candidate n - 1 alone in its pair if n is odd, as tokens of n candidates want it. Those of more come first.
void drop_odd_partner(const Scratch& s, int64_t n) {
  if (n % 2 == 0) return;
  for (int64_t column = 0; column < s.d_sums; column += kTile) {
    float* pairs = s.values + column * kPairs + n / 2 * kTile;
    for (int64_t i = 0; i < kTile; i += 16) {
      _mm512_store_si512(pairs + i, _mm512_and_si512(_mm512_load_si512(pairs + i), _mm512_set1_epi32(0xFFFF)));
    }
  }
}

void score(const AttentionJob& a, const Scratch& s, int64_t first, RowFetcher& next_rows) {
  for (int64_t begin = 0; begin < s.n_pairs; begin += kPairBlock) {
    for (int64_t l = first; l < a.n_lines(); l += kRowBlock) {
      next_rows.step();
      dot_pairs_block({.rows = s.q + l * round_up(s.n_pairs, 16),
                       .row_stride = round_up(s.n_pairs, 16),
                       .tile = s.keys,
                       .out = s.p + l * kTile,
                       .out_stride = kTile},
                      begin, s.n_pairs, block_of_lines(l, a.n_lines()));
    }
  }
  for (int64_t begin = 0; begin < a.format.d_rope; begin += kDotBlock) {
    for (int64_t l = first; l < a.n_lines(); l += kRowBlock) {
      multiply_rows<V, Start::kZeroThenAdd>(
          {.rows = s.q_rope + l * s.d_rope_padded + begin,
           .row_stride = s.d_rope_padded,
           .tile = s.rope + begin * kTile,
           .tile_stride = kTile,
           .n_steps = a.format.d_rope - begin < kDotBlock ? a.format.d_rope - begin : kDotBlock,
           .out = s.p + l * kTile,
           .out_stride = kTile},
          block_of_lines(l, a.n_lines()));
    }
  }
}

// The n scores of a line become weights, rounded to bf16; the sum is that of the rounded ones.
void softmax(const AttentionJob& a, const Scratch& s, int64_t l, int n) {
  float* p = s.p + l * kTile;
  const F32Kernel::Weights weights = F32Kernel::weigh(p, n, a.scale_log2, s.maximum[l]);
  V::F32 total = V::zero();
  for (int v = 0; v < kTileVectors; ++v) {
    const V::I32 rounded = V::bf16_bits(weights.p[v]);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8 * v), _mm512_cvtepi32_epi16(rounded));
    total = V::add(total, V::from_bits(V::shl<16>(rounded)));
  }
  s.factor[l] = exp2_or_zero<OneLane>(s.maximum[l] - weights.maximum);
  s.sum[l] = s.sum[l] * s.factor[l] + V::reduce_add(total);
  s.maximum[l] = weights.maximum;
}

void accumulate(const Scratch& s, const LineRun& run) {
  for (int64_t column = 0; column < s.d_sums; column += kTile) {
    for (int64_t l = run.begin; l < run.end; l += kRowBlock) {
      multiply_pairs<Start::kScaled>({.rows = s.p + l * kTile,
                                      .row_stride = kTile,
                                      .tile = s.values + column * kPairs,
                                      .begin = 0,
                                      .end = (run.n + 1) / 2,
                                      .out = s.sums + l * s.d_sums + column,
                                      .out_stride = s.d_sums,
                                      .factor = s.factor + l},
                                     block_of_lines(l, run.end));
    }
  }
}

void finish(const AttentionJob& a, const Scratch& s) {
  const int64_t d = a.format.d_latent;
  for (int64_t l = 0; l < a.n_lines(); ++l) {
    const V::F32 factor = V::broadcast(F32Kernel::add_sink(a, l, s.maximum[l], s.sum[l]));
    const V::F32 sum = V::broadcast(a.n_seen[l / a.n_heads] == 0 ? 1.0f : s.sum[l]);
    float* out = a.out + a.offset(l, a.out_strides);
    for (int64_t i = 0; i < d; i += 32) {
      const float* sums = s.sums + l * s.d_sums + i;
      const __m512 low = V::load(sums), high = V::load(sums + 16);
      for (int64_t half = 0; half < 2 && i + 16 * half < d; ++half) {
        const __m512 both = half == 0 ? _mm512_shuffle_f32x4(low, high, 0x44) : _mm512_shuffle_f32x4(low, high, 0xEE);
        const V::F32 x = V::div(V::mul(_mm512_shuffle_f32x4(both, both, 0xD8), factor), sum);
        const int64_t begin = i + 16 * half, n = d - begin < 16 ? d - begin : 16;
        V::store_n(out + begin, x, static_cast<int>(n));
      }
    }
  }
}

void attend(const AttentionJob& a) {
  if (!rounds_to_bf16(a)) return F32Kernel::attend(a);
  const Scratch s = lay_out(a.scratch, a.format, a.n_lines());
  prepare_queries(a, s);
  for (int64_t i = 0; i < a.n_lines() * s.d_sums; ++i) s.sums[i] = 0;
  for (int64_t l = 0; l < a.n_lines(); ++l) {
    s.maximum[l] = -__builtin_inff();
    s.sum[l] = 0;
  }
  const int64_t n = a.n_candidates();
  for (int64_t begin = 0; begin < n; begin += kTile) {
    const int64_t end = begin + kTile < n ? begin + kTile : n, first = first_line(a, begin);
    const int64_t next_end = end + kTile < n ? end + kTile : n;
    const int64_t n_blocks = (a.n_lines() - first + kRowBlock - 1) / kRowBlock;
    RowFetcher next_rows(a, end, next_end - end, (s.n_pairs + kPairBlock - 1) / kPairBlock * n_blocks);
    gather(a, s, begin, end - begin);
    score(a, s, first, next_rows);
    for_each_run(a, begin, [&](const LineRun& run) {
      for (int64_t l = run.begin; l < run.end; ++l) softmax(a, s, l, static_cast<int>(run.n));
      drop_odd_partner(s, run.n);
      accumulate(s, run);
    });
  }
  finish(a, s);
}

}  // namespace

AttentionKernels attention_kernels_avx512_bf16() { return {.scratch_bytes = scratch_bytes, .attend = attend}; }

}  // namespace levin::kernels
