// simd.h on AVX-512: one zmm register is the 16 lanes.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/simd_macros.h"

namespace levin::kernels {
namespace {

struct Avx512 {
  using F32 = __m512;
  using I32 = __m512i;
  using Mask = __mmask16;

  // --- F32 ---
  LEVIN_INLINE F32 zero() { return _mm512_setzero_ps(); }
  LEVIN_INLINE F32 broadcast(float x) { return _mm512_set1_ps(x); }
  LEVIN_INLINE F32 load(const float* p) { return _mm512_loadu_ps(p); }
  LEVIN_INLINE void store(float* p, F32 x) { _mm512_storeu_ps(p, x); }
  LEVIN_INLINE F32 load_n(const float* p, int n) { return _mm512_maskz_loadu_ps(first_n(n), p); }
  LEVIN_INLINE F32 load_twice(const float* p) {
    const __m512i from = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    return _mm512_permutexvar_ps(from, _mm512_castps256_ps512(_mm256_loadu_ps(p)));
  }
  LEVIN_INLINE void store_n(float* p, F32 x, int n) { _mm512_mask_storeu_ps(p, first_n(n), x); }
  LEVIN_INLINE F32 add(F32 a, F32 b) { return _mm512_add_ps(a, b); }
  LEVIN_INLINE F32 sub(F32 a, F32 b) { return _mm512_sub_ps(a, b); }
  LEVIN_INLINE F32 mul(F32 a, F32 b) { return _mm512_mul_ps(a, b); }
  LEVIN_INLINE F32 div(F32 a, F32 b) { return _mm512_div_ps(a, b); }
  LEVIN_INLINE F32 fma(F32 a, F32 b, F32 c) { return _mm512_fmadd_ps(a, b, c); }
  LEVIN_INLINE F32 sqrt(F32 x) { return _mm512_sqrt_ps(x); }
  LEVIN_INLINE F32 ceil(F32 x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC); }
  LEVIN_INLINE F32 max(F32 a, F32 b) { return _mm512_max_ps(a, b); }
  LEVIN_INLINE F32 min(F32 a, F32 b) { return _mm512_min_ps(a, b); }
  LEVIN_INLINE F32 abs(F32 x) { return from_bits(and_i(bits(x), broadcast_i(0x7FFFFFFF))); }

  LEVIN_INLINE float reduce_add(F32 x) {
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    const __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    const __m128 pair = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
  }
  LEVIN_INLINE float reduce_max(F32 x) {
    const __m256 half = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    const __m128 quarter = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    const __m128 pair = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
    return _mm_cvtss_f32(_mm_max_ss(pair, _mm_movehdup_ps(pair)));
  }

  // --- I32 ---
  LEVIN_INLINE I32 broadcast_i(int32_t x) { return _mm512_set1_epi32(x); }
  LEVIN_INLINE I32 load_i(const int32_t* p) { return _mm512_loadu_si512(p); }
  LEVIN_INLINE void store_i(int32_t* p, I32 x) { _mm512_storeu_si512(p, x); }
  LEVIN_INLINE I32 add_i(I32 a, I32 b) { return _mm512_add_epi32(a, b); }
  LEVIN_INLINE I32 sub_i(I32 a, I32 b) { return _mm512_sub_epi32(a, b); }
  LEVIN_INLINE I32 and_i(I32 a, I32 b) { return _mm512_and_si512(a, b); }
  LEVIN_INLINE I32 or_i(I32 a, I32 b) { return _mm512_or_si512(a, b); }
  LEVIN_INLINE I32 xor_i(I32 a, I32 b) { return _mm512_xor_si512(a, b); }
  LEVIN_INLINE I32 min_i(I32 a, I32 b) { return _mm512_min_epi32(a, b); }
  template <int n>
  LEVIN_INLINE I32 shl(I32 x) {
    return _mm512_slli_epi32(x, n);
  }
  template <int n>
  LEVIN_INLINE I32 shr(I32 x) {
    return _mm512_srli_epi32(x, n);
  }
  template <int n>
  LEVIN_INLINE I32 sar(I32 x) {
    return _mm512_srai_epi32(x, n);
  }

