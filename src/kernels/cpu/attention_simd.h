// Sparse attention over the vector types of simd.h.
//
// 64 candidate rows at a time are gathered once for all heads of the job, as f32 in two layouts: columns side by side
// for the sums, candidates side by side for the scores. Heads then go over both in blocks, so that a loaded vector
// meets several heads and the inner loops run from the nearest caches, while the rows of the next tile are on their
// way.
//
//   scratch   q       [n_heads, d rounded up]          queries as f32, latent then rope
//             keys    [d, 64]                          candidates side by side
//             values  [column blocks, 64, block]       columns of the values side by side
//             rope    [16, d_rope rounded up]          rotated parts on their way into keys
//             p       [n_heads, 64]                    scores, then weights
//             sums    [n_heads, padded d_value]        the output before the division
//             factor, maximum, sum                     [n_heads] each
#pragma once

#include "kernels/cpu/attention.h"
#include "kernels/cpu/dot_tile.h"
#include "kernels/cpu/simd_math.h"

namespace levin::kernels {
namespace {

static_assert(kTile == kCandidateTile);

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

  static Scratch lay_out(std::byte* scratch, const LatentFormat& f, int64_t n_heads) {
    Scratch s{};
    s.d = f.d_latent + f.d_rope;
    s.d_padded = round_up(s.d, 16) + 16;  // both parts are stored 16 values at a time
    s.d_rope_padded = round_up(f.d_rope, 16);
    s.d_sums = round_up(f.d_value(), kColumnBlock);
    s.q = reinterpret_cast<float*>(scratch);
    s.keys = s.q + n_heads * s.d_padded;
    s.values = s.keys + s.d * kTile;
    s.rope = s.values + s.d_sums * kTile;
    s.p = s.rope + 16 * s.d_rope_padded;
    s.sums = s.p + n_heads * kTile;
    s.factor = s.sums + n_heads * s.d_sums;
    s.maximum = s.factor + n_heads;
    s.sum = s.maximum + n_heads;
    s.n_bytes = reinterpret_cast<std::byte*>(s.sum + n_heads) - scratch;
    return s;
  }

  static int64_t scratch_bytes(const LatentFormat& f, int64_t n_heads) {
    alignas(64) std::byte origin[64];
    return lay_out(origin, f, n_heads).n_bytes;
  }

