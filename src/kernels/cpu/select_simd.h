// The exact choice of the K best of a row in two passes over it and a few over what is left.
//
//   1  every 16th score: an estimate of the K-th best, on the low side
//   2  all scores: slots and scores of those that reach the estimate, in order. Were they fewer than K, the pass is
//      repeated without an estimate, so the estimate cannot change the result.
//   3  what is left, as integers in the order of the scores: the K-th best exactly, by counting 11, 11 and 10 bits
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
  static constexpr int64_t kFewCandidates = 4096;  // from here on an estimate pays

  // Unsigned integers in the order of the scores; -0 and +0 are the same.
  static uint32_t key_of(float score) {
    const float x = score + 0.0f;  // -0 becomes +0
    uint32_t bits;
    __builtin_memcpy(&bits, &x, sizeof(bits));
    return bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u);
  }
  static float score_of(uint32_t key) {
    const uint32_t bits = (key & 0x80000000u) != 0 ? key ^ 0x80000000u : ~key;
    float x;
    __builtin_memcpy(&x, &bits, sizeof(x));
    return x;
  }

  struct Kth {
    uint32_t key = 0;       // of the k-th largest
    int64_t n_to_take = 0;  // of those equal to it
  };

  // The k-th largest of n keys, 1 <= k <= n.
  static Kth find_kth(const uint32_t* key, int64_t n, int64_t k) {
    constexpr int kBits[3] = {11, 11, 10};
    uint32_t count[2048 + 1];  // the last one for keys whose upper bits already differ
    uint32_t prefix = 0;
    int shift = 32;
    for (const int bits : kBits) {
      const uint32_t above_shift = static_cast<uint32_t>(shift);
      shift -= bits;
      const uint32_t mask = (1u << bits) - 1;
      for (uint32_t& c : count) c = 0;
      for (int64_t i = 0; i < n; ++i) {
        const bool same = (static_cast<uint64_t>(key[i]) >> above_shift) == prefix;
        ++count[same ? (key[i] >> shift) & mask : 2048u];
      }
      uint32_t digit = mask;
      for (; count[digit] < k; --digit) k -= count[digit];
      prefix = prefix << bits | digit;
    }
    return {.key = prefix, .n_to_take = k};
  }

  [[gnu::always_inline]] static I32 keys_of(F32 score) {
    const I32 bits = V::bits(V::add(score, V::zero()));
    return V::xor_i(bits, V::or_i(V::template sar<31>(bits), V::broadcast_i(INT32_MIN)));
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
  // side.
  static float estimate(const SelectJob& a, uint32_t* sample) {
    int64_t n = 0;
    for (int64_t s = a.begin; s < a.end; s += kSampleStride) sample[n++] = key_of(a.score[s]);
    const float expected = static_cast<float>(a.n_picks) / static_cast<float>(kSampleStride);
    const int64_t rank = static_cast<int64_t>(expected + 4.0f * __builtin_sqrtf(expected)) + 8;
    return rank < n ? score_of(find_kth(sample, n, rank).key) : -__builtin_inff();
  }

  static int64_t first_nan(const SelectJob& a) {
    int64_t s = a.begin;
    while (a.score[s] == a.score[s]) ++s;
    return s;
  }

  static int64_t select(const SelectJob& a) {
    const int64_t n = a.end > a.begin ? a.end - a.begin : 0, n_taken = n < a.n_picks ? n : a.n_picks;
    Survivors left{.slot = a.scratch, .key = a.scratch + n + 64};
    auto* key = reinterpret_cast<uint32_t*>(left.key);
    filter(a, n > kFewCandidates ? estimate(a, key) : -__builtin_inff(), left);
    if (left.nan_bits != 0) return first_nan(a);
    if (left.n < n_taken) filter(a, -__builtin_inff(), left);

    int64_t n_out = 0;
    if (n_taken > 0) {
      Kth kth = find_kth(key, left.n, n_taken);
      for (int64_t i = 0; n_out < n_taken; ++i) {  // ends at the last taken: n_taken of them reach the k-th
        const bool equal = key[i] == kth.key;
        a.picks[n_out] = left.slot[i];
        n_out += (key[i] > kth.key) | (equal & (kth.n_to_take > 0));
        kth.n_to_take -= equal;
      }
    }
    for (; n_out < a.n_picks; ++n_out) a.picks[n_out] = -1;
    return kNoNan;
  }
};

}  // namespace
}  // namespace levin::kernels
