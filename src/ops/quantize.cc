#include "ops/quantize.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"
#include "base/numbers.h"
#include "kernels/cpu/kernels.h"
#include "ops/check_view.h"
#include "ops/cuda_backend.h"
#include "ops/op_times.h"
#include "tensor/formats.h"

namespace levin::ops {
namespace {

constexpr int64_t kFp4Block = 32;

void round_block_to_fp4(float* x, int64_t n) {
  float amax = 0;
  for (int64_t i = 0; i < n; ++i) amax = std::max(amax, std::fabs(x[i]));
  const float scale = e2m1_pow2_scale(amax);
  for (int64_t i = 0; i < n; ++i) x[i] = e2m1_to_f32(f32_to_e2m1(x[i] / scale)) * scale;
}

// The values that codes and scales stand for.
void quantize_to_bf16(OpContext& ctx, const QuantizeFp8& a) {
  const int64_t n_rows = a.x.dim(0), k = a.x.dim(1);
  const ArenaScope scope(*ctx.arena);
  const View codes = ctx.arena->allocate(DType::kF8E4M3, {n_rows, k});
  const View scale = ctx.arena->allocate(DType::kF32, {n_rows, (k + kQuantBlock - 1) / kQuantBlock});
  quantize_fp8(ctx, {.x = a.x, .out = codes, .scale = scale});
  ctx.pool->parallel_for(n_rows, row_grain(n_rows, k), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t i = 0; i < k; ++i) {
        const float value = e4m3_to_f32(codes.row<uint8_t>(t)[i]) * scale.row<float>(t)[i / kQuantBlock];
        a.out.row<uint16_t>(t)[i] = f32_to_bf16(value);
      }
    }
  });
}

}  // namespace

void round_to_bf16(OpContext& ctx, const RoundToBf16& a) {
  const OpTimer timer(ctx, OpKind::kRound);
  LEVIN_CHECK(a.x.rank() == 2 && a.out.rank() == 2 && a.x.dim(0) == a.out.dim(0) && a.x.dim(1) == a.out.dim(1),
              "round_to_bf16: x is {}, out {}, expected both [T, K]", a.x.describe(), a.out.describe());
  if (ctx.device == Device::kCuda) return ctx.cuda->round_to_bf16(a);
  const float* x = a.x.data<float>();
  uint16_t* out = a.out.data<uint16_t>();
  const int64_t n_rows = a.x.dim(0), k = a.x.dim(1);
  ctx.pool->parallel_for(n_rows, row_grain(n_rows, k), [&](int64_t begin, int64_t end, int) {
    ctx.cpu->matmul.round_to_bf16({.x = x + begin * a.x.stride(0),
                                   .x_stride = a.x.stride(0),
                                   .out = out + begin * a.out.stride(0),
                                   .out_stride = a.out.stride(0),
                                   .n_rows = end - begin,
                                   .k = k});
  });
}

void quantize_fp8(OpContext& ctx, const QuantizeFp8& a) {
  const OpTimer timer(ctx, OpKind::kRound);
  LEVIN_CHECK(a.x.rank() == 2 && a.out.rank() == 2 && a.x.dim(0) == a.out.dim(0) && a.x.dim(1) == a.out.dim(1),
              "quantize_fp8: x is {}, out {}, expected both [T, K]", a.x.describe(), a.out.describe());
  LEVIN_CHECK(a.scale.empty() == (a.out.dtype() == DType::kBF16), "quantize_fp8: out is {}, scale {}", a.out.describe(),
              a.scale.describe());
  if (ctx.device == Device::kCuda) return ctx.cuda->quantize_fp8(a);
  if (a.out.dtype() == DType::kBF16) return quantize_to_bf16(ctx, a);
  const int64_t n_rows = a.x.dim(0), k = a.x.dim(1), n_scales = (k + kQuantBlock - 1) / kQuantBlock;
  LEVIN_CHECK(a.scale.rank() == 2 && a.scale.dim(0) == n_rows && a.scale.dim(1) == n_scales,
              "quantize_fp8: scale is {}, expected [{}, {}]", a.scale.describe(), n_rows, n_scales);
  const float* x = a.x.data<float>();
  uint8_t* out = a.out.data<uint8_t>();
  float* scale = a.scale.data<float>();
  ctx.pool->parallel_for(n_rows, row_grain(n_rows, k), [&](int64_t begin, int64_t end, int) {
    ctx.cpu->matmul.quantize_fp8({.x = x + begin * a.x.stride(0),
                                  .x_stride = a.x.stride(0),
                                  .out = out + begin * a.out.stride(0),
                                  .out_stride = a.out.stride(0),
                                  .scale = scale + begin * a.scale.stride(0),
                                  .scale_stride = a.scale.stride(0),
                                  .n_rows = end - begin,
                                  .k = k});
  });
}

void round_to_fp4(OpContext& ctx, const RoundToFp4& a) {
  const OpTimer timer(ctx, OpKind::kRound);
  LEVIN_CHECK(a.x.rank() == 2 && a.x.dtype() == DType::kF32, "round_to_fp4: x is {}, expected f32 [T, K]",
              a.x.describe());
  if (ctx.device == Device::kCuda) return ctx.cuda->round_to_fp4(a);
  const int64_t n_rows = a.x.dim(0), k = a.x.dim(1);
  ctx.pool->parallel_for(n_rows, row_grain(n_rows, k), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t block = 0; block < k; block += kFp4Block) {
        round_block_to_fp4(a.x.row<float>(t) + block, std::min(kFp4Block, k - block));
      }
    }
  });
}

void hadamard(OpContext& ctx, const Hadamard& a) {
  const OpTimer timer(ctx, OpKind::kRound);
  LEVIN_CHECK(a.x.rank() == 3, "hadamard: x is {}, expected [T, H, Di]", a.x.describe());
  const int64_t n_tokens = a.x.dim(0), n_heads = a.x.dim(1), d = a.x.dim(2);
  LEVIN_CHECK(d > 0 && std::has_single_bit(static_cast<uint64_t>(d)),
              "hadamard: x is {}, expected a power of two as the last dimension", a.x.describe());
  if (ctx.device == Device::kCuda) return ctx.cuda->hadamard(a);
  float* x = a.x.data<float>();
  const float factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(d)));
  ctx.pool->parallel_for(n_tokens, row_grain(n_tokens, n_heads * d), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      ctx.cpu->matmul.hadamard(
          {.x = x + t * a.x.stride(0), .x_stride = a.x.stride(1), .n_rows = n_heads, .d = d, .factor = factor});
    }
  });
}

}  // namespace levin::ops
