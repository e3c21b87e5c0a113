// Sparse latent attention over the vector types of simd.h.
//
// 64 picked rows at a time are gathered once for all heads of the job, into two layouts: picks side by side for the
// scores, columns side by side for the sums. Heads then go over both in blocks, so that a loaded vector meets several
// heads, and the inner loops run from the nearest caches.
//
//   scratch   q       [n_heads, padded units]          queries as the dot takes them, latent then rope
//             keys    [units, 64]                      picks side by side
//             values  [column blocks, 64, block]       f32
//             rows    [16, padded units]               rows that must be converted first, and one of zeros
//             p       [n_heads, 64]                    scores, then weights
//             sums    [n_heads, padded d_latent]       the output before the division
//             state   [3, n_heads]                     factor, maximum, sum of weights
#pragma once

#include "kernels/cpu/attention.h"
#include "kernels/cpu/dot_tile.h"
#include "kernels/cpu/simd_math.h"

namespace levin::kernels {
namespace {

static_assert(kTile == kPickTile);

template <class D>
struct Attention {
  using V = typename D::V;
  using F32 = typename V::F32;
  using Unit = typename D::Unit;
  static constexpr int64_t kColumns = kColumnBlock;
  static constexpr int64_t kHeads = kRowBlock;
  static constexpr int kVectors = kTile / 16;

  struct Scratch {
    Unit* q;
    Unit* keys;
    float* values;
    Unit* rows;
    float* p;
    float* sums;
    float* factor;
    float* maximum;
    float* sum;
    int64_t n_units;         // of a row
    int64_t n_padded_units;  // between queries
    int64_t d_padded;        // latent columns in whole blocks
    int64_t n_bytes;
  };

  static Scratch lay_out(std::byte* scratch, const LatentFormat& f, int64_t n_heads) {
    Scratch s{};
    s.n_units = units_of<D>(f.d_latent + f.d_rope);
    s.n_padded_units = padded_units_of<D>(f.d_latent + f.d_rope);
    s.d_padded = (f.d_latent + kColumns - 1) / kColumns * kColumns;
    s.q = reinterpret_cast<Unit*>(scratch);
    s.keys = s.q + n_heads * s.n_padded_units;
    s.values = reinterpret_cast<float*>(s.keys + s.n_units * kTile);
    s.rows = reinterpret_cast<Unit*>(s.values + s.d_padded * kTile);
    s.p = reinterpret_cast<float*>(s.rows + 17 * s.n_padded_units);
    s.sums = s.p + n_heads * kTile;
    s.factor = s.sums + n_heads * s.d_padded;
    s.maximum = s.factor + n_heads;
    s.sum = s.maximum + n_heads;
    s.n_bytes = reinterpret_cast<std::byte*>(s.sum + n_heads) - scratch;
    return s;
  }

  static int64_t scratch_bytes(const LatentFormat& f, int64_t n_heads) {
    alignas(64) std::byte origin[64];
    return lay_out(origin, f, n_heads).n_bytes;
  }

  static F32 load_query(const void* q, DType dtype, int64_t i, int64_t n) {
    return dtype == DType::kF32 ? load_f32<V>(static_cast<const float*>(q) + i, n)
                                : load_bf16<V>(static_cast<const uint16_t*>(q) + i, n);
  }

  static void prepare_queries(const AttentionJob& a, const Scratch& s) {
    const int64_t d_latent = a.format.d_latent, d_rope = a.format.d_rope;
    for (int64_t h = 0; h < a.n_heads; ++h) {
      Unit* units = s.q + h * s.n_padded_units;
      for (int64_t i = 0; i < d_latent; i += 16) {
        store_units<D>(units, i, load_query(a.q_latent, a.q_dtype, h * a.q_latent_stride + i, d_latent - i));
      }
      for (int64_t i = 0; i < d_rope; i += 16) {
        store_units<D>(units, d_latent + i, load_query(a.q_rope, a.q_dtype, h * a.q_rope_stride + i, d_rope - i));
      }
    }
  }

