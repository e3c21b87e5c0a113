#include "ops/draft_steps.h"

#include "base/check.h"
#include "ops/backend.h"
#include "ops/check_view.h"
#include "ops/op_times.h"

namespace levin::ops {
namespace {

int64_t n_rows_of(const View& rows) { return rows.empty() ? 0 : rows.dim(0); }

void check_records(const Argument& a, int64_t n_words) {
  if (!a.view.empty()) check_view(a, DType::kI32, {a.view.dim(0), n_words});
}

void check_step(std::string_view op, const EditedStep& step, int64_t n_rows) {
  check_view({op, "step.tokens", step.tokens}, DType::kI32, {n_rows});
  check_view({op, "step.positions", step.positions}, DType::kI32, {n_rows});
  check_view({op, "step.seq", step.seq}, DType::kI32, {n_rows});
  check_view({op, "step.slot", step.slot}, DType::kI32, {n_rows});
  check_view({op, "step.visible", step.visible}, DType::kI32, {n_rows});
  if (!step.window.empty()) check_view({op, "step.window", step.window}, DType::kI32, {n_rows});
}

}  // namespace

void accept_drafts(OpContext& ctx, const AcceptDrafts& a) {
  const OpTimer timer(ctx, OpKind::kArgmax);
  const int64_t n_rows = a.step.tokens.dim(0), n_chains = n_rows_of(a.chains);
  check_records({"accept_drafts", "chosen", a.chosen}, kChosenTokenWords);
  check_records({"accept_drafts", "sequences", a.sequences}, kVerifiedRowsWords);
  check_records({"accept_drafts", "chains", a.chains}, kDraftChainWords);
  check_step("accept_drafts", a.step, n_rows);
  LEVIN_CHECK(a.faults.rank() == 1 && a.faults.dim(0) <= n_rows, "accept_drafts: faults is {}, of a step of {} rows",
              a.faults.describe(), n_rows);
  LEVIN_CHECK(n_rows_of(a.wanted) >= n_chains, "accept_drafts: wanted is {}, of {} chains", a.wanted.describe(),
              n_chains);
  ctx.backend->accept_drafts(a);
}

void continue_drafts(OpContext& ctx, const ContinueDrafts& a) {
  const OpTimer timer(ctx, OpKind::kArgmax);
  const int64_t n_rows = a.step.tokens.dim(0), n_chains = a.chains.dim(0);
  check_view({"continue_drafts", "chosen", a.chosen}, DType::kI32, {n_chains, kChosenTokenWords});
  check_view({"continue_drafts", "chains", a.chains}, DType::kI32, {n_chains, kDraftChainWords});
  check_step("continue_drafts", a.step, n_rows);
  LEVIN_CHECK(n_rows >= n_chains, "continue_drafts: a step of {} rows, of {} chains", n_rows, n_chains);
  ctx.backend->continue_drafts(a);
}

void carry_drafts(OpContext& ctx, const CarryDrafts& a) {
  const OpTimer timer(ctx, OpKind::kArgmax);
  const int64_t n_chains = a.chains.dim(0), n_sequences = a.which.dim(0), n_rows = n_sequences * a.rows_each;
  check_view({"carry_drafts", "chosen", a.chosen}, DType::kI32, {n_chains, kChosenTokenWords});
  check_view({"carry_drafts", "chains", a.chains}, DType::kI32, {n_chains, kDraftChainWords});
  check_step("carry_drafts", a.step, a.step.tokens.dim(0));
  LEVIN_CHECK(a.step.tokens.dim(0) >= n_rows, "carry_drafts: a step of {} rows, of {} sequences with {} each",
              a.step.tokens.dim(0), n_sequences, a.rows_each);
  if (!a.rules.empty()) {
    check_view({"carry_drafts", "rules", a.rules}, DType::kI32, {n_rows, kChoiceRuleWords});
    check_view({"carry_drafts", "sequences", a.sequences}, DType::kI32, {n_sequences, kVerifiedRowsWords});
    check_view({"carry_drafts", "next", a.next}, DType::kI32, {n_sequences, kDraftChainWords});
  }
  ctx.backend->carry_drafts(a);
}

}  // namespace levin::ops
