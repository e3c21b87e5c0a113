#include "ops/quantize.h"

#include <bit>

#include "base/check.h"
#include "ops/backend.h"
#include "ops/check_view.h"
#include "ops/op_times.h"

namespace levin::ops {

void round_to_bf16(OpContext& ctx, const RoundToBf16& a) {
  const OpTimer timer(ctx, OpKind::kRound);
  LEVIN_CHECK(a.x.rank() == 2 && a.out.rank() == 2 && a.x.dim(0) == a.out.dim(0) && a.x.dim(1) == a.out.dim(1),
              "round_to_bf16: x is {}, out {}, expected both [T, K]", a.x.describe(), a.out.describe());
  ctx.backend->round_to_bf16(a);
}

void quantize_fp8(OpContext& ctx, const QuantizeFp8& a) {
  const OpTimer timer(ctx, OpKind::kRound);
  LEVIN_CHECK(a.x.rank() == 2 && a.out.rank() == 2 && a.x.dim(0) == a.out.dim(0) && a.x.dim(1) == a.out.dim(1),
              "quantize_fp8: x is {}, out {}, expected both [T, K]", a.x.describe(), a.out.describe());
  LEVIN_CHECK(a.scale.empty() == (a.out.dtype() == DType::kBF16), "quantize_fp8: out is {}, scale {}", a.out.describe(),
              a.scale.describe());
  if (a.scale_by_block) check_scales_by_block("quantize_fp8", a.scale, a.x);
  ctx.backend->quantize_fp8(a);
}

void round_to_fp8(OpContext& ctx, const RoundToFp8& a) {
  const OpTimer timer(ctx, OpKind::kRound);
  LEVIN_CHECK(a.x.rank() == 2 && a.out.rank() == 2 && a.x.dim(0) == a.out.dim(0) && a.x.dim(1) == a.out.dim(1),
              "round_to_fp8: x is {}, out {}, expected both [T, K]", a.x.describe(), a.out.describe());
  LEVIN_CHECK(a.group > 0 && (a.out.dtype() == DType::kF32 || a.out.dtype() == DType::kBF16),
              "round_to_fp8: out is {}, groups of {}, expected f32 or bf16", a.out.describe(), a.group);
  ctx.backend->round_to_fp8(a);
}

void round_to_fp4(OpContext& ctx, const RoundToFp4& a) {
  const OpTimer timer(ctx, OpKind::kRound);
  LEVIN_CHECK(a.x.rank() == 2 && a.x.dtype() == DType::kF32, "round_to_fp4: x is {}, expected f32 [T, K]",
              a.x.describe());
  ctx.backend->round_to_fp4(a);
}

void round_to_nvfp4(OpContext& ctx, const RoundToNvfp4& a) {
  const OpTimer timer(ctx, OpKind::kRound);
  LEVIN_CHECK(a.x.rank() == 2 && a.x.dtype() == DType::kF32, "round_to_nvfp4: x is {}, expected f32 [T, K]",
              a.x.describe());
  ctx.backend->round_to_nvfp4(a);
}

void hadamard(OpContext& ctx, const Hadamard& a) {
  const OpTimer timer(ctx, OpKind::kRound);
  LEVIN_CHECK(a.x.rank() == 3, "hadamard: x is {}, expected [T, H, Di]", a.x.describe());
  const int64_t d = a.x.dim(2);
  LEVIN_CHECK(d > 0 && std::has_single_bit(static_cast<uint64_t>(d)),
              "hadamard: x is {}, expected a power of two as the last dimension", a.x.describe());
  ctx.backend->hadamard(a);
}

}  // namespace levin::ops
