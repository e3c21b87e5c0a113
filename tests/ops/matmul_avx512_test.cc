// The two forms of the avx512 set's products.
#include <gtest/gtest.h>

#include "base/cpu.h"
#include "kernels/cpu/kernels.h"
#include "ops/matmul.h"
#include "ops/quantize.h"
#include "ops/support.h"
#include "ops/weights.h"

namespace levin::testing {
namespace {

// The set looks e4m3 up where the processor can, and computes it where not. Either way a product is the same.
TEST(MatmulAvx512, HasTheSameBitsWithAndWithoutVbmi) {
  if (!cpu_info().avx512_vbmi) GTEST_SKIP() << "the processor has no VBMI";
  ThreadPool pool(2);
  Arena arena;
  kernels::CpuKernels computing = kernels::cpu_kernels(Isa::kAvx512), looking_up = computing;
  computing.matmul = kernels::matmul_kernels_avx512();
  looking_up.matmul = kernels::matmul_kernels_avx512_vbmi();
  CpuBackend forms[2] = {{pool, arena, computing}, {pool, arena, looking_up}};
  Random random(9);
  // All codes but the NaN stand in the weights of e4m3; the other types take the same way in both.
  for (const DType dtype : {DType::kF8E4M3, DType::kF32, DType::kBF16, DType::kMxfp4, DType::kNvfp4}) {
    const TestMatrix w = random_matrix(random, dtype, 272, 400, true);
    for (const int64_t n_rows : {1, 4, 8, 30}) {
      const Tensor f32 = random_tensor(random, {n_rows, 400});
      const Tensor x(DType::kBF16, {n_rows, 400});
      OpContext ctx = op_context(forms[0]);
      ops::round_to_bf16(ctx, {.x = f32, .out = x});
      Tensor out[2] = {Tensor(DType::kF32, {n_rows, 272}), Tensor(DType::kF32, {n_rows, 272})};
      for (int i = 0; i < 2; ++i) {
        ctx = op_context(forms[i]);
        ops::matmul(ctx, {.x = x, .w = &w.packed, .out = out[i]});
      }
      ASSERT_TRUE(same_bits(out[0], out[1])) << dtype_name(dtype) << ", " << n_rows << " rows";
    }
  }
}

}  // namespace
}  // namespace levin::testing
