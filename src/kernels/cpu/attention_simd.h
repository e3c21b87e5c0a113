// Sparse attention over the vector types of simd.h.
//
// 64 candidate rows at a time are gathered once for all lines of the job, as f32 in two layouts: columns side by side
// for the sums, candidates side by side for the scores. Lines then go over both in blocks, so that a loaded vector
// meets several lines and the inner loops run from the nearest caches, while the rows of the next tile are on their
// way. Tokens that have seen all their candidates drop out.
//
//   scratch   q       [n_lines, d rounded up]          queries as f32, latent then rope
//             keys    [d, 64]                          candidates side by side
//             values  [column blocks, 64, block]       columns of the values side by side
//             rope    [16, d_rope rounded up]          rotated parts on their way into keys
//             p       [n_lines, 64]                    scores, then weights
//             sums    [n_lines, padded d_value]        the output before the division
//             factor, maximum, sum                     [n_lines] each
#pragma once

#include "kernels/cpu/attention.h"
#include "kernels/cpu/dot_tile.h"
#include "kernels/cpu/simd_math.h"

namespace levin::kernels {
namespace {

static_assert(kTile == kCandidateTile);

// Whether the sets that round queries and weights to bf16 do so for a job (ops/sparse_attention.h).
inline bool rounds_to_bf16(const AttentionJob& a) {
  return a.format.dtype == CacheDType::kBF16 && !a.format.rope_in_value && a.format.d_latent % 2 == 0;
}

// Fetches the rows of some candidates ahead of their use, a few lines at a time.
class RowFetcher {
 public:
  RowFetcher(const AttentionJob& a, int64_t begin, int64_t n_rows, int64_t n_steps)
      : a_(a), begin_(begin), n_lines_per_row_((a.format.row_bytes + 127) / 64), n_lines_(n_rows * n_lines_per_row_) {
    n_lines_per_step_ = (n_lines_ + n_steps - 1) / n_steps;
  }

  void step() {
    const int64_t end = next_ + n_lines_per_step_ < n_lines_ ? next_ + n_lines_per_step_ : n_lines_;
    for (; next_ < end; ++next_) {
      const std::byte* row = a_.row(begin_ + next_ / n_lines_per_row_);
      _mm_prefetch(reinterpret_cast<const char*>(row) + next_ % n_lines_per_row_ * 64, _MM_HINT_T1);
    }
  }

 private:
  const AttentionJob& a_;
  int64_t begin_;
  int64_t n_lines_per_row_;
  int64_t n_lines_;
  int64_t n_lines_per_step_ = 0;
  int64_t next_ = 0;
};

// Lines of a job whose tokens have n of a tile's candidates each.
struct LineRun {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t n = 0;
};

// Calls f(LineRun) for all lines that have candidates `tile` and on; those that have more of them come first.
template <class F>
inline void for_each_run(const AttentionJob& a, int64_t tile, const F& f) {
  const auto n_of = [&](int64_t token) { return a.n_seen[token] - tile < kTile ? a.n_seen[token] - tile : kTile; };
  for (int64_t end = a.n_tokens; end > 0 && n_of(end - 1) > 0;) {
    int64_t begin = end - 1;
    while (begin > 0 && n_of(begin - 1) == n_of(end - 1)) --begin;
    f(LineRun{.begin = begin * a.n_heads, .end = end * a.n_heads, .n = n_of(end - 1)});
    end = begin;
  }
}

// The first line that has candidates `tile` and on; all after it have.
inline int64_t first_line(const AttentionJob& a, int64_t tile) {
  int64_t token = a.n_tokens;
  while (token > 0 && a.n_seen[token - 1] > tile) --token;
  return token * a.n_heads;
}

inline int64_t block_of_lines(int64_t begin, int64_t end) { return end - begin < kRowBlock ? end - begin : kRowBlock; }

template <class V>
struct Attention {
  using F32 = typename V::F32;
  static constexpr int kVectors = kTile / 16;

  struct Scratch {
    float* q;
    float* keys;
    float* values;
    float* rope;
    float* p;
    float* sums;
    float* factor;
    float* maximum;
    float* sum;
    int64_t d;         // of a row
    int64_t d_padded;  // between queries
    int64_t d_rope_padded;
    int64_t d_sums;  // columns of the values in whole blocks
    int64_t n_bytes;
  };

  static Scratch lay_out(std::byte* scratch, const LatentFormat& f, int64_t n_lines) {
    Scratch s{};
    s.d = f.d_latent + f.d_rope;
    s.d_padded = round_up(s.d, 16) + 16;  // both parts are stored 16 values at a time
    s.d_rope_padded = round_up(f.d_rope, 16);
    s.d_sums = round_up(f.d_value(), kColumnBlock);
    s.q = reinterpret_cast<float*>(scratch);
    s.keys = s.q + n_lines * s.d_padded;
    s.values = s.keys + s.d * kTile;
    s.rope = s.values + s.d_sums * kTile;
    s.p = s.rope + 16 * s.d_rope_padded;
    s.sums = s.p + n_lines * kTile;
    s.factor = s.sums + n_lines * s.d_sums;
    s.maximum = s.factor + n_lines;
    s.sum = s.maximum + n_lines;
    s.n_bytes = reinterpret_cast<std::byte*>(s.sum + n_lines) - scratch;
    return s;
  }

