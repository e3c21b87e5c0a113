#include "model/pass.h"

#include "base/check.h"
#include "ops/copies.h"
#include "ops/index_topk.h"
#include "ops/logits.h"
#include "ops/matmul.h"
#include "ops/norm.h"
#include "ops/quantize.h"

namespace levin {
namespace {

struct RoundedInput {
  View x;
  View scale;
};

// x [T, K] f32, as a product takes it.
RoundedInput round_input(OpContext& ctx, View x, ops::Operand operand) {
  const int64_t n_tokens = x.dim(0), k = x.dim(1);
  switch (operand) {
    case ops::Operand::kF32:
      return {.x = x, .scale = {}};
    case ops::Operand::kBF16: {
      const View out = ctx.arena->allocate(DType::kBF16, {n_tokens, k});
      ops::round_to_bf16(ctx, {.x = x, .out = out});
      return {.x = out, .scale = {}};
    }
    case ops::Operand::kFp8: {
      const View out = ctx.arena->allocate(DType::kF8E4M3, {n_tokens, k});
      const View scale = ctx.arena->allocate(DType::kF32, {n_tokens, (k + kQuantBlock - 1) / kQuantBlock});
      ops::quantize_fp8(ctx, {.x = x, .out = out, .scale = scale});
      return {.x = out, .scale = scale};
    }
    case ops::Operand::kFp8By32: {
      const View out = ctx.arena->allocate(DType::kBF16, {n_tokens, k});
      ops::round_to_fp8(ctx, {.x = x, .group = 32, .out = out});
      return {.x = out, .scale = {}};
    }
  }
  LEVIN_CHECK(false, "operand {}", static_cast<int>(operand));
}

// x [T, H, K] f32, as a product per head takes it: f32 or bf16.
View round_heads(OpContext& ctx, View x, ops::Operand operand) {
  if (operand == ops::Operand::kF32) return x;
  const View out = ctx.arena->allocate(DType::kBF16, {x.dim(0), x.dim(1), x.dim(2)});
  ops::round_to_bf16(ctx, {.x = x.merged_first(), .out = out.merged_first()});
  return out;
}

}  // namespace

Pass::Pass(OpContext& ctx, const Numerics& numerics, const Step& step, const KvCache& cache, const Probe* probe)
    : ctx_(ctx), numerics_(numerics), step_(step), cache_(cache), probe_(probe) {}

Pass Pass::of_rows(const Step& step, View rows) {
  Pass out(ctx_, numerics_, step, cache_, probe_);
  if (!rope_.cos.empty()) out.rope_ = {.cos = rows_of(rope_.cos, rows), .sin = rows_of(rope_.sin, rows)};
  return out;
}

Rotation Pass::rotation(View positions, const std::vector<float>& frequencies) {
  const int64_t n_rows = positions.dim(0), n_pairs = std::ssize(frequencies);
  const Rotation r{.cos = allocate(DType::kF32, {n_rows, n_pairs}), .sin = allocate(DType::kF32, {n_rows, n_pairs})};
  ops::rope_table(ctx_, {.positions = positions, .frequencies = &frequencies, .cos = r.cos, .sin = r.sin});
  return r;
}

void Pass::plan_index(int64_t n_topk) {
  if (step_.n_visible - step_.first_slot <= n_topk) return;  // all are taken, unscored
  ops::PlanIndex plan{.seq = step_.seq,
                      .visible = step_.visible,
                      .first = step_.first_slot,
                      .n_pages = step_.tables.dim(1),
                      .n_topk = n_topk,
                      .tokens_together = step_.rows_together};
  const int64_t n_words = ops::index_plan_words(ctx_, plan);
  if (n_words == 0) return;
  plan.plan = index_plan_ = allocate(DType::kI32, {n_words});
  ops::plan_index(ctx_, plan);
}

Rotation Pass::inverse(const Rotation& r) {
  const Rotation out{.cos = r.cos, .sin = allocate(DType::kF32, {r.sin.dim(0), r.sin.dim(1)})};
  ops::scale_rows(ctx_, {.x = r.sin, .factor = -1, .out = out.sin});
  return out;
}

View Pass::rows_of(View x, View rows) {  // [T, D], [N] -> [N, D]
  const View out = allocate(DType::kF32, {rows.dim(0), x.dim(1)});
  ops::copy_rows(ctx_, {.x = x, .rows = rows, .out = out});
  return out;
}

View Pass::embed(View table) {
  const View out = allocate(DType::kF32, {n_tokens(), table.dim(1)});
  ops::embed(ctx_, {.ids = step_.tokens, .table = table, .out = out});
  return out;
}

View Pass::rms_norm(View x, const Vector& weight, float eps) {
  const View out = allocate(DType::kF32, {x.dim(0), x.dim(1)});
  ops::norm_rows(ctx_, {.x = x, .weight = weight.view, .eps = eps, .normed = out});
  return out;
}

View Pass::rms_norm(View x, float eps) {
  const View out = allocate(DType::kF32, {x.dim(0), x.dim(1)});
  ops::norm_rows(ctx_, {.x = x, .eps = eps, .normed = out});
  return out;
}

View Pass::add_and_norm(View x, View y, const Vector& weight, float eps) {
  const View out = allocate(DType::kF32, {x.dim(0), x.dim(1)});
  ops::norm_rows(ctx_, {.x = y, .residual = x, .weight = weight.view, .eps = eps, .normed = out});
  return out;
}

void Pass::rms_norm_into(View out, View x, const Vector& weight, float eps) {
  ops::norm_rows(ctx_, {.x = x, .weight = weight.view, .eps = eps, .normed = out});
}

View Pass::layer_norm(View x, const Vector& weight, const Vector& bias, float eps) {
  const View out = allocate(DType::kF32, {x.dim(0), x.dim(1)});
  ops::layer_norm(ctx_, {.x = x, .weight = weight.view, .bias = bias.view, .eps = eps, .out = out});
  return out;
}

void Pass::rms_norm_heads(View x, float eps) {
  ops::norm_rows(ctx_, {.x = x.merged_first(), .eps = eps, .normed = x.merged_first()});
}

View Pass::matmul(View x, const Linear& w) {
  const View out = allocate(DType::kF32, {x.dim(0), w.w.n()});
  matmul_into(out, x, w);
  return out;
}

void Pass::matmul_into(View out, View x, const Linear& w) {
  const ArenaScope rounded = scope();
  const RoundedInput input = round_input(ctx_, x, w.input);
  ops::matmul(ctx_, {.x = input.x, .x_scale = input.scale, .w = &w.w, .out = out});
}

View Pass::matmul_per_head(View x, std::span<const Matrix> w) {
  const View out = allocate(DType::kF32, {x.dim(0), x.dim(1), w.front().n()});
  const ArenaScope rounded = scope();
  ops::matmul_per_head(ctx_, {.x = round_heads(ctx_, x, numerics_.absorbed), .w = w, .out = out});
  return out;
}

void Pass::rope(View x, ops::RopePairing pairing) { rotate(x, rope_, pairing); }

void Pass::rotate(View x, const Rotation& r, ops::RopePairing pairing) {
  ops::rotate_queries(ctx_, {.x = x, .rotation = r.of(pairing), .out = x});
}

void Pass::add_into(View x, View y) { ops::add_into(ctx_, {.x = x, .y = y}); }

}  // namespace levin
