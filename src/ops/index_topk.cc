#include "ops/index_topk.h"

#include "base/check.h"
#include "ops/backend.h"
#include "ops/check_view.h"
#include "ops/op_times.h"

namespace levin::ops {
namespace {

DType query_dtype(CacheDType keys) {
  switch (keys) {
    case CacheDType::kF32:
      return DType::kF32;
    case CacheDType::kBF16:
      return DType::kBF16;
    case CacheDType::kFp8:
      return DType::kF8E4M3;
  }
  return DType::kF32;
}

void check(std::string_view op, const IndexQuery& a) {
  LEVIN_CHECK(a.q.rank() == 3, "{}: q is {}, expected [T, Hi, Di]", op, a.q.describe());
  const int64_t n_rows = a.q.dim(0), n_heads = a.q.dim(1);
  check_view({op, "q", a.q}, query_dtype(a.format.dtype), {n_rows, n_heads, a.format.d_index});
  check_view({op, "w", a.w}, DType::kF32, {n_rows, n_heads});
  check_view({op, "seq", a.seq}, DType::kI32, {n_rows});
  check_view({op, "visible", a.visible}, DType::kI32, {n_rows});
  LEVIN_CHECK(a.first >= 0, "{}: first is {}", op, a.first);
  LEVIN_CHECK(a.cache.tables.rank() == 2 && a.cache.tables.dtype() == DType::kI32,
              "{}: cache.tables is {}, expected i32 [B, pages]", op, a.cache.tables.describe());
  LEVIN_CHECK(a.cache.page_bytes >= a.format.page_bytes(), "{}: cache pages of {} bytes, the format needs {}", op,
              a.cache.page_bytes, a.format.page_bytes());
  LEVIN_CHECK(a.tokens_together >= 1 && a.tokens_together <= 8, "{}: tokens_together is {}, expected 1 to 8", op,
              a.tokens_together);
  if (!a.plan.empty()) check_view({op, "plan", a.plan}, DType::kI32, {a.plan.n_elements()});
}

void check(std::string_view op, const TakeAll& a) {
  LEVIN_CHECK(a.topk.rank() == 2 && a.topk.dim(1) > 0, "{}: topk is {}, expected i32 [T, K]", op, a.topk.describe());
  const int64_t n_rows = a.topk.dim(0);
  check_view({op, "topk", a.topk}, DType::kI32, {n_rows, a.topk.dim(1)});
  check_view({op, "visible", a.visible}, DType::kI32, {n_rows});
}

}  // namespace

void index_topk(OpContext& ctx, const IndexTopk& a) {
  OpTimer timer(ctx, OpKind::kIndexTopk);
  check("index_topk", a.query);
  LEVIN_CHECK(a.topk.rank() == 2 && a.topk.dim(1) > 0, "index_topk: topk is {}, expected i32 [T, K]",
              a.topk.describe());
  const int64_t n_rows = a.query.q.dim(0);
  check_view({"index_topk", "topk", a.topk}, DType::kI32, {n_rows, a.topk.dim(1)});
  if (!a.faults.empty()) check_view({"index_topk", "faults", a.faults}, DType::kI32, {n_rows});
  ctx.backend->index_topk(a);
  timer.add([&] { return ctx.backend->work(a); });
}

int64_t index_plan_words(OpContext& ctx, const PlanIndex& a) { return ctx.backend->index_plan_words(a); }

void plan_index(OpContext& ctx, const PlanIndex& a) {
  const OpTimer timer(ctx, OpKind::kIndexTopk);
  const int64_t n_rows = a.visible.dim(0);
  check_view({"plan_index", "seq", a.seq}, DType::kI32, {n_rows});
  check_view({"plan_index", "visible", a.visible}, DType::kI32, {n_rows});
  LEVIN_CHECK(a.first >= 0 && a.n_pages > 0 && a.n_topk > 0, "plan_index: first is {}, n_pages {}, n_topk {}", a.first,
              a.n_pages, a.n_topk);
  check_view({"plan_index", "plan", a.plan}, DType::kI32, {index_plan_words(ctx, a)});
  ctx.backend->plan_index(a);
}

void take_all(OpContext& ctx, const TakeAll& a) {
  const OpTimer timer(ctx, OpKind::kIndexTopk);
  check("take_all", a);
  ctx.backend->take_all(a);
}

void take_most_recent(OpContext& ctx, const TakeAll& a) {
  const OpTimer timer(ctx, OpKind::kIndexTopk);
  check("take_most_recent", a);
  ctx.backend->take_most_recent(a);
}

void index_scores(OpContext& ctx, const IndexScores& a) {
  OpTimer timer(ctx, OpKind::kIndexTopk);
  check("index_scores", a.query);
  LEVIN_CHECK(a.score.rank() == 2, "index_scores: score is {}, expected f32 [T, S]", a.score.describe());
  const int64_t n_rows = a.query.q.dim(0), n_slots = a.score.dim(1);
  check_view({"index_scores", "score", a.score}, DType::kF32, {n_rows, n_slots});
  ctx.backend->index_scores(a);
  timer.add([&] { return ctx.backend->work(a); });
}

void select_topk(OpContext& ctx, const SelectTopk& a) {
  const OpTimer timer(ctx, OpKind::kIndexTopk);
  LEVIN_CHECK(a.score.rank() == 2, "select_topk: score is {}, expected f32 [T, S]", a.score.describe());
  LEVIN_CHECK(a.topk.rank() == 2 && a.topk.dim(1) > 0, "select_topk: topk is {}, expected i32 [T, K]",
              a.topk.describe());
  const int64_t n_rows = a.score.dim(0), n_slots = a.score.dim(1);
  check_view({"select_topk", "score", a.score}, DType::kF32, {n_rows, n_slots});
  if (!a.begin.empty()) check_view({"select_topk", "begin", a.begin}, DType::kI32, {n_rows});
  check_view({"select_topk", "end", a.end}, DType::kI32, {n_rows});
  check_view({"select_topk", "topk", a.topk}, DType::kI32, {n_rows, a.topk.dim(1)});
  if (!a.faults.empty()) check_view({"select_topk", "faults", a.faults}, DType::kI32, {n_rows});
  ctx.backend->select_topk(a);
}

void select_blocks(OpContext& ctx, const SelectBlocks& a) {
  const OpTimer timer(ctx, OpKind::kIndexTopk);
  LEVIN_CHECK(a.score.rank() == 2 && a.block > 0, "select_blocks: score is {}, in blocks of {}, expected f32 [T, S]",
              a.score.describe(), a.block);
  LEVIN_CHECK(a.blocks.rank() == 2 && a.blocks.dim(1) > 0, "select_blocks: blocks is {}, expected i32 [T, Kb]",
              a.blocks.describe());
  const int64_t n_rows = a.score.dim(0);
  check_view({"select_blocks", "score", a.score}, DType::kF32, {n_rows, a.score.dim(1)});
  check_view({"select_blocks", "end", a.end}, DType::kI32, {n_rows});
  check_view({"select_blocks", "blocks", a.blocks}, DType::kI32, {n_rows, a.blocks.dim(1)});
  ctx.backend->select_blocks(a);
}

void keep_blocks(OpContext& ctx, const KeepBlocks& a) {
  const OpTimer timer(ctx, OpKind::kIndexTopk);
  LEVIN_CHECK(a.score.rank() == 2 && a.block > 0 && a.blocks.rank() == 2,
              "keep_blocks: score is {}, blocks {}, expected f32 [T, S], i32 [T, Kb]", a.score.describe(),
              a.blocks.describe());
  const int64_t n_rows = a.score.dim(0);
  check_view({"keep_blocks", "score", a.score}, DType::kF32, {n_rows, a.score.dim(1)});
  check_view({"keep_blocks", "end", a.end}, DType::kI32, {n_rows});
  check_view({"keep_blocks", "blocks", a.blocks}, DType::kI32, {n_rows, a.blocks.dim(1)});
  ctx.backend->keep_blocks(a);
}

}  // namespace levin::ops
