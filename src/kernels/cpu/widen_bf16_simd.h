// Weights and rows as bf16, for the sets that multiply bf16: matmul_avx512_bf16.cc and matmul_amx.cc.
#pragma once

#include "kernels/cpu/matmul_simd.h"

namespace levin::kernels {
namespace {

template <>
struct Widen<Avx512Bf16, DotBf16<Avx512Bf16>> {
  using Wide = DotBf16<Avx512Bf16>;
  static constexpr bool kNone = true;
};
template <>
struct Widen<Avx512Bf16, DotE4m3<Avx512Bf16>> {
  using Wide = DotBf16<Avx512Bf16>;
  static constexpr bool kNone = false;
  LEVIN_INLINE void run(const std::byte* w, int64_t n_k, std::byte* out, int64_t ahead = kAheadBytes) {
    for (int64_t k = 0; k < n_k; k += 4, w += kFoursBytes, out += 128) {
      __builtin_prefetch(w + ahead);
      Avx512Bf16::Bf16 first, second;
      Avx512Bf16::load_e4m3x64(reinterpret_cast<const uint8_t*>(w), first, second);
      _mm512_store_si512(out, first);
      _mm512_store_si512(out + 64, second);
    }
  }
};

template <class Group>
struct Widen<Avx512Bf16, DotFp4<Avx512Bf16, Group>> {
  using Narrow = DotFp4<Avx512Bf16, Group>;
  using Wide = DotBf16<Avx512Bf16>;
  static constexpr bool kNone = false;
  LEVIN_INLINE void run(const std::byte* w, int64_t n_k, std::byte* out, int64_t ahead = kAheadBytes) {
    for (int64_t begin = 0; begin < n_k; begin += Group::kK, w += Group::kBytes) {
      prefetch<Group::kBytes>(w + ahead);
      const typename Narrow::Scale scale = Group::scales(w);
      for (int64_t k = 0; k < smaller(Group::kK, n_k - begin); k += kWordK, out += 256) {
        const Avx512Bf16::I32 word = load_words<Avx512Bf16>(w, k);
        _mm512_store_si512(out, Narrow::template widen<0>(word, scale));
        _mm512_store_si512(out + 64, Narrow::template widen<1>(word, scale));
        _mm512_store_si512(out + 128, Narrow::template widen<2>(word, scale));
        _mm512_store_si512(out + 192, Narrow::template widen<3>(word, scale));
      }
    }
  }
};

LEVIN_INLINE DType bf16_operand_dtype(DType x, DType w) {
  return x != DType::kF32 && w != DType::kF32 ? DType::kBF16 : DType::kF32;
}

// 32 values of a row from column k as pairs of bf16; those beyond n_k are zero.
LEVIN_INLINE __m512 load_as_bf16_pairs(const std::byte* row, DType dtype, int64_t k, int64_t n_k) {
  const int64_t n = smaller(32, n_k - k);
  const __mmask32 mask = n == 32 ? ~__mmask32{0} : (__mmask32{1} << n) - 1;
  if (dtype == DType::kBF16) {
    return Avx512Bf16::from_bits(_mm512_maskz_loadu_epi16(mask, reinterpret_cast<const uint16_t*>(row) + k));
  }
  return Avx512Bf16::from_bits(Avx512Bf16::e4m3_to_bf16x32(_mm256_maskz_loadu_epi8(mask, row + k)));
}

}  // namespace
}  // namespace levin::kernels
