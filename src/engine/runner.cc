#include "engine/runner.h"

#include "ops/copies.h"
#include "ops/logits.h"

namespace levin {
Runner::Runner(const Model& model, const RunnerOptions& options)
    : model_(model),
      isa_(options.isa),
      pool_(options.n_threads),
      ctx_(cpu_context(pool_, arena_, options.isa)),
      pools_(model.cache_layout().page_kinds(), {.n_tokens = options.n_cache_tokens,
                                                 .n_sequences = options.n_sequences,
                                                 .n_step_tokens = options.n_step_tokens,
                                                 .n_undone = options.n_undone_tokens}),
      cache_(model.cache_layout(), pools_) {}

ForwardRows Runner::trunk(std::span<const SequenceChunk> chunks, const Probe* probe) {
  const Step step = build_step(arena_, chunks, SlotRule::kAtPosition, pools_.kinds());
  ForwardRows out = model_.trunk(ctx_, step, cache_, probe);
  // A value that is no number stays one through residual stream and norm, so the end shows all rows that had any.
  ops::mark_unusable(ctx_, {.x = out.hidden, .faults = step.faults});
  out.faults = step.faults;
  last_result_ = std::chrono::steady_clock::now();
  return out;
}

ForwardRows Runner::mtp(std::span<const SequenceChunk> chunks, const MtpInput& in,
                        std::optional<std::span<const int32_t>> wanted, const Probe* probe) {
  const Step step = build_step(arena_, chunks, SlotRule::kAfterPosition, pools_.kinds(), wanted);
  const ForwardRows out = model_.mtp(ctx_, step, in, cache_, probe);
  last_result_ = std::chrono::steady_clock::now();
  return out;
}

View Runner::logits(View hidden) {
  const View out = model_.logits(ctx_, hidden);
  last_result_ = std::chrono::steady_clock::now();
  return out;
}

View Runner::draft_logits(View hidden) {
  const View out = model_.draft_logits(ctx_, hidden);
  last_result_ = std::chrono::steady_clock::now();
  return out;
}

std::vector<int32_t> Runner::argmax(View logits) {
  std::vector<int32_t> tokens(static_cast<size_t>(logits.dim(0)));
  ops::argmax(ctx_, {.x = logits, .out = View::of(tokens.data(), {logits.dim(0)})});
  return tokens;
}

View Runner::keep(View rows) {
  const View out = arena_.allocate(rows.dtype(), {rows.dim(0), rows.dim(1)});
  ops::copy_rows(ctx_, {.x = rows, .out = out});
  return out;
}

}  // namespace levin