  LEVIN_INLINE I32 bits(F32 x) { return _mm512_castps_si512(x); }
  LEVIN_INLINE F32 from_bits(I32 x) { return _mm512_castsi512_ps(x); }
  LEVIN_INLINE I32 to_i32(F32 x) { return _mm512_cvtps_epi32(x); }

  // --- Mask ---
  LEVIN_INLINE Mask less(F32 a, F32 b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
  LEVIN_INLINE Mask less_equal(F32 a, F32 b) { return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ); }
  LEVIN_INLINE Mask equal(F32 a, F32 b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
  LEVIN_INLINE Mask less_i(I32 a, I32 b) { return _mm512_cmplt_epi32_mask(a, b); }
  LEVIN_INLINE Mask first_n(int n) { return static_cast<Mask>(n >= 16 ? 0xFFFFu : (1u << n) - 1); }
  LEVIN_INLINE uint32_t mask_bits(Mask m) { return m; }
  LEVIN_INLINE F32 select(Mask m, F32 a, F32 b) { return _mm512_mask_blend_ps(m, b, a); }
  LEVIN_INLINE I32 select_i(Mask m, I32 a, I32 b) { return _mm512_mask_blend_epi32(m, b, a); }

  // --- other types ---
  LEVIN_INLINE F32 load_bf16(const uint16_t* p) {
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return from_bits(shl<16>(_mm512_cvtepu16_epi32(words)));
  }
  // 16 words, each with a code in its upper byte, as 256 times too small f16 values: all codes are exact there.
  LEVIN_INLINE F32 e4m3_words_to_f32(__m256i upper) {
    const __m256i half = _mm256_and_si256(_mm256_srai_epi16(upper, 1), _mm256_set1_epi16(static_cast<int16_t>(0xBF80)));
    return mul(_mm512_cvtph_ps(half), broadcast(256.0f));
  }
  LEVIN_INLINE F32 load_e4m3(const uint8_t* p) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return e4m3_words_to_f32(_mm256_slli_epi16(_mm256_cvtepu8_epi16(codes), 8));
  }
  LEVIN_INLINE void load_bf16_pairs(const uint16_t* p, F32& even, F32& odd) {
    const I32 pairs = _mm512_loadu_si512(p);
    even = from_bits(shl<16>(pairs));
    odd = from_bits(and_i(pairs, broadcast_i(static_cast<int32_t>(0xFFFF0000u))));
  }
  LEVIN_INLINE void load_e4m3_fours(const uint8_t* p, F32 (&k)[4]) {
    const __m512i codes = _mm512_loadu_si512(p);  // a code of even and one of odd k in each word
    const __m512i f16 = _mm512_set1_epi16(static_cast<int16_t>(0xBF80));
    const __m512i even = _mm512_and_si512(_mm512_srai_epi16(_mm512_slli_epi16(codes, 8), 1), f16);
    const __m512i odd = _mm512_and_si512(_mm512_srai_epi16(codes, 1), f16);
    const __m512i pairs = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);  // all of the first, then all of the second
    const __m512i evens = _mm512_permutexvar_epi64(pairs, even), odds = _mm512_permutexvar_epi64(pairs, odd);
    k[0] = mul(_mm512_cvtph_ps(_mm512_castsi512_si256(evens)), broadcast(256.0f));
    k[1] = mul(_mm512_cvtph_ps(_mm512_castsi512_si256(odds)), broadcast(256.0f));
    k[2] = mul(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(evens, 1)), broadcast(256.0f));
    k[3] = mul(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(odds, 1)), broadcast(256.0f));
  }
  LEVIN_INLINE I32 load_bytes(const uint8_t* p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  LEVIN_INLINE F32 e2m1_to_f32(I32 codes) {  // a permutation reads the low four bits of a lane
    return _mm512_permutexvar_ps(codes, _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f,
                                                       -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f));
  }
  LEVIN_INLINE F32 load_e8m0(const uint8_t* p) { return from_bits(shl<23>(load_bytes(p))); }
  // f32 -> bf16 bits in the low half of each lane.
  LEVIN_INLINE I32 bf16_bits(F32 x) {
    const I32 u = bits(x);
    const I32 rounded = shr<16>(add_i(u, add_i(broadcast_i(0x7FFF), and_i(shr<16>(u), broadcast_i(1)))));
    const I32 quiet = or_i(shr<16>(u), broadcast_i(0x40));
    return _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), rounded, quiet);
  }
  LEVIN_INLINE void store_bf16(uint16_t* p, F32 x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(bf16_bits(x)));
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
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(e4m3_bits(x)));
  }

  LEVIN_INLINE F32 swap_pairs(F32 x) { return _mm512_permute_ps(x, 0xB1); }
  LEVIN_INLINE void interleave(F32 (&rows)[4]) {
    const __m512 low01 = _mm512_unpacklo_ps(rows[0], rows[1]), low23 = _mm512_unpacklo_ps(rows[2], rows[3]);
    const __m512 high01 = _mm512_unpackhi_ps(rows[0], rows[1]), high23 = _mm512_unpackhi_ps(rows[2], rows[3]);
    const __m512 c0 = _mm512_shuffle_ps(low01, low23, 0x44), c1 = _mm512_shuffle_ps(low01, low23, 0xEE);
    const __m512 c2 = _mm512_shuffle_ps(high01, high23, 0x44), c3 = _mm512_shuffle_ps(high01, high23, 0xEE);
    // 128-bit lane q of c[i] is now column 4 q + i.
    const __m512 first01 = _mm512_shuffle_f32x4(c0, c1, 0x44), first23 = _mm512_shuffle_f32x4(c2, c3, 0x44);
    const __m512 last01 = _mm512_shuffle_f32x4(c0, c1, 0xEE), last23 = _mm512_shuffle_f32x4(c2, c3, 0xEE);
    rows[0] = _mm512_shuffle_f32x4(first01, first23, 0x88);
    rows[1] = _mm512_shuffle_f32x4(first01, first23, 0xDD);
    rows[2] = _mm512_shuffle_f32x4(last01, last23, 0x88);
    rows[3] = _mm512_shuffle_f32x4(last01, last23, 0xDD);
  }
  LEVIN_INLINE void transpose(F32 rows[16]) {
    F32 a[16], b[16];
    for (int i = 0; i < 16; i += 2) {
      a[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
      a[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
      b[i] = _mm512_shuffle_ps(a[i], a[i + 2], 0x44);
      b[i + 1] = _mm512_shuffle_ps(a[i], a[i + 2], 0xEE);
      b[i + 2] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0x44);
      b[i + 3] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0xEE);
    }
    // b[4q + c] holds, in its 128-bit part p, column 4p + c of rows 4q .. 4q+3.
    for (int c = 0; c < 4; ++c) {
      const F32 low01 = _mm512_shuffle_f32x4(b[c], b[4 + c], 0x44), high01 = _mm512_shuffle_f32x4(b[c], b[4 + c], 0xEE);
      const F32 low23 = _mm512_shuffle_f32x4(b[8 + c], b[12 + c], 0x44);
      const F32 high23 = _mm512_shuffle_f32x4(b[8 + c], b[12 + c], 0xEE);
      rows[c] = _mm512_shuffle_f32x4(low01, low23, 0x88);
      rows[4 + c] = _mm512_shuffle_f32x4(low01, low23, 0xDD);
      rows[8 + c] = _mm512_shuffle_f32x4(high01, high23, 0x88);
      rows[12 + c] = _mm512_shuffle_f32x4(high01, high23, 0xDD);
    }
  }
};

