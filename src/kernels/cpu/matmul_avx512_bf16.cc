#include "kernels/cpu/round_simd.h"
#include "kernels/cpu/widen_bf16_simd.h"

namespace levin::kernels {
namespace {

using V = Avx512Bf16;

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
  if (job.operand_dtype == DType::kF32) return product_f32_avx512_vbmi(job);
  if (job.w_dtype == DType::kBF16) return product_rows<V, DotBf16<V>>(job);
  if (job.w_dtype == DType::kMxfp4) return product_rows<V, DotMxfp4<V>>(job);
  if (job.w_dtype == DType::kNvfp4) return product_rows<V, DotNvfp4<V>>(job);
  product_rows<V, DotE4m3<V>>(job);
}

}  // namespace

MatmulKernels matmul_kernels_avx512_bf16() {
  MatmulKernels kernels = round_kernels<V>();
  kernels.operand_dtype = bf16_operand_dtype;
  kernels.prepare = prepare;
  kernels.product = product;
  return kernels;
}

}  // namespace levin::kernels
