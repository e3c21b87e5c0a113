#include "ops/linear_attention.h"

#include "base/check.h"
#include "ops/backend.h"
#include "ops/check_view.h"
#include "ops/op_times.h"

namespace levin::ops {
namespace {

void check_tokens(std::string_view op, const RecurrentTokens& a) {
  LEVIN_CHECK(a.first_row.rank() == 1, "{}: first_row is {}, expected i32 [B]", op, a.first_row.describe());
  const int64_t n_seqs = a.first_row.dim(0);
  check_view({op, "first_row", a.first_row}, DType::kI32, {n_seqs});
  check_view({op, "end_row", a.end_row}, DType::kI32, {n_seqs});
  check_view({op, "first_position", a.first_position}, DType::kI32, {n_seqs});
  check_view({op, "rings.ids", a.rings.ids}, DType::kI32, {n_seqs});
  const RecurrentFormat& f = a.rings.format;
  LEVIN_CHECK(a.rings.rings != nullptr && f.d_heads() > 0 && f.n_taps >= 1 && f.n_taps <= kStateTokens,
              "{}: rings of {} heads of {}, {} taps", op, f.n_heads, f.d_head, f.n_taps);
}

}  // namespace

void short_conv(OpContext& ctx, const ShortConv& a) {
  const OpTimer timer(ctx, OpKind::kLinearAttention);
  check_tokens("short_conv", a.tokens);
  LEVIN_CHECK(a.x.rank() == 2, "short_conv: x is {}, expected f32 [T, C]", a.x.describe());
  const int64_t n_tokens = a.x.dim(0), n_channels = a.x.dim(1);
  const RecurrentFormat& f = a.tokens.rings.format;
  check_view({"short_conv", "x", a.x}, DType::kF32, {n_tokens, n_channels});
  check_view({"short_conv", "weight", a.weight}, DType::kF32, {n_channels, f.n_taps});
  check_view({"short_conv", "out", a.out}, DType::kF32, {n_tokens, n_channels});
  LEVIN_CHECK(a.first_channel >= 0 && a.first_channel + n_channels <= f.conv_values(),
              "short_conv: channels {} to {} of rows of {}", a.first_channel, a.first_channel + n_channels,
              f.conv_values());
  ctx.backend->short_conv(a);
}

void delta_rule(OpContext& ctx, const DeltaRule& a) {
  const OpTimer timer(ctx, OpKind::kLinearAttention);
  check_tokens("delta_rule", a.tokens);
  LEVIN_CHECK(a.q.rank() == 2, "delta_rule: q is {}, expected f32 [T, Hl * Dl]", a.q.describe());
  const RecurrentFormat& f = a.tokens.rings.format;
  const int64_t n_tokens = a.q.dim(0), d_heads = f.d_heads();
  check_view({"delta_rule", "q", a.q}, DType::kF32, {n_tokens, d_heads});
  check_view({"delta_rule", "k", a.k}, DType::kF32, {n_tokens, d_heads});
  check_view({"delta_rule", "v", a.v}, DType::kF32, {n_tokens, d_heads});
  check_view({"delta_rule", "decay", a.decay}, DType::kF32, {n_tokens, d_heads});
  check_view({"delta_rule", "decay_bias", a.decay_bias}, DType::kF32, {d_heads});
  check_view({"delta_rule", "log_rate", a.log_rate}, DType::kF32, {f.n_heads});
  check_view({"delta_rule", "beta", a.beta}, DType::kF32, {n_tokens, f.n_heads});
  check_view({"delta_rule", "out", a.out}, DType::kF32, {n_tokens, d_heads});
  ctx.backend->delta_rule(a);
}

void sigmoid_mul(OpContext& ctx, const SigmoidMul& a) {
  const OpTimer timer(ctx, OpKind::kLinearAttention);
  LEVIN_CHECK(a.x.rank() == 2, "sigmoid_mul: x is {}, expected f32 [T, D]", a.x.describe());
  const int64_t n_rows = a.x.dim(0), d = a.x.dim(1);
  check_view({"sigmoid_mul", "x", a.x}, DType::kF32, {n_rows, d});
  check_view({"sigmoid_mul", "gate", a.gate}, DType::kF32, {n_rows, d});
  check_view({"sigmoid_mul", "out", a.out}, DType::kF32, {n_rows, d});
  ctx.backend->sigmoid_mul(a);
}

}  // namespace levin::ops