#if defined(__AVX512VBMI__)
// The 128 magnitudes of e4m3 as bf16, their upper bytes and their lower ones; the two NaN look like 480.
struct E4m3AsBf16 {
  alignas(64) uint8_t upper[128];
  alignas(64) uint8_t lower[128];
  constexpr E4m3AsBf16() : upper{}, lower{} {
    for (int code = 0; code < 128; ++code) {
      int exponent = code >> 3, fraction = code & 7;  // of a normal number
      if (exponent == 0 && fraction != 0) {
        for (exponent = 1; (fraction & 8) == 0; --exponent) fraction *= 2;
      }
      const int bits = code == 0 ? 0 : (exponent + 120) << 7 | (fraction & 7) << 4;
      upper[code] = static_cast<uint8_t>(bits >> 8);
      lower[code] = static_cast<uint8_t>(bits & 0xFF);
    }
  }
};
constexpr E4m3AsBf16 kE4m3AsBf16;

// Looks e4m3 up instead of computing it: half the instructions.
struct Avx512Vbmi : Avx512 {
  using Bf16 = __m512i;  // 32 bf16 values, a pair (2j, 2j + 1) in lane j

  // 4 k of 16 outputs of a panel: the upper and the lower byte of each magnitude are looked up and put together.
  LEVIN_INLINE void load_e4m3x64(const uint8_t* p, Bf16& first, Bf16& second) {
    const auto look_up = [](const uint8_t* table, __m512i codes) {  // by seven bits
      return _mm512_permutex2var_epi8(_mm512_load_si512(table), codes, _mm512_load_si512(table + 64));
    };
    const __m512i codes = _mm512_loadu_si512(p), sign = _mm512_set1_epi8(static_cast<char>(0x80));
    const __m512i lower = look_up(kE4m3AsBf16.lower, codes);
    const __m512i upper = _mm512_ternarylogic_epi32(look_up(kE4m3AsBf16.upper, codes), codes, sign, 0xF8);  // a | b & c
    first = _mm512_unpacklo_epi8(lower, upper);
    second = _mm512_unpackhi_epi8(lower, upper);
  }
  LEVIN_INLINE void load_e4m3_fours(const uint8_t* p, F32 (&k)[4]) {
    Bf16 first, second;
    load_e4m3x64(p, first, second);
    const I32 upper = broadcast_i(static_cast<int32_t>(0xFFFF0000u));
    k[0] = from_bits(shl<16>(first));
    k[1] = from_bits(and_i(first, upper));
    k[2] = from_bits(shl<16>(second));
    k[3] = from_bits(and_i(second, upper));
  }
};
#endif

