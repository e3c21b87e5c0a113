#include "ops/logits.h"

#include "base/check.h"
#include "ops/backend.h"
#include "ops/check_view.h"
#include "ops/op_times.h"

namespace levin::ops {

void embed(OpContext& ctx, const Embed& a) {
  const OpTimer timer(ctx, OpKind::kEmbed);
  LEVIN_CHECK(a.table.rank() == 2 && (a.table.dtype() == DType::kF32 || a.table.dtype() == DType::kBF16),
              "embed: table is {}, expected f32 or bf16 [V, D]", a.table.describe());
  LEVIN_CHECK(a.ids.rank() == 1, "embed: ids is {}, expected i32 [T]", a.ids.describe());
  const int64_t n_rows = a.ids.dim(0), d = a.table.dim(1);
  check_view({"embed", "ids", a.ids}, DType::kI32, {n_rows});
  check_view({"embed", "out", a.out}, DType::kF32, {n_rows, d});
  ctx.backend->embed(a);
}

void argmax(OpContext& ctx, const Argmax& a) {
  const OpTimer timer(ctx, OpKind::kArgmax);
  LEVIN_CHECK(a.x.rank() == 2 && a.x.dim(1) > 0, "argmax: x is {}, expected f32 [T, V]", a.x.describe());
  const int64_t n_rows = a.x.dim(0), n = a.x.dim(1);
  check_view({"argmax", "x", a.x}, DType::kF32, {n_rows, n});
  check_view({"argmax", "out", a.out}, DType::kI32, {n_rows});
  ctx.backend->argmax(a);
}

void choose_tokens(OpContext& ctx, const ChooseTokens& a) {
  const OpTimer timer(ctx, OpKind::kArgmax);
  LEVIN_CHECK(a.x.rank() == 2 && a.x.dim(1) > 0, "choose_tokens: x is {}, expected f32 [T, V]", a.x.describe());
  const int64_t n_rows = a.x.dim(0), n = a.x.dim(1);
  check_view({"choose_tokens", "x", a.x}, DType::kF32, {n_rows, n});
  check_view({"choose_tokens", "rules", a.rules}, DType::kI32, {n_rows, kChoiceRuleWords});
  check_view({"choose_tokens", "out", a.out}, DType::kI32, {n_rows, kChosenTokenWords});
  ctx.backend->choose_tokens(a);
}

void mark_unusable(OpContext& ctx, const MarkUnusable& a) {
  const OpTimer timer(ctx, OpKind::kNorm);
  LEVIN_CHECK(a.x.rank() == 2, "mark_unusable: x is {}, expected f32 [T, D]", a.x.describe());
  const int64_t n_rows = a.x.dim(0), d = a.x.dim(1);
  check_view({"mark_unusable", "x", a.x}, DType::kF32, {n_rows, d});
  check_view({"mark_unusable", "faults", a.faults}, DType::kI32, {n_rows});
  ctx.backend->mark_unusable(a);
}

}  // namespace levin::ops