  static int64_t scratch_bytes(const LatentFormat& f, int64_t n_lines) {
    alignas(64) std::byte origin[64];
    return lay_out(origin, f, n_lines).n_bytes;
  }

  static void prepare_queries(const AttentionJob& a, const Scratch& s) {
    const int64_t width = bytes_of(a.q_dtype);
    for (int64_t l = 0; l < a.n_lines(); ++l) {
      const std::byte* latent = static_cast<const std::byte*>(a.q_latent) + a.offset(l, a.q_latent_strides) * width;
      const std::byte* rope = static_cast<const std::byte*>(a.q_rope) + a.offset(l, a.q_rope_strides) * width;
      widen<V>(latent, a.q_dtype, a.format.d_latent, s.q + l * s.d_padded);
      widen<V>(rope, a.q_dtype, a.format.d_rope, s.q + l * s.d_padded + a.format.d_latent);
    }
  }

  // The latent columns of candidate j of the tile, with their scales, into the value layout.
  static void gather_latent(const AttentionJob& a, const Scratch& s, const std::byte* row, int64_t j) {
    const LatentFormat& f = a.format;
    for (int64_t i = 0; i < f.d_latent; i += 16) {
      F32 x;
      if (f.dtype == CacheDType::kF32) {
        x = load_values<V>(row + 4 * i, DType::kF32, f.d_latent - i);
      } else if (f.dtype == CacheDType::kBF16) {
        x = load_values<V>(row + 2 * i, DType::kBF16, f.d_latent - i);
      } else {
        const float* scales = reinterpret_cast<const float*>(row + f.scale_offset);
        x = V::mul(load_values<V>(row + i, DType::kF8E4M3, f.d_latent - i), V::broadcast(scales[i / f.scale_columns]));
      }
      V::store(value_at(s, i, j), x);
    }
  }
  static float* value_at(const Scratch& s, int64_t column, int64_t j) {
    return s.values + column / kColumnBlock * kColumnBlock * kTile + j * kColumnBlock + column % kColumnBlock;
  }

  // Candidates begin .. begin+n-1 into both layouts. Columns of keys beyond n hold anything.
  static void gather(const AttentionJob& a, const Scratch& s, int64_t begin, int64_t n) {
    const LatentFormat& f = a.format;
    const DType rope_dtype = f.rope_is_f32() ? DType::kF32 : DType::kBF16;
    for (int64_t group = 0; group < n; group += 16) {
      for (int64_t j = group; j < n && j < group + 16; ++j) {
        const std::byte* row = a.row(begin + j);
        gather_latent(a, s, row, j);
        float* rope = s.rope + (j - group) * s.d_rope_padded;
        widen<V>(row + f.rope_offset, rope_dtype, f.d_rope, rope);
        for (int64_t i = f.d_latent; i < f.d_value(); ++i) *value_at(s, i, j) = rope[i - f.d_latent];
      }
      for (int64_t i = 0; i < f.d_latent; i += 16) {
        const float* row[16];
        for (int64_t j = 0; j < 16; ++j) row[j] = value_at(s, i, group + j);
        transpose_block<V>(row, f.d_latent - i < 16 ? f.d_latent - i : 16, s.keys + i * kTile + group);
      }
      for (int64_t i = 0; i < f.d_rope; i += 16) {
        const float* row[16];
        for (int64_t j = 0; j < 16; ++j) row[j] = s.rope + j * s.d_rope_padded + i;
        transpose_block<V>(row, f.d_rope - i < 16 ? f.d_rope - i : 16, s.keys + (f.d_latent + i) * kTile + group);
      }
    }
  }

  // One block of the dot after the other over all lines from `first`, so that the block of the tile stays in the nearest
  // cache.
  static void score(const AttentionJob& a, const Scratch& s, int64_t first, RowFetcher& next_rows) {
    for (int64_t begin = 0; begin < s.d; begin += kDotBlock) {
      for (int64_t l = first; l < a.n_lines(); l += kRowBlock) {
        next_rows.step();
        dot_block<V>({.rows = s.q + l * s.d_padded,
                      .row_stride = s.d_padded,
                      .tile = s.keys,
                      .tile_stride = kTile,
                      .n_steps = s.d,
                      .out = s.p + l * kTile,
                      .out_stride = kTile},
                     begin, block_of_lines(l, a.n_lines()));
      }
    }
  }
  static int64_t n_score_steps(const AttentionJob& a, const Scratch& s, int64_t first) {
    return (s.d + kDotBlock - 1) / kDotBlock * ((a.n_lines() - first + kRowBlock - 1) / kRowBlock);
  }