  static F32 load_latent(const LatentFormat& f, const std::byte* row, int64_t i) {
    const int64_t n = f.d_latent - i;
    if (f.dtype == CacheDType::kF32) return load_f32<V>(row + 4 * i, n);
    if (f.dtype == CacheDType::kBF16) return load_bf16<V>(row + 2 * i, n);
    const float* scales = reinterpret_cast<const float*>(row + f.scale_offset);
    return V::mul(load_e4m3<V>(row + i, n), V::broadcast(scales[i / kQuantBlock]));
  }
  static F32 load_rope(const LatentFormat& f, const std::byte* row, int64_t i) {
    const std::byte* part = row + f.rope_offset;
    if (f.dtype == CacheDType::kF32) return load_f32<V>(part + 4 * i, f.d_rope - i);
    return load_bf16<V>(part + 2 * i, f.d_rope - i);
  }

  // Rows that already are units: latent and rope side by side in the dot's type.
  static bool has_units(const LatentFormat& f) {
    if (D::kValues == 1) return f.dtype == CacheDType::kF32;
    return f.dtype == CacheDType::kBF16 && (f.d_latent + f.d_rope) % 2 == 0;
  }

  // Pick j of the tile: its latent columns into the value layout, and all of it into `units` unless that is null.
  static void gather_row(const AttentionJob& a, const Scratch& s, const std::byte* row, int64_t j, Unit* units) {
    const int64_t d_latent = a.format.d_latent;
    for (int64_t i = 0; i < d_latent; i += 16) {
      const F32 x = load_latent(a.format, row, i);
      V::store(s.values + i / kColumns * kColumns * kTile + j * kColumns + i % kColumns, x);
      if (units != nullptr) store_units<D>(units, i, x);
    }
    if (units == nullptr) return;
    for (int64_t i = 0; i < a.format.d_rope; i += 16) store_units<D>(units, d_latent + i, load_rope(a.format, row, i));
  }

  // Picks begin .. begin+n-1 into keys and values. Columns of keys beyond n are zero up to the next multiple of 16.
  static void gather(const AttentionJob& a, const Scratch& s, int64_t begin, int64_t n) {
    const bool direct = has_units(a.format);
    for (int64_t group = 0; group < n; group += 16) {
      const void* units[16];
      for (int64_t j = 0; j < 16; ++j) {
        if (group + j >= n) {
          units[j] = s.rows + 16 * s.n_padded_units;  // zeros
          continue;
        }
        const std::byte* row = a.row(begin + group + j);
        Unit* converted = s.rows + j * s.n_padded_units;
        gather_row(a, s, row, group + j, direct ? nullptr : converted);
        units[j] = direct ? static_cast<const void*>(row) : converted;
      }
      transpose_units<D>(units, s.n_units, s.keys + group);
    }
  }

  // One block of the dot after the other over all heads, so that the block of the tile stays in the nearest cache.
  static void score(const AttentionJob& a, const Scratch& s) {
    constexpr int64_t kSteps = kDotBlock / D::kValues;
    for (int64_t begin = 0; begin < s.n_units; begin += kSteps) {
      for (int64_t h = 0; h < a.n_heads; h += kHeads) {
        const int64_t n_heads = a.n_heads - h < kHeads ? a.n_heads - h : kHeads;
        for (int64_t column = 0; column < kTile; column += kColumns) {
          const TileProduct<D> block{.rows = s.q + h * s.n_padded_units + begin,
                                     .row_stride = s.n_padded_units,
                                     .tile = s.keys + begin * kTile + column,
                                     .tile_stride = kTile,
                                     .n_steps = s.n_units - begin < kSteps ? s.n_units - begin : kSteps,
                                     .out = s.p + h * kTile + column,
                                     .out_stride = kTile};
          if (begin == 0) {
            multiply_rows<D, Start::kZero>(block, n_heads, nullptr);
          } else {
            multiply_rows<D, Start::kZeroThenAdd>(block, n_heads, nullptr);
          }
        }
      }
    }
  }