#if defined(__AVX512BF16__)
struct Avx512Bf16 : Avx512Vbmi {
  // acc[j] + a[2j] b[2j] + a[2j+1] b[2j+1], as the instruction has it.
  LEVIN_INLINE F32 dot(Bf16 a, Bf16 b, F32 acc) {
    return _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
  // The instruction takes subnormal values for zeros: where there are any, the values are rounded as elsewhere.
  LEVIN_INLINE void store_bf16(uint16_t* p, F32 x) {
    constexpr int kSubnormal = 0x20;
    if (_mm512_fpclass_ps_mask(x, kSubnormal) != 0) return Avx512Vbmi::store_bf16(p, x);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)));
  }
  LEVIN_INLINE Bf16 load_bf16x32(const uint16_t* p) { return _mm512_loadu_si512(p); }
  LEVIN_INLINE Bf16 broadcast_pair(const uint16_t* p) {
    int32_t pair;
    __builtin_memcpy(&pair, p, sizeof(pair));
    return _mm512_set1_epi32(pair);
  }
  // 32 e4m3 codes as bf16, exact. Sign, exponent and mantissa are moved into place (the sign fills the upper byte
  // before); then the exponent is rebiased by an addition: 120 << 7 for normal codes, and for the eight magnitudes
  // below 2^-6, which are subnormal in e4m3 but normal in bf16, what makes theirs come out.
  LEVIN_INLINE Bf16 e4m3_to_bf16x32(__m256i codes) {
    const __m512i extended = _mm512_cvtepi8_epi16(codes);
    const __m512i moved =
        _mm512_and_si512(_mm512_slli_epi16(extended, 4), _mm512_set1_epi16(static_cast<int16_t>(0x87F0)));
    const __m512i small_bias =
        _mm512_set_epi16(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x3C60 - 0x70,
                         0x3C40 - 0x60, 0x3C20 - 0x50, 0x3C00 - 0x40, 0x3BC0 - 0x30, 0x3B80 - 0x20, 0x3B00 - 0x10, 0);
    const __mmask32 small = _mm512_testn_epi16_mask(extended, _mm512_set1_epi16(0x78));
    const __m512i bias = _mm512_mask_permutexvar_epi16(_mm512_set1_epi16(120 << 7), small, extended, small_bias);
    return _mm512_add_epi16(moved, bias);
  }
  // The low four bits of 32 words as bf16 values. A permutation reads five: the table stands there twice.
  LEVIN_INLINE Bf16 e2m1_to_bf16x32(I32 codes) {
    const __m512i values =
        _mm512_set4_epi64(static_cast<int64_t>(0xC0C0C080C040C000u), static_cast<int64_t>(0xBFC0BF80BF008000u),
                          0x40C0408040404000, 0x3FC03F803F000000);
    return _mm512_permutexvar_epi16(codes, values);
  }
  // 16 e8m0 codes as what to add to the exponents of both values of a lane.
  LEVIN_INLINE Bf16 load_e8m0_exponents(const uint8_t* p) {
    const I32 codes = load_bytes(p);
    const I32 both = or_i(codes, shl<16>(codes));
    return _mm512_slli_epi16(_mm512_sub_epi16(both, _mm512_set1_epi16(127)), 7);
  }
  LEVIN_INLINE Bf16 add_exponents(Bf16 x, Bf16 exponents) {  // zeros stay; exact where the results are normal
    return _mm512_mask_add_epi16(x, _mm512_test_epi16_mask(x, _mm512_set1_epi16(0x7FFF)), x, exponents);
  }
  // e4m3 scales of 16 lanes, none of them zero, as what to add to the bits of e2m1 values: of those with one significant
  // bit, 0.5, 1, 2 and 4, and of those with two, 1.5, 3 and 6, whose second bit is then in what is added.
  struct E4m3Scales {
    Bf16 of_one_bit, of_two_bits;
  };
  LEVIN_INLINE E4m3Scales load_e4m3_scales(const uint8_t* p) {
    constexpr int kOne = 0x3F80, kSecondBit = 0x0040;
    const F32 scale = load_e4m3(p), half_more = mul(scale, broadcast(1.5f));
    return {added_to_both(scale, kOne), added_to_both(half_more, kOne + kSecondBit)};
  }
  LEVIN_INLINE Bf16 scale_e2m1(Bf16 x, const E4m3Scales& s) {  // exact; zeros stay
    const Bf16 added =
        _mm512_mask_blend_epi16(_mm512_test_epi16_mask(x, _mm512_set1_epi16(0x0040)), s.of_one_bit, s.of_two_bits);
    return _mm512_mask_add_epi16(x, _mm512_test_epi16_mask(x, _mm512_set1_epi16(0x7FFF)), x, added);
  }

 private:
  // A value that bf16 holds, less `bits`, in both halves of its lane.
  LEVIN_INLINE Bf16 added_to_both(F32 value, int bits_less) {
    const I32 upper = Avx512Vbmi::bits(value);
    return _mm512_sub_epi16(or_i(upper, shr<16>(upper)), _mm512_set1_epi16(static_cast<int16_t>(bits_less)));
  }
};
#endif

}  // namespace
}  // namespace levin::kernels
