#include "kernels/cpu/matmul_simd.h"
#include "kernels/cpu/round_simd.h"

namespace levin::kernels {
namespace {

using V = Avx512Bf16;

template <>
struct Widen<V, DotBf16<V>> {
  using Wide = DotBf16<V>;
  static constexpr bool kNone = true;
};
template <>
struct Widen<V, DotE4m3<V>> {
  using Wide = DotBf16<V>;
  static constexpr bool kNone = false;
  LEVIN_INLINE void run(const std::byte* w, int64_t n_k, std::byte* out) {
    for (int64_t k = 0; k < n_k; k += 4, w += kFoursBytes, out += 128) {
      __builtin_prefetch(w + kAheadBytes);
      V::Bf16 first, second;
      V::load_e4m3x64(reinterpret_cast<const uint8_t*>(w), first, second);
      _mm512_store_si512(out, first);
      _mm512_store_si512(out + 64, second);
    }
  }
};

template <>
struct Widen<V, DotMxfp4<V>> {
  using Wide = DotBf16<V>;
  static constexpr bool kNone = false;
  LEVIN_INLINE void run(const std::byte* w, int64_t n_k, std::byte* out) {
    for (int64_t begin = 0; begin < n_k; begin += kGroupK, w += kGroupBytes) {
      prefetch<kGroupBytes>(w + kAheadBytes);
      const V::Bf16 scale = DotMxfp4<V>::scales(w);
      for (int64_t k = 0; k < smaller(kGroupK, n_k - begin); k += kWordK, out += 256) {
        const V::I32 word = load_words<V>(w, k);
        _mm512_store_si512(out, DotMxfp4<V>::widen<0>(word, scale));
        _mm512_store_si512(out + 64, DotMxfp4<V>::widen<1>(word, scale));
        _mm512_store_si512(out + 128, DotMxfp4<V>::widen<2>(word, scale));
        _mm512_store_si512(out + 192, DotMxfp4<V>::widen<3>(word, scale));
      }
    }
  }
};

DType operand_dtype(DType x, DType w) { return x != DType::kF32 && w != DType::kF32 ? DType::kBF16 : DType::kF32; }

// 32 values of a row from column k as pairs of bf16; those beyond n_k are zero.
LEVIN_INLINE __m512 load_as_bf16_pairs(const std::byte* row, DType dtype, int64_t k, int64_t n_k) {
  const int64_t n = smaller(32, n_k - k);
  const __mmask32 mask = n == 32 ? ~__mmask32{0} : (__mmask32{1} << n) - 1;
  if (dtype == DType::kBF16) {
    return V::from_bits(_mm512_maskz_loadu_epi16(mask, reinterpret_cast<const uint16_t*>(row) + k));
  }
  return V::from_bits(V::e4m3_to_bf16x32(_mm256_maskz_loadu_epi8(mask, row + k)));
}

void prepare_bf16(const PrepareJob& job) {
  const int64_t bytes = job.x_dtype == DType::kBF16 ? 2 : 1;
  const int64_t even_k = (job.k + 1) / 2 * 2;
  for (int64_t group = job.row_begin; group < job.row_end; group += kRowGroup) {
    const int64_t n_rows = smaller(kRowGroup, job.n_rows - group);
    uint16_t* out = static_cast<uint16_t*>(job.operand) + group * even_k;
    for (int64_t k = 0; k < even_k; k += 32) {
      __m512 rows[kRowGroup];
      for (int64_t r = 0; r < kRowGroup; ++r) {
        rows[r] = r < n_rows ? load_as_bf16_pairs(source_row(job, group + r, bytes), job.x_dtype, k, job.k) : V::zero();
      }
      store_columns<V>(rows, smaller(16, (even_k - k) / 2), n_rows, reinterpret_cast<float*>(out + k * n_rows));
    }
  }
}

void prepare(const PrepareJob& job) {
  if (job.operand_dtype == DType::kBF16) return prepare_bf16(job);
  prepare_f32<V>(job);
}

void product(const ProductJob& job) {
  if (job.operand_dtype == DType::kF32) return product_f32<V>(job);
  if (job.w_dtype == DType::kBF16) return product_rows<V, DotBf16<V>>(job);
  if (job.w_dtype == DType::kMxfp4) return product_rows<V, DotMxfp4<V>>(job);
  product_rows<V, DotE4m3<V>>(job);
}

}  // namespace

MatmulKernels matmul_kernels_avx512_bf16() {
  MatmulKernels kernels = round_kernels<V>();
  kernels.operand_dtype = operand_dtype;
  kernels.prepare = prepare;
  kernels.product = product;
  return kernels;
}

}  // namespace levin::kernels
