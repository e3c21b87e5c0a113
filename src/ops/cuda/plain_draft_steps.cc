// Acceptance of drafts and the draft layer's steps.
#include "kernels/cuda/plain/draft_steps.h"
#include "ops/cuda/plain_cuda.h"
#include "ops/draft_steps.h"

namespace levin {
namespace {

namespace plain = cuda::plain;

template <class T>
T* records(std::string_view op, std::string_view name, const View& rows) {
  return reinterpret_cast<T*>(optional_data<int32_t>(op, name, rows));
}

plain::EditedStep edited_step(std::string_view op, const ops::EditedStep& step) {
  return {.tokens = dense_data<int32_t>(op, "step.tokens", step.tokens),
          .positions = dense_data<int32_t>(op, "step.positions", step.positions),
          .seq = dense_data<int32_t>(op, "step.seq", step.seq),
          .slot = dense_data<int32_t>(op, "step.slot", step.slot),
          .visible = dense_data<int32_t>(op, "step.visible", step.visible),
          .window = optional_data<int32_t>(op, "step.window", step.window),
          .first_slot = step.first_slot,
          .n_window = step.n_window};
}

}  // namespace

void PlainCuda::accept_drafts(const ops::AcceptDrafts& a) {
  constexpr std::string_view kOp = "accept_drafts";
  plain::accept_drafts({.chosen = records<ChosenToken>(kOp, "chosen", a.chosen),
                        .faults = dense_data<int32_t>(kOp, "faults", a.faults),
                        .sequences = records<VerifiedRows>(kOp, "sequences", a.sequences),
                        .n_sequences = a.sequences.dim(0),
                        .chains = records<DraftChain>(kOp, "chains", a.chains),
                        .step = edited_step(kOp, a.step),
                        .wanted = optional_data<int32_t>(kOp, "wanted", a.wanted)},
                       stream_.handle());
}

void PlainCuda::continue_drafts(const ops::ContinueDrafts& a) {
  constexpr std::string_view kOp = "continue_drafts";
  plain::continue_drafts({.chosen = records<ChosenToken>(kOp, "chosen", a.chosen),
                          .chains = records<DraftChain>(kOp, "chains", a.chains),
                          .n_chains = a.chains.dim(0),
                          .step = edited_step(kOp, a.step),
                          .min_confidence = a.min_confidence},
                         stream_.handle());
}

void PlainCuda::carry_drafts(const ops::CarryDrafts& a) {
  constexpr std::string_view kOp = "carry_drafts";
  plain::carry_drafts({.chosen = records<ChosenToken>(kOp, "chosen", a.chosen),
                       .chains = records<DraftChain>(kOp, "chains", a.chains),
                       .which = dense_data<int32_t>(kOp, "which", a.which),
                       .n_sequences = a.which.dim(0),
                       .step = edited_step(kOp, a.step),
                       .rows_each = a.rows_each,
                       .shift = a.shift,
                       .rules = records<ChoiceRule>(kOp, "rules", a.rules),
                       .sequences = records<VerifiedRows>(kOp, "sequences", a.sequences),
                       .next = records<DraftChain>(kOp, "next", a.next)},
                      stream_.handle());
}

}  // namespace levin