  // Which of the 16 lanes of vector v lie among the first n.
  static typename V::Mask there(int n, int v) { return V::first_n(n > 16 * v ? n - 16 * v : 0); }

  // The weights of the n scores of a tile, 0 beyond them, and the running maximum that they are measured from.
  struct Weights {
    F32 p[kVectors];
    float maximum;
  };
  static Weights weigh(const float* scores, int n, float scale_log2, float maximum) {
    const F32 lowest = V::broadcast(-__builtin_inff());
    F32 u[kVectors], whole[kVectors], largest = V::broadcast(maximum);
    for (int v = 0; v < kVectors; ++v) {
      u[v] = V::mul(V::load(scores + 16 * v), V::broadcast(scale_log2));
      whole[v] = V::ceil(u[v]);
      largest = V::max(V::select(there(n, v), whole[v], lowest), largest);
    }
    Weights out;
    out.maximum = V::reduce_max(largest);
    for (int v = 0; v < kVectors; ++v) {
      const F32 power = exp2_or_zero<V>(V::sub(whole[v], V::broadcast(out.maximum)));
      const F32 weight = V::mul(exp2_fraction<V>(V::sub(u[v], whole[v])), power);
      const F32 kept = V::select(V::less(weight, V::broadcast(0x1p-126f)), V::zero(), weight);
      out.p[v] = V::select(there(n, v), kept, V::zero());
    }
    return out;
  }

  // Turns the n scores of a line into weights.
  static void softmax(const AttentionJob& a, const Scratch& s, int64_t l, int n) {
    float* p = s.p + l * kTile;
    const Weights weights = weigh(p, n, a.scale_log2, s.maximum[l]);
    F32 total = V::zero();
    for (int v = 0; v < kVectors; ++v) {
      V::store(p + 16 * v, weights.p[v]);
      total = V::add(total, weights.p[v]);
    }
    s.factor[l] = exp2_or_zero<OneLane>(s.maximum[l] - weights.maximum);
    s.sum[l] = s.sum[l] * s.factor[l] + V::reduce_add(total);
    s.maximum[l] = weights.maximum;
  }

  static void accumulate(const Scratch& s, const LineRun& run) {
    for (int64_t column = 0; column < s.d_sums; column += kColumnBlock) {
      for (int64_t l = run.begin; l < run.end; l += kRowBlock) {
        multiply_rows<V, Start::kScaled>({.rows = s.p + l * kTile,
                                          .row_stride = kTile,
                                          .tile = s.values + column * kTile,
                                          .tile_stride = kColumnBlock,
                                          .n_steps = run.n,
                                          .out = s.sums + l * s.d_sums + column,
                                          .out_stride = s.d_sums,
                                          .factor = s.factor + l},
                                         block_of_lines(l, run.end));
      }
    }
  }

  // Adds the sink of a line's head to its sum and returns the factor for what was summed before.
  static float add_sink(const AttentionJob& a, int64_t l, float before, float& sum) {
    if (a.sink == nullptr || a.n_seen[l / a.n_heads] == 0) return 1.0f;
    const float u = a.sink[l % a.n_heads] * kLog2E, whole = __builtin_ceilf(u);
    const float maximum = whole > before ? whole : before;
    const float p = exp2_fraction<OneLane>(u - whole) * exp2_or_zero<OneLane>(whole - maximum);
    const float factor = exp2_or_zero<OneLane>(before - maximum);
    sum = sum * factor + (p < 0x1p-126f ? 0.0f : p);
    return factor;
  }

  static void finish(const AttentionJob& a, const Scratch& s) {
    const int64_t d_value = a.format.d_value();
    for (int64_t l = 0; l < a.n_lines(); ++l) {
      const F32 factor = V::broadcast(add_sink(a, l, s.maximum[l], s.sum[l]));
      const F32 sum = V::broadcast(a.n_seen[l / a.n_heads] == 0 ? 1.0f : s.sum[l]);
      float* out = a.out + a.offset(l, a.out_strides);
      for (int64_t i = 0; i < d_value; i += 16) {
        const int64_t n = d_value - i < 16 ? d_value - i : 16;
        const F32 x = V::div(V::mul(V::load(s.sums + l * s.d_sums + i), factor), sum);
        V::store_n(out + i, x, static_cast<int>(n));
      }
    }
  }

  static void attend(const AttentionJob& a) {
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
      RowFetcher next_rows(a, end, next_end - end, n_score_steps(a, s, first));
      gather(a, s, begin, end - begin);
      score(a, s, first, next_rows);
      for_each_run(a, begin, [&](const LineRun& run) {
        for (int64_t l = run.begin; l < run.end; ++l) softmax(a, s, l, static_cast<int>(run.n));
        accumulate(s, run);
      });
    }
    finish(a, s);
  }
};

}  // namespace
}  // namespace levin::kernels