  static void prepare_queries(const AttentionJob& a, const Scratch& s) {
    const int64_t width = bytes_of(a.q_dtype);
    for (int64_t h = 0; h < a.n_heads; ++h) {
      const std::byte* latent = static_cast<const std::byte*>(a.q_latent) + h * a.q_latent_stride * width;
      const std::byte* rope = static_cast<const std::byte*>(a.q_rope) + h * a.q_rope_stride * width;
      widen<V>(latent, a.q_dtype, a.format.d_latent, s.q + h * s.d_padded);
      widen<V>(rope, a.q_dtype, a.format.d_rope, s.q + h * s.d_padded + a.format.d_latent);
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

  // One block of the dot after the other over all heads, so that the block of the tile stays in the nearest cache.
  static void score(const AttentionJob& a, const Scratch& s, RowFetcher& next_rows) {
    for (int64_t begin = 0; begin < s.d; begin += kDotBlock) {
      for (int64_t h = 0; h < a.n_heads; h += kRowBlock) {
        next_rows.step();
        dot_block<V>({.rows = s.q + h * s.d_padded,
                      .row_stride = s.d_padded,
                      .tile = s.keys,
                      .tile_stride = kTile,
                      .n_steps = s.d,
                      .out = s.p + h * kTile,
                      .out_stride = kTile},
                     begin, a.n_heads - h < kRowBlock ? a.n_heads - h : kRowBlock);
      }
    }
  }
  static int64_t n_score_steps(const AttentionJob& a, const Scratch& s) {
    return (s.d + kDotBlock - 1) / kDotBlock * ((a.n_heads + kRowBlock - 1) / kRowBlock);
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
    out.maximum = V::fold_max(largest);
    for (int v = 0; v < kVectors; ++v) {
      const F32 power = exp2_or_zero<V>(V::sub(whole[v], V::broadcast(out.maximum)));
      const F32 weight = V::mul(exp2_fraction<V>(V::sub(u[v], whole[v])), power);
      const F32 kept = V::select(V::less(weight, V::broadcast(0x1p-126f)), V::zero(), weight);
      out.p[v] = V::select(there(n, v), kept, V::zero());
    }
    return out;
  }

  // Turns the n scores of a head into weights.
  static void softmax(const AttentionJob& a, const Scratch& s, int64_t h, int n) {
    float* p = s.p + h * kTile;
    const Weights weights = weigh(p, n, a.scale_log2, s.maximum[h]);
    F32 total = V::zero();
    for (int v = 0; v < kVectors; ++v) {
      V::store(p + 16 * v, weights.p[v]);
      total = V::add(total, weights.p[v]);
    }
    s.factor[h] = exp2_or_zero<OneLane>(s.maximum[h] - weights.maximum);
    s.sum[h] = s.sum[h] * s.factor[h] + V::fold_add(total);
    s.maximum[h] = weights.maximum;
  }

  static void accumulate(const AttentionJob& a, const Scratch& s, int64_t n) {
    for (int64_t column = 0; column < s.d_sums; column += kColumnBlock) {
      for (int64_t h = 0; h < a.n_heads; h += kRowBlock) {
        multiply_rows<V, Start::kScaled>({.rows = s.p + h * kTile,
                                          .row_stride = kTile,
                                          .tile = s.values + column * kTile,
                                          .tile_stride = kColumnBlock,
                                          .n_steps = n,
                                          .out = s.sums + h * s.d_sums + column,
                                          .out_stride = s.d_sums,
                                          .factor = s.factor + h},
                                         a.n_heads - h < kRowBlock ? a.n_heads - h : kRowBlock);
      }
    }
  }

  // Adds the sink of head h to its sum and returns the factor for what was summed before.
  static float add_sink(const AttentionJob& a, int64_t h, float before, float& sum) {
    if (a.sink == nullptr || a.n_candidates() == 0) return 1.0f;
    const float u = a.sink[h] * kLog2E, whole = __builtin_ceilf(u);
    const float maximum = whole > before ? whole : before;
    const float p = exp2_fraction<OneLane>(u - whole) * exp2_or_zero<OneLane>(whole - maximum);
    const float factor = exp2_or_zero<OneLane>(before - maximum);
    sum = sum * factor + (p < 0x1p-126f ? 0.0f : p);
    return factor;
  }

  static void finish(const AttentionJob& a, const Scratch& s) {
    const int64_t d_value = a.format.d_value();
    for (int64_t h = 0; h < a.n_heads; ++h) {
      const F32 factor = V::broadcast(add_sink(a, h, s.maximum[h], s.sum[h]));
      const F32 sum = V::broadcast(a.n_candidates() == 0 ? 1.0f : s.sum[h]);
      for (int64_t i = 0; i < d_value; i += 16) {
        const int64_t n = d_value - i < 16 ? d_value - i : 16;
        const F32 x = V::div(V::mul(V::load(s.sums + h * s.d_sums + i), factor), sum);
        V::store_n(a.out + h * a.out_stride + i, x, static_cast<int>(n));
      }
    }
  }

  static void attend(const AttentionJob& a) {
    const Scratch s = lay_out(a.scratch, a.format, a.n_heads);
    prepare_queries(a, s);
    for (int64_t i = 0; i < a.n_heads * s.d_sums; ++i) s.sums[i] = 0;
    for (int64_t h = 0; h < a.n_heads; ++h) {
      s.maximum[h] = -__builtin_inff();
      s.sum[h] = 0;
    }
    const int64_t n = a.n_candidates();
    for (int64_t begin = 0; begin < n; begin += kTile) {
      const int64_t end = begin + kTile < n ? begin + kTile : n;
      const int64_t next_end = end + kTile < n ? end + kTile : n;
      RowFetcher next_rows(a, end, next_end - end, n_score_steps(a, s));
      gather(a, s, begin, end - begin);
      score(a, s, next_rows);
      for (int64_t h = 0; h < a.n_heads; ++h) softmax(a, s, h, static_cast<int>(end - begin));
      accumulate(a, s, end - begin);
    }
    finish(a, s);
  }
};

}  // namespace
}  // namespace levin::kernels
