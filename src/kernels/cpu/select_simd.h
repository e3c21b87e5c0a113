// The exact choice of the K best of a row in two passes over it and a few over what is left.
//
//   1  every 16th score: an estimate of the K-th best, on the low side
//   2  all scores: slots and scores of those that reach the estimate, in order. Were they fewer than K, the pass is
//      repeated without an estimate, so the estimate cannot change the result.
//   3  what is left, as integers in the order of the scores: a bound that exactly the K best exceed, or the K-th best
//      itself where others equal it, bit by bit from the top by counting those that reach a value
//   4  what is left: those above it, and of those equal to it the first ones
#pragma once

#include "kernels/cpu/index.h"
#include "kernels/cpu/simd.h"

namespace levin::kernels {
namespace {

template <class V>
struct Select {
  using F32 = typename V::F32;
  using I32 = typename V::I32;
  static constexpr int64_t kSampleStride = 16;

  // Integers in the order of the scores; -0 and +0 are the same.
  static int32_t key_of(float score) {
    const float x = score + 0.0f;  // -0 becomes +0
    int32_t bits;
    __builtin_memcpy(&bits, &x, sizeof(bits));
    return bits ^ ((bits >> 31) & INT32_MAX);
  }
  static float score_of(int32_t key) {
    const int32_t bits = key ^ ((key >> 31) & INT32_MAX);
    float x;
    __builtin_memcpy(&x, &bits, sizeof(x));
    return x;
  }

  // The best: all keys above `key` and the first n_to_take of those equal to it.
  struct Bound {
    int32_t key = 0;
    int64_t n_to_take = 0;
  };

  // n a multiple of 16.
  static int64_t count_from(const int32_t* key, int64_t n, int32_t least) {
    const I32 wanted = V::broadcast_i(least);
    int64_t n_below = 0;
    for (int64_t i = 0; i < n; i += 16) {
      n_below += __builtin_popcount(V::mask_bits(V::less_i(V::load_i(key + i), wanted)));
    }
    return n - n_below;
  }

  // Bound of the k best of n keys, 1 <= k <= n; there is room for 15 keys more.
  static Bound find_bound(int32_t* key, int64_t n, int64_t k) {
    const int64_t n_padded = (n + 15) / 16 * 16;
    for (int64_t i = n; i < n_padded; ++i) key[i] = INT32_MIN;  // reaches nothing that is tried
    uint32_t found = 0;                                         // the upper bits of the k-th best, from INT32_MIN
    int64_t n_above = 0;
    for (uint32_t bit = 1u << 31; bit != 0; bit >>= 1) {
      const auto tried = static_cast<int32_t>((found | bit) ^ 0x80000000u);
      const int64_t count = count_from(key, n_padded, tried);
      if (count == k) return {.key = tried - 1, .n_to_take = 0};
      if (count > k) found |= bit;
      if (count < k) n_above = count;
    }
    return {.key = static_cast<int32_t>(found ^ 0x80000000u), .n_to_take = k - n_above};
  }

  [[gnu::always_inline]] static I32 keys_of(F32 score) {
    const I32 bits = V::bits(V::add(score, V::zero()));
    return V::xor_i(bits, V::and_i(V::template sar<31>(bits), V::broadcast_i(INT32_MAX)));
  }

  struct Survivors {
    int32_t* slot;
    int32_t* key;
    int64_t n = 0;
    uint32_t nan_bits = 0;  // not zero if any score is NaN
  };

  [[gnu::always_inline]] static void keep(Survivors& left, F32 x, int64_t slot, uint32_t which) {
#if defined(__AVX512F__)
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const auto mask = static_cast<__mmask16>(which);
    const I32 slots = V::add_i(lanes, V::broadcast_i(static_cast<int32_t>(slot)));
    V::store_i(left.slot + left.n, _mm512_maskz_compress_epi32(mask, slots));
    V::store_i(left.key + left.n, _mm512_maskz_compress_epi32(mask, keys_of(x)));
    left.n += __builtin_popcount(which);
#else
    int32_t lane[16];
    if (which != 0) V::store_i(lane, keys_of(x));
    for (; which != 0; which &= which - 1) {
      const int j = __builtin_ctz(which);
      left.slot[left.n] = static_cast<int32_t>(slot + j);
      left.key[left.n++] = lane[j];
    }
#endif
  }

  // The slots of begin .. end-1 whose score reaches the threshold.
  static void filter(const SelectJob& a, float threshold, Survivors& left) {
    const F32 wanted = V::broadcast(threshold);
    left.n = 0;
    left.nan_bits = 0;
    int64_t s = a.begin;
    for (; s + 16 <= a.end; s += 16) {
      const F32 x = V::load(a.score + s);
      left.nan_bits |= V::mask_bits(V::equal(x, x)) ^ 0xFFFFu;
      keep(left, x, s, V::mask_bits(V::less_equal(wanted, x)));
    }
    if (s >= a.end) return;
    const int n = static_cast<int>(a.end - s);
    const uint32_t there = (1u << n) - 1;
    const F32 x = V::load_n(a.score + s, n);
    left.nan_bits |= (V::mask_bits(V::equal(x, x)) ^ 0xFFFFu) & there;
    keep(left, x, s, V::mask_bits(V::less_equal(wanted, x)) & there);
  }

  // A score that very likely K or somewhat more candidates reach: the quantile of a sample, four deviations to the safe
  // side. Minus infinity where that would keep most of them.
  static float estimate(const SelectJob& a, int32_t* sample) {
    const float expected = static_cast<float>(a.n_topk) / static_cast<float>(kSampleStride);
    const int64_t rank = static_cast<int64_t>(expected + 4.0f * __builtin_sqrtf(expected)) + 8;
    if (4 * kSampleStride * rank > 3 * (a.end - a.begin)) return -__builtin_inff();
    int64_t n = 0;
    for (int64_t s = a.begin; s < a.end; s += kSampleStride) sample[n++] = key_of(a.score[s]);
    return score_of(find_bound(sample, n, rank).key);
  }

  static int64_t first_nan(const SelectJob& a) {
    int64_t s = a.begin;
    while (a.score[s] == a.score[s]) ++s;
    return s;
  }

  static int64_t select(const SelectJob& a) {
    const int64_t n = a.end > a.begin ? a.end - a.begin : 0, n_taken = n < a.n_topk ? n : a.n_topk;
    Survivors left{.slot = a.scratch, .key = a.scratch + n + 64};
    filter(a, estimate(a, left.key), left);
    if (left.nan_bits != 0) return first_nan(a);
    if (left.n < n_taken) filter(a, -__builtin_inff(), left);

    int64_t n_out = 0;
    if (n_taken > 0) {
      Bound bound = find_bound(left.key, left.n, n_taken);
      for (int64_t i = 0; n_out < n_taken; ++i) {  // ends at the last taken
        const bool equal = left.key[i] == bound.key;
        a.topk[n_out] = left.slot[i];
        n_out += (left.key[i] > bound.key) | (equal & (bound.n_to_take > 0));
        bound.n_to_take -= equal;
      }
    }
    for (; n_out < a.n_topk; ++n_out) a.topk[n_out] = -1;
    return kNoNan;
  }
};

}  // namespace
}  // namespace levin::kernels
