#include "engine/runner.h"

#include <algorithm>

#include "base/check.h"
#include "ops/logits.h"

namespace levin {
namespace {

// A value that is no number stays one through residual stream and norm, so the end shows all rows that had any.
void mark_rows_without_numbers(const View& hidden, const View& faults) {
  for (int64_t t = 0; t < hidden.dim(0); ++t) {
    const float* row = hidden.row<float>(t);
    float sum = 0;  // of zeros, or NaN
    for (int64_t i = 0; i < hidden.dim(1); ++i) sum += row[i] - row[i];
    if (sum != 0) mark_fault(faults, t);
  }
}

}  // namespace

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
  mark_rows_without_numbers(out.hidden, step.faults);
  out.faults = step.faults;
  last_result_ = std::chrono::steady_clock::now();
  return out;
}

ForwardRows Runner::mtp(std::span<const SequenceChunk> chunks, const MtpInput& in, const Probe* probe) {
  const Step step = build_step(arena_, chunks, SlotRule::kAfterPosition, pools_.kinds());
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
  LEVIN_CHECK(rows.contiguous(), "rows to keep are {}, and not contiguous", rows.describe());
  const View out = arena_.allocate(rows.dtype(), {rows.dim(0), rows.dim(1)});
  std::copy_n(rows.bytes(), rows.n_elements() * dtype_bytes(rows.dtype()), out.bytes());
  return out;
}

}  // namespace levin