  // Which of the 16 lanes of vector v lie among the first n.
  static typename V::Mask there(int n, int v) { return V::first_n(n > 16 * v ? n - 16 * v : 0); }

  // Turns the n scores of a head into weights; lanes beyond n get weight 0.
  static void softmax(const AttentionJob& a, const Scratch& s, int64_t h, int n) {
    const F32 lowest = V::broadcast(-__builtin_inff());
    float* p = s.p + h * kTile;
    F32 u[kVectors], whole[kVectors], largest = V::broadcast(s.maximum[h]);
    for (int v = 0; v < kVectors; ++v) {
      u[v] = V::mul(V::load(p + 16 * v), V::broadcast(a.scale_log2));
      whole[v] = V::ceil(u[v]);
      largest = V::max(V::select(there(n, v), whole[v], lowest), largest);
    }
    const float maximum = V::fold_max(largest);
    F32 total = V::zero();
    for (int v = 0; v < kVectors; ++v) {
      const F32 power = exp2_or_zero<V>(V::sub(whole[v], V::broadcast(maximum)));
      F32 weight = V::mul(exp2_fraction<V>(V::sub(u[v], whole[v])), power);
      weight = V::select(V::less(weight, V::broadcast(0x1p-126f)), V::zero(), weight);
      weight = V::select(there(n, v), weight, V::zero());
      V::store(p + 16 * v, weight);
      total = V::add(total, weight);
    }
    s.factor[h] = exp2_or_zero<OneLane>(s.maximum[h] - maximum);
    s.sum[h] = s.sum[h] * s.factor[h] + V::fold_add(total);
    s.maximum[h] = maximum;
  }

  static void accumulate(const AttentionJob& a, const Scratch& s, int64_t n) {
    for (int64_t column = 0; column < s.d_padded; column += kColumns) {
      for (int64_t h = 0; h < a.n_heads; h += kHeads) {
        multiply_rows<FmaDot<V>, Start::kScaled>({.rows = s.p + h * kTile,
                                                  .row_stride = kTile,
                                                  .tile = s.values + column * kTile,
                                                  .tile_stride = kColumns,
                                                  .n_steps = n,
                                                  .out = s.sums + h * s.d_padded + column,
                                                  .out_stride = s.d_padded},
                                                 a.n_heads - h < kHeads ? a.n_heads - h : kHeads, s.factor + h);
      }
    }
  }

  static void finish(const AttentionJob& a, const Scratch& s) {
    for (int64_t h = 0; h < a.n_heads; ++h) {
      const F32 sum = V::broadcast(a.n_picks == 0 ? 1.0f : s.sum[h]);
      for (int64_t i = 0; i < a.format.d_latent; i += 16) {
        const int64_t n = a.format.d_latent - i < 16 ? a.format.d_latent - i : 16;
        V::store_n(a.out + h * a.out_stride + i, V::div(V::load(s.sums + h * s.d_padded + i), sum),
                   static_cast<int>(n));
      }
    }
  }

  static void attend(const AttentionJob& a) {
    const Scratch s = lay_out(a.scratch, a.format, a.n_heads);
    prepare_queries(a, s);
    for (int64_t i = 0; i < s.n_padded_units; ++i) s.rows[16 * s.n_padded_units + i] = 0;
    for (int64_t i = 0; i < a.n_heads * s.d_padded; ++i) s.sums[i] = 0;
    for (int64_t h = 0; h < a.n_heads; ++h) {
      s.maximum[h] = -__builtin_inff();
      s.sum[h] = 0;
    }
    for (int64_t begin = 0; begin < a.n_picks; begin += kTile) {
      const int64_t n = a.n_picks - begin < kTile ? a.n_picks - begin : kTile;
      gather(a, s, begin, n);
      score(a, s);
      for (int64_t h = 0; h < a.n_heads; ++h) softmax(a, s, h, static_cast<int>(n));
      accumulate(a, s, n);
    }
    finish(a, s);
  }
};

}  // namespace
}  // namespace levin::kernels
