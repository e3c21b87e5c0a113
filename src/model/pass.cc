#include "model/pass.h"

#include "base/check.h"
#include "ops/backend.h"
#include "ops/copies.h"
#include "ops/index_topk.h"
#include "ops/logits.h"
#include "ops/matmul.h"
#include "ops/norm.h"
#include "ops/quantize.h"

namespace levin {
namespace {

// Codes and scales of e4m3 rows [T, K], for products with `w`.
ProductInput allocate_fp8(OpContext& ctx, int64_t n_rows, int64_t k, const Linear& w) {
  const int64_t n_blocks = (k + kQuantBlock - 1) / kQuantBlock;
  const bool by_block = ctx.backend->reads_scales_by_block(w.w);
  return {.x = {},
          .operand = ops::Operand::kFp8,
          .rounded = ctx.arena->allocate(DType::kF8E4M3, {n_rows, k}),
          .scale = by_block ? ctx.arena->allocate(DType::kF32, {n_blocks, (n_rows + 3) / 4 * 4})
                            : ctx.arena->allocate(DType::kF32, {n_rows, n_blocks}),
          .scale_by_block = by_block};
}

ProductInput allocate_fp8(OpContext& ctx, View x, const Linear& w) {
  ProductInput out = allocate_fp8(ctx, x.dim(0), x.dim(1), w);
  out.x = x;
  return out;
}

// x [T, K] f32, as products with `w` take it.
ProductInput round_input(OpContext& ctx, View x, const Linear& w) {
  const auto allocate_bf16 = [&] { return ctx.arena->allocate(DType::kBF16, {x.dim(0), x.dim(1)}); };
  ProductInput out{.x = x, .operand = w.input};
  switch (w.input) {
    case ops::Operand::kF32:
      out.rounded = x;
      return out;
    case ops::Operand::kBF16:
      out.rounded = allocate_bf16();
      ops::round_to_bf16(ctx, {.x = x, .out = out.rounded});
      return out;
    case ops::Operand::kFp8:
      out = allocate_fp8(ctx, x, w);
      ops::quantize_fp8(ctx, {.x = x, .out = out.rounded, .scale = out.scale, .scale_by_block = out.scale_by_block});
      return out;
    case ops::Operand::kFp8By32:
      out.rounded = allocate_bf16();
      ops::round_to_fp8(ctx, {.x = x, .group = 32, .out = out.rounded});
      return out;
  }
  LEVIN_CHECK(false, "operand {}", static_cast<int>(w.input));
}

// run(norm) calls an op that norms x; its rows are rounded there or afterwards.
template <class Run>
ProductInput norm_and_round(OpContext& ctx, ops::NormRows norm, const Linear& w, const Run& run) {
  norm.normed = ctx.arena->allocate(DType::kF32, {norm.x.dim(0), norm.x.dim(1)});
  if (w.input != ops::Operand::kFp8) {
    run(norm);
    return round_input(ctx, norm.normed, w);
  }
  const ProductInput out = allocate_fp8(ctx, norm.normed, w);
  norm.codes = out.rounded, norm.scale = out.scale, norm.scale_by_block = out.scale_by_block;
  run(norm);
  return out;
}

void multiply(OpContext& ctx, const ProductInput& x, const Linear& w, View out) {
  ops::matmul(ctx, {.x = x.rounded, .x_scale = x.scale, .scale_by_block = x.scale_by_block, .w = &w.w, .out = out});
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

View Pass::concatenate(View a, View b) {
  const View out = allocate(DType::kF32, {a.dim(0), a.dim(1) + b.dim(1)});
  ops::copy_rows(ctx_, {.x = a, .out = out.slice_last(0, a.dim(1))});
  ops::copy_rows(ctx_, {.x = b, .out = out.slice_last(a.dim(1), b.dim(1))});
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

ProductInput Pass::norm_input(View x, const Vector& weight, float eps, const Linear& w) {
  return norm_and_round(ctx_, {.x = x, .weight = weight.view, .eps = eps}, w,
                        [&](const ops::NormRows& norm) { ops::norm_rows(ctx_, norm); });
}

ProductInput Pass::norm_input_and_append(ops::NormAndAppend a, const Linear& w) {
  return norm_and_round(ctx_, a.norm, w, [&](const ops::NormRows& norm) {
    a.norm = norm;
    ops::norm_and_append(ctx_, a);
  });
}

View matmul(OpContext& ctx, View x, const Linear& w) {
  const View out = ctx.arena->allocate(DType::kF32, {x.dim(0), w.w.n()});
  const ArenaScope rounded(*ctx.arena);
  multiply(ctx, round_input(ctx, x, w), w, out);
  return out;
}

View Pass::matmul(View x, const Linear& w) { return levin::matmul(ctx_, x, w); }

View Pass::matmul(const ProductInput& x, const Linear& w) {
  const View out = allocate(DType::kF32, {x.x.dim(0), w.w.n()});
  matmul_into(out, x, w);
  return out;
}

void Pass::matmul_into(View out, const ProductInput& x, const Linear& w) {
  const bool suits = x.operand == w.input &&
                     (x.operand != ops::Operand::kFp8 || x.scale_by_block == ctx_.backend->reads_scales_by_block(w.w));
  if (!suits || x.operand == ops::Operand::kF32) return matmul_into(out, x.x, w);
  multiply(ctx_, x, w, out);
}

std::vector<View> Pass::matmuls(const ProductInput& x, std::initializer_list<const Linear*> w) {
  std::vector<const Matrix*> parts;
  for (const Linear* linear : w) {
    if (linear->input == x.operand) parts.push_back(&linear->w);
  }
  const Matrix joined = parts.size() == w.size() ? joined_on_device(parts) : Matrix();
  std::vector<View> out;
  if (joined.empty() || !x.scale_by_block || !ctx_.backend->reads_scales_by_block(joined)) {
    for (const Linear* linear : w) out.push_back(matmul(x, *linear));
    return out;
  }
  const View all = allocate(DType::kF32, {x.x.dim(0), joined.n()});
  ops::matmul(ctx_, {.x = x.rounded, .x_scale = x.scale, .scale_by_block = true, .w = &joined, .out = all});
  int64_t begin = 0;
  for (const Matrix* part : parts) {
    out.push_back(all.slice_last(begin, part->n()));
    begin += part->n();
  }
  return out;
}

void Pass::matmul_into(View out, View x, const Linear& w) {
  const ArenaScope rounded = scope();
  multiply(ctx_, round_input(ctx_, x, w), w, out);
}

View Pass::matmul_per_head(View x, std::span<const Matrix> w, DType type) {
  const View out = allocate(type, {x.dim(0), x.dim(1), w.front().n()});
  const ArenaScope rounded = scope();
  ops::matmul_per_head(ctx_, {.x = round_heads(ctx_, x, numerics_.absorbed), .w = w, .out = out});
  return out;
}

ProductInput Pass::matmul_per_head_input(View x, std::span<const Matrix> heads, const Linear& w) {
  const int64_t n_rows = x.dim(0), width = x.dim(1) * heads.front().n();
  if (w.input != ops::Operand::kFp8) {
    return round_input(ctx_, matmul_per_head(x, heads).reshaped({n_rows, width}), w);
  }
  ProductInput out = allocate_fp8(ctx_, n_rows, width, w);
  const ArenaScope rounded = scope();
  ops::matmul_per_head(ctx_, {.x = round_heads(ctx_, x, numerics_.absorbed),
                              .w = heads,
                              .out = {},
                              .codes = out.rounded,
                              .scale = out.scale,
                              .scale_by_block = out.scale_by_block});
  return out;
}

void Pass::rotate(View x, const Rotation& r, ops::RopePairing pairing) {
  ops::rotate_queries(ctx_, {.x = x, .rotation = r.of(pairing), .out = x});
}

void Pass::add_into(View x, View y) { ops::add_into(ctx_, {.x = x, .y = y}); }

}  // namespace levin
