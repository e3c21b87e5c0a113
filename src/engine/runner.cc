#include "engine/runner.h"

#include <algorithm>
#include <functional>
#include <new>
#include <utility>

#include "ops/copies.h"
#include "ops/logits.h"

namespace levin {
namespace {

constexpr int64_t kDeviceLogitRows = 64;

// Pinned where a device copies to it.
Arena host_arena(CudaBackend* cuda) {
  if (cuda == nullptr) return {};
  const auto pinned = [cuda](int64_t n_bytes) {
    Result<Buffer> block = cuda->allocate_pinned(n_bytes);
    if (!block.ok()) throw std::bad_alloc();
    return std::move(block).value();
  };
  return Arena(pinned, kAlignment);
}

// As many elements in as many dimensions; of more than two the first is kept.
View allocate_like(Arena& arena, const View& rows) {
  if (rows.rank() == 1) return arena.allocate(rows.dtype(), {rows.dim(0)});
  return arena.allocate(rows.dtype(), {rows.dim(0), rows.dim(0) == 0 ? 0 : rows.n_elements() / rows.dim(0)});
}

}  // namespace

Runner::Runner(const Model& model, const RunnerOptions& options)
    : model_(model),
      cuda_(options.cuda),
      isa_(options.isa),
      pool_(options.n_threads),
      arena_(host_arena(options.cuda)),
      cpu_(pool_, arena_, options.isa),
      host_(op_context(cpu_)),
      ctx_(options.cuda != nullptr ? op_context(*options.cuda) : host_),
      pools_(model.cache_layout().page_kinds(), {.n_tokens = options.n_cache_tokens,
                                                 .n_sequences = options.n_sequences,
                                                 .n_step_tokens = options.n_step_tokens,
                                                 .n_undone = options.n_undone_tokens}) {
  if (!on_device()) {
    cache_ = KvCache(model.cache_layout(), pools_);
    return;
  }
  Result<KvCache> cache = KvCache::on_device(*cuda_, model.cache_layout(), pools_);
  if (cache.ok()) cache_ = std::move(cache).value();
  if (!cache.ok()) ready_ = cache.error();
}

std::unique_ptr<ArenaScope> Runner::call_scope() {
  return on_device() ? std::make_unique<ArenaScope>(*ctx_.arena) : nullptr;
}

View Runner::to_device(View rows) {
  if (!on_device() || rows.empty()) return rows;
  const View out = allocate_like(*ctx_.arena, rows);
  cuda_->copy_in(out, rows);
  return out;
}

View Runner::to_host(View rows) {
  if (!on_device() || rows.empty()) return rows;
  const View out = allocate_like(arena_, rows);
  cuda_->copy_bytes_out(out.bytes(), rows.bytes(), rows.n_elements() * dtype_bytes(rows.dtype()));
  return out;
}

ForwardRows Runner::to_host(const ForwardRows& rows) {
  if (!on_device()) return rows;
  const View hidden = to_host(rows.hidden);
  const ForwardRows out{.hidden = hidden,
                        .state = rows.state.bytes() == rows.hidden.bytes() ? hidden : to_host(rows.state),
                        .picks = to_host(rows.picks),
                        .faults = to_host(rows.faults)};
  wait_for(*cuda_);
  return out;
}

Probe Runner::on_host(const Probe* probe) {
  if (probe == nullptr) return {};
  if (!on_device()) return *probe;
  const auto copying = [this](const std::function<void(int, View)>& ask) -> std::function<void(int, View)> {
    if (!ask) return {};
    return [this, &ask](int layer, View rows) {
      const ArenaScope scratch(arena_);
      const View copy = to_host(rows);
      wait_for(*cuda_);
      ask(layer, copy);
    };
  };
  return {.on_layer_output = copying(probe->on_layer_output),
          .on_picks = copying(probe->on_picks),
          .on_window_rows = copying(probe->on_window_rows),
          .on_taps = copying(probe->on_taps)};
}

Step Runner::step_of(std::span<const SequenceChunk> chunks, SlotRule rule,
                     std::optional<std::span<const int32_t>> wanted) {
  Step step = build_step(arena_, chunks, rule, pools_.kinds(), wanted);
  if (on_device()) for_each_view(step, [this](View& view) { view = to_device(view); });
  return step;
}

ForwardRows Runner::trunk(std::span<const SequenceChunk> chunks, const Probe* probe) {
  const std::unique_ptr<ArenaScope> scratch = call_scope();
  const Step step = step_of(chunks, SlotRule::kAtPosition, std::nullopt);
  const Probe asked = on_host(probe);
  ForwardRows out = model_.trunk(ctx_, step, cache_, probe != nullptr ? &asked : nullptr);
  // A value that is no number stays one through residual stream and norm, so the end shows all rows that had any.
  ops::mark_unusable(ctx_, {.x = out.hidden, .faults = step.faults});
  out.faults = step.faults;
  out = to_host(out);
  last_result_ = std::chrono::steady_clock::now();
  return out;
}

ForwardRows Runner::mtp(std::span<const SequenceChunk> chunks, const MtpInput& in,
                        std::optional<std::span<const int32_t>> wanted, const Probe* probe) {
  const std::unique_ptr<ArenaScope> scratch = call_scope();
  const Step step = step_of(chunks, SlotRule::kAfterPosition, wanted);
  const Probe asked = on_host(probe);
  const MtpInput here{.state = to_device(in.state), .picks = to_device(in.picks)};
  const ForwardRows out = to_host(model_.mtp(ctx_, step, here, cache_, probe != nullptr ? &asked : nullptr));
  last_result_ = std::chrono::steady_clock::now();
  return out;
}

ForwardRows Runner::draft_blocks(std::span<const SequenceChunk> blocks) {
  const std::unique_ptr<ArenaScope> scratch = call_scope();
  Step step = build_block_step(arena_, blocks, pools_.kinds());
  if (on_device()) for_each_view(step, [this](View& view) { view = to_device(view); });
  const ForwardRows out = to_host(model_.block_drafting()->draft_blocks(ctx_, step, cache_));
  last_result_ = std::chrono::steady_clock::now();
  return out;
}

DraftTerms Runner::draft_terms(View before, View state) {
  const std::unique_ptr<ArenaScope> scratch = call_scope();
  const DraftTerms terms = model_.block_drafting()->draft_terms(ctx_, to_device(before), to_device(state));
  const DraftTerms out{.logits = to_host(terms.logits), .confidence = to_host(terms.confidence)};
  if (on_device()) wait_for(*cuda_);
  last_result_ = std::chrono::steady_clock::now();
  return out;
}

// Some rows at a time on a device, so that its scratch need not hold logits of a whole chunk.
View Runner::logits_of(View hidden, View (Model::*head)(OpContext&, View) const) {
  if (!on_device()) return (model_.*head)(ctx_, hidden);
  const View out = arena_.allocate(DType::kF32, {hidden.dim(0), model_.config().n_vocab});
  for (int64_t row = 0; row < hidden.dim(0); row += kDeviceLogitRows) {
    const int64_t n = std::min(kDeviceLogitRows, hidden.dim(0) - row);
    const std::unique_ptr<ArenaScope> scratch = call_scope();
    const View logits = (model_.*head)(ctx_, to_device(hidden.slice_first(row, n)));
    const View to = out.slice_first(row, n);
    cuda_->copy_bytes_out(to.bytes(), logits.bytes(), n * out.dim(1) * dtype_bytes(out.dtype()));
  }
  wait_for(*cuda_);
  return out;
}

View Runner::logits(View hidden) {
  const View out = logits_of(hidden, &Model::logits);
  last_result_ = std::chrono::steady_clock::now();
  return out;
}

View Runner::draft_logits(View hidden) {
  const View out = logits_of(hidden, &Model::draft_logits);
  last_result_ = std::chrono::steady_clock::now();
  return out;
}

std::vector<int32_t> Runner::argmax(View logits) {
  std::vector<int32_t> tokens(static_cast<size_t>(logits.dim(0)));
  ops::argmax(host_, {.x = logits, .out = View::of(tokens.data(), {logits.dim(0)})});
  return tokens;
}

View Runner::keep(View rows) {
  const View out = arena_.allocate(rows.dtype(), {rows.dim(0), rows.dim(1)});
  ops::copy_rows(host_, {.x = rows, .out = out});
  return out;
}

}  // namespace levin
