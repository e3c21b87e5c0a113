// simd.h on AVX2 with FMA and F16C: two ymm registers are the 16 lanes, 0..7 and 8..15.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/simd_macros.h"

namespace levin::kernels {
namespace {

struct Avx2 {
  struct F32 {
    __m256 low, high;
  };
  struct I32 {
    __m256i low, high;
  };
  struct Mask {  // all bits of a lane set or clear
    __m256 low, high;
  };

  // --- F32 ---
  LEVIN_INLINE F32 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  LEVIN_INLINE F32 broadcast(float x) {
    const __m256 v = _mm256_set1_ps(x);
    return {v, v};
  }
  LEVIN_INLINE F32 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  LEVIN_INLINE void store(float* p, F32 x) {
    _mm256_storeu_ps(p, x.low);
    _mm256_storeu_ps(p + 8, x.high);
  }
  LEVIN_INLINE F32 load_n(const float* p, int n) {
    const Mask m = first_n(n);
    return {_mm256_maskload_ps(p, _mm256_castps_si256(m.low)), _mm256_maskload_ps(p + 8, _mm256_castps_si256(m.high))};
  }
  LEVIN_INLINE F32 load_twice(const float* p) {
    const __m256 x = _mm256_loadu_ps(p);
    return {_mm256_permutevar8x32_ps(x, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3)),
            _mm256_permutevar8x32_ps(x, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7))};
  }
  LEVIN_INLINE void store_n(float* p, F32 x, int n) {
    if (n >= 16) return store(p, x);  // on some processors a masked store takes 18 operations
    const Mask m = first_n(n);
    _mm256_maskstore_ps(p, _mm256_castps_si256(m.low), x.low);
    _mm256_maskstore_ps(p + 8, _mm256_castps_si256(m.high), x.high);
  }
  LEVIN_INLINE F32 add(F32 a, F32 b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
  LEVIN_INLINE F32 sub(F32 a, F32 b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
  LEVIN_INLINE F32 mul(F32 a, F32 b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
  LEVIN_INLINE F32 div(F32 a, F32 b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
  LEVIN_INLINE F32 fma(F32 a, F32 b, F32 c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
  }
  LEVIN_INLINE F32 sqrt(F32 x) { return {_mm256_sqrt_ps(x.low), _mm256_sqrt_ps(x.high)}; }
  LEVIN_INLINE F32 ceil(F32 x) { return {_mm256_ceil_ps(x.low), _mm256_ceil_ps(x.high)}; }
  LEVIN_INLINE F32 max(F32 a, F32 b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
  LEVIN_INLINE F32 min(F32 a, F32 b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }
  LEVIN_INLINE F32 abs(F32 x) { return from_bits(and_i(bits(x), broadcast_i(0x7FFFFFFF))); }

  LEVIN_INLINE float reduce_add(F32 x) {
    const __m256 half = _mm256_add_ps(x.low, x.high);
    const __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    const __m128 pair = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
  }
  LEVIN_INLINE float reduce_max(F32 x) {
    const __m256 half = _mm256_max_ps(x.low, x.high);
    const __m128 quarter = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    const __m128 pair = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_max_ss(pair, _mm_movehdup_ps(pair)));
  }

  // --- I32 ---
  LEVIN_INLINE I32 broadcast_i(int32_t x) {
    const __m256i v = _mm256_set1_epi32(x);
    return {v, v};
  }
  LEVIN_INLINE I32 load_i(const int32_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
  }
  LEVIN_INLINE void store_i(int32_t* p, I32 x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.low);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), x.high);
  }
  LEVIN_INLINE I32 add_i(I32 a, I32 b) { return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)}; }
  LEVIN_INLINE I32 sub_i(I32 a, I32 b) { return {_mm256_sub_epi32(a.low, b.low), _mm256_sub_epi32(a.high, b.high)}; }
  LEVIN_INLINE I32 and_i(I32 a, I32 b) { return {_mm256_and_si256(a.low, b.low), _mm256_and_si256(a.high, b.high)}; }
  LEVIN_INLINE I32 or_i(I32 a, I32 b) { return {_mm256_or_si256(a.low, b.low), _mm256_or_si256(a.high, b.high)}; }
  LEVIN_INLINE I32 xor_i(I32 a, I32 b) { return {_mm256_xor_si256(a.low, b.low), _mm256_xor_si256(a.high, b.high)}; }
  LEVIN_INLINE I32 min_i(I32 a, I32 b) { return {_mm256_min_epi32(a.low, b.low), _mm256_min_epi32(a.high, b.high)}; }
  template <int n>
  LEVIN_INLINE I32 shl(I32 x) {
    return {_mm256_slli_epi32(x.low, n), _mm256_slli_epi32(x.high, n)};
  }
  template <int n>
  LEVIN_INLINE I32 shr(I32 x) {
    return {_mm256_srli_epi32(x.low, n), _mm256_srli_epi32(x.high, n)};
  }
  template <int n>
  LEVIN_INLINE I32 sar(I32 x) {
    return {_mm256_srai_epi32(x.low, n), _mm256_srai_epi32(x.high, n)};
  }

  LEVIN_INLINE I32 bits(F32 x) { return {_mm256_castps_si256(x.low), _mm256_castps_si256(x.high)}; }
  LEVIN_INLINE F32 from_bits(I32 x) { return {_mm256_castsi256_ps(x.low), _mm256_castsi256_ps(x.high)}; }
  LEVIN_INLINE I32 to_i32(F32 x) { return {_mm256_cvtps_epi32(x.low), _mm256_cvtps_epi32(x.high)}; }

  // --- Mask ---
  template <int kPredicate>
  LEVIN_INLINE Mask compare(F32 a, F32 b) {
    return {_mm256_cmp_ps(a.low, b.low, kPredicate), _mm256_cmp_ps(a.high, b.high, kPredicate)};
  }
  LEVIN_INLINE Mask as_mask(I32 x) { return {_mm256_castsi256_ps(x.low), _mm256_castsi256_ps(x.high)}; }
  LEVIN_INLINE Mask less(F32 a, F32 b) { return compare<_CMP_LT_OQ>(a, b); }
  LEVIN_INLINE Mask less_equal(F32 a, F32 b) { return compare<_CMP_LE_OQ>(a, b); }
  LEVIN_INLINE Mask equal(F32 a, F32 b) { return compare<_CMP_EQ_OQ>(a, b); }
  LEVIN_INLINE Mask less_i(I32 a, I32 b) {
    return as_mask({_mm256_cmpgt_epi32(b.low, a.low), _mm256_cmpgt_epi32(b.high, a.high)});
  }
  LEVIN_INLINE Mask first_n(int n) {
    const I32 lanes = {_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)};
    return less_i(lanes, broadcast_i(n));
  }
  LEVIN_INLINE uint32_t mask_bits(Mask m) {
    return static_cast<uint32_t>(_mm256_movemask_ps(m.low)) | static_cast<uint32_t>(_mm256_movemask_ps(m.high)) << 8;
  }
  LEVIN_INLINE F32 select(Mask m, F32 a, F32 b) {
    return {_mm256_blendv_ps(b.low, a.low, m.low), _mm256_blendv_ps(b.high, a.high, m.high)};
  }
  LEVIN_INLINE I32 select_i(Mask m, I32 a, I32 b) { return bits(select(m, from_bits(a), from_bits(b))); }

  // --- other types ---
  LEVIN_INLINE __m128i load_128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
  LEVIN_INLINE F32 load_bf16(const uint16_t* p) {
    return from_bits(shl<16>(I32{_mm256_cvtepu16_epi32(load_128(p)), _mm256_cvtepu16_epi32(load_128(p + 8))}));
  }
  // 8 words, each with a code in its upper byte, as 256 times too small f16 values: all codes are exact there.
  LEVIN_INLINE __m256 e4m3_words_to_f32(__m128i upper) {
    const __m128i half = _mm_and_si128(_mm_srai_epi16(upper, 1), _mm_set1_epi16(static_cast<int16_t>(0xBF80)));
    return _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256.0f));
  }
  LEVIN_INLINE F32 load_e4m3(const uint8_t* p) {
    const __m128i codes = load_128(p), none = _mm_setzero_si128();
    return {e4m3_words_to_f32(_mm_unpacklo_epi8(none, codes)), e4m3_words_to_f32(_mm_unpackhi_epi8(none, codes))};
  }
  LEVIN_INLINE void load_bf16_pairs(const uint16_t* p, F32& even, F32& odd) {
    const I32 pairs = load_i(reinterpret_cast<const int32_t*>(p));
    even = from_bits(shl<16>(pairs));
    odd = from_bits(and_i(pairs, broadcast_i(static_cast<int32_t>(0xFFFF0000u))));
  }
  LEVIN_INLINE void load_e4m3_fours(const uint8_t* p, F32 (&k)[4]) {
    const __m128i lanes[4] = {load_128(p), load_128(p + 16), load_128(p + 32), load_128(p + 48)};
    const __m128i pairs[2][2] = {
        {_mm_unpacklo_epi64(lanes[0], lanes[1]), _mm_unpacklo_epi64(lanes[2], lanes[3])},
        {_mm_unpackhi_epi64(lanes[0], lanes[1]), _mm_unpackhi_epi64(lanes[2], lanes[3])},
    };
    for (int i = 0; i < 2; ++i) {
      const __m128i low = pairs[i][0], high = pairs[i][1];
      k[2 * i] = {e4m3_words_to_f32(_mm_slli_epi16(low, 8)), e4m3_words_to_f32(_mm_slli_epi16(high, 8))};
      k[2 * i + 1] = {e4m3_words_to_f32(low), e4m3_words_to_f32(high)};
    }
  }
  LEVIN_INLINE __m256 e2m1_to_f32x8(__m256i codes) {
    const __m256 magnitudes = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
    const __m256i sign = _mm256_and_si256(_mm256_slli_epi32(codes, 28), _mm256_set1_epi32(INT32_MIN));
    return _mm256_or_ps(_mm256_permutevar8x32_ps(magnitudes, codes), _mm256_castsi256_ps(sign));  // reads three bits
  }
  LEVIN_INLINE F32 e2m1_to_f32(I32 codes) { return {e2m1_to_f32x8(codes.low), e2m1_to_f32x8(codes.high)}; }
  LEVIN_INLINE F32 load_e8m0(const uint8_t* p) {
    const __m128i codes = load_128(p);
    return from_bits(shl<23>(I32{_mm256_cvtepu8_epi32(codes), _mm256_cvtepu8_epi32(_mm_srli_si128(codes, 8))}));
  }
  // f32 -> bf16 bits in the low half of each lane.
  LEVIN_INLINE I32 bf16_bits(F32 x) {
    const I32 u = bits(x);
    const I32 rounded = shr<16>(add_i(u, add_i(broadcast_i(0x7FFF), and_i(shr<16>(u), broadcast_i(1)))));
    const I32 quiet = or_i(shr<16>(u), broadcast_i(0x40));
    return select_i(compare<_CMP_UNORD_Q>(x, x), quiet, rounded);
  }
  // The low halves of the 16 lanes, in order.
  LEVIN_INLINE __m256i low_words(I32 x) { return _mm256_permute4x64_epi64(_mm256_packus_epi32(x.low, x.high), 0xD8); }
  LEVIN_INLINE void store_bf16(uint16_t* p, F32 x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), low_words(bf16_bits(x)));
  }
  // f32 -> e4m3 code in the low byte of each lane; the steps of base/numbers.h, f32_to_e4m3.
  LEVIN_INLINE I32 e4m3_bits(F32 x) {
    const I32 u = bits(x), magnitude = and_i(u, broadcast_i(0x7FFFFFFF));
    const I32 sign = and_i(shr<24>(u), broadcast_i(0x80));
    const F32 shifter = broadcast(0x1p23f);
    const F32 steps = sub(add(mul(from_bits(magnitude), broadcast(0x1p9f)), shifter), shifter);
    const I32 odd = and_i(shr<20>(magnitude), broadcast_i(1));
    const I32 rounded = sub_i(shr<20>(add_i(magnitude, add_i(broadcast_i(0x7FFFF), odd))), broadcast_i(120 << 3));
    I32 code = min_i(rounded, broadcast_i(0x7E));
    code = select_i(less_i(magnitude, broadcast_i(0x3C800000)), to_i32(steps), code);
    code = select_i(less_i(broadcast_i(0x7F800000), magnitude), broadcast_i(0x7F), code);
    return or_i(code, sign);
  }
  LEVIN_INLINE void store_e4m3(uint8_t* p, F32 x) {
    const __m256i words = low_words(e4m3_bits(x));
    const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
  }

  LEVIN_INLINE void transpose_8x8(__m256 r[8]) {
    __m256 a[8], b[8];
    for (int i = 0; i < 8; i += 2) {
      a[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
      a[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
      b[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
      b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xEE);
      b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
      b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xEE);
    }
    for (int c = 0; c < 4; ++c) {
      r[c] = _mm256_permute2f128_ps(b[c], b[4 + c], 0x20);
      r[4 + c] = _mm256_permute2f128_ps(b[c], b[4 + c], 0x31);
    }
  }
  // Rows of 8 in place: columns 0 and 1, 2 and 3, 4 and 5, 6 and 7 of the four.
  LEVIN_INLINE void interleave_8(__m256 (&r)[4]) {
    const __m256 low01 = _mm256_unpacklo_ps(r[0], r[1]), low23 = _mm256_unpacklo_ps(r[2], r[3]);
    const __m256 high01 = _mm256_unpackhi_ps(r[0], r[1]), high23 = _mm256_unpackhi_ps(r[2], r[3]);
    const __m256 c0 = _mm256_shuffle_ps(low01, low23, 0x44), c1 = _mm256_shuffle_ps(low01, low23, 0xEE);
    const __m256 c2 = _mm256_shuffle_ps(high01, high23, 0x44), c3 = _mm256_shuffle_ps(high01, high23, 0xEE);
    r[0] = _mm256_permute2f128_ps(c0, c1, 0x20);
    r[1] = _mm256_permute2f128_ps(c2, c3, 0x20);
    r[2] = _mm256_permute2f128_ps(c0, c1, 0x31);
    r[3] = _mm256_permute2f128_ps(c2, c3, 0x31);
  }
  LEVIN_INLINE void interleave(F32 (&rows)[4]) {
    __m256 low[4] = {rows[0].low, rows[1].low, rows[2].low, rows[3].low};
    __m256 high[4] = {rows[0].high, rows[1].high, rows[2].high, rows[3].high};
    interleave_8(low);
    interleave_8(high);
    rows[0] = {low[0], low[1]};
    rows[1] = {low[2], low[3]};
    rows[2] = {high[0], high[1]};
    rows[3] = {high[2], high[3]};
  }
  LEVIN_INLINE F32 swap_pairs(F32 x) { return {_mm256_permute_ps(x.low, 0xB1), _mm256_permute_ps(x.high, 0xB1)}; }
  LEVIN_INLINE void transpose(F32 rows[16]) {
    __m256 block[4][8];  // the four 8 x 8 blocks: rows 0-7 or 8-15, columns 0-7 or 8-15
    for (int i = 0; i < 8; ++i) {
      block[0][i] = rows[i].low;
      block[1][i] = rows[i].high;
      block[2][i] = rows[8 + i].low;
      block[3][i] = rows[8 + i].high;
    }
    for (auto& b : block) transpose_8x8(b);
    for (int i = 0; i < 8; ++i) {
      rows[i] = {block[0][i], block[2][i]};
      rows[8 + i] = {block[1][i], block[3][i]};
    }
  }
};

}  // namespace
}  // namespace levin::kernels
