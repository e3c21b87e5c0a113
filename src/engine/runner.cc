#include "engine/runner.h"

#include <algorithm>
#include <functional>
#include <new>
#include <utility>

#include "engine/input_pack.h"
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

// `rows`, and rows of `padding` behind them: [n_rows, width].
template <class T>
View padded(Arena& arena, const View& rows, int64_t n_rows, int64_t width, T padding) {
  const View out = arena.allocate(DTypeOf<T>::value, {n_rows, width});
  const int64_t n_given = rows.empty() ? 0 : rows.dim(0);
  for (int64_t r = 0; r < n_given; ++r) std::copy_n(rows.row<T>(r), width, out.row<T>(r));
  std::fill(out.data<T>() + n_given * width, out.data<T>() + n_rows * width, padding);
  return out;
}

View first_rows(const View& rows, int64_t n) { return rows.empty() ? rows : rows.slice_first(0, n); }

}  // namespace

Runner::Runner(const Model& model, const RunnerOptions& options)
    : model_(model),
      cuda_(options.cuda),
      graphs_(options.cuda != nullptr && options.graphs),
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

void Runner::wait() {
  ++n_waits_;
  wait_for(*cuda_);
}

View Runner::to_host(View rows) {
  if (!on_device() || rows.empty()) return rows;
  const View out = allocate_like(arena_, rows);
  cuda_->copy_bytes_out(out.bytes(), rows.bytes(), rows.n_elements() * dtype_bytes(rows.dtype()));
  return out;
}

ForwardRows Runner::to_host(const ForwardRows& rows) {
  if (rows.hidden.empty()) return {};
  const View hidden = to_host(rows.hidden);
  const ForwardRows out{.hidden = hidden,
                        .state = rows.state.bytes() == rows.hidden.bytes() ? hidden : to_host(rows.state),
                        .topk = to_host(rows.topk),
                        .faults = to_host(rows.faults)};
  wait();
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
      wait();
      ask(layer, copy);
    };
  };
  return {.on_layer_output = copying(probe->on_layer_output),
          .on_topk = copying(probe->on_topk),
          .on_window_rows = copying(probe->on_window_rows),
          .on_taps = copying(probe->on_taps)};
}

int64_t Runner::Forward::n_rows() const {
  if (wanted) return std::ssize(*wanted);
  int64_t n = 0;
  for (const SequenceChunk& chunk : chunks) n += std::ssize(chunk.tokens);
  return n;
}

ForwardRows Runner::trunk(std::span<const SequenceChunk> chunks, const Probe* probe) {
  return forward({.form = Form::kTrunk, .chunks = chunks, .wanted = {}, .in = {}, .probe = probe});
}

ForwardRows Runner::mtp(std::span<const SequenceChunk> chunks, const MtpInput& in,
                        std::optional<std::span<const int32_t>> wanted, const Probe* probe) {
  Form form = in.topk.empty() ? Form::kMtp : Form::kMtpWithPicks;
  if (wanted) form = wanted->empty() ? Form::kMtpAppend : Form::kMtpWanted;
  return forward({.form = form, .chunks = chunks, .wanted = wanted, .in = in, .probe = probe});
}

ForwardRows Runner::forward(const Forward& f) {
  const ForwardRows out =
      on_device()
          ? forward_on_device(f)
          : compute(f.form, {.step = build_step(arena_, f.chunks, f.rule(), pools_.kinds(), f.wanted), .mtp = f.in},
                    f.probe);
  last_result_ = std::chrono::steady_clock::now();
  return out;
}

ForwardRows Runner::draft_blocks(std::span<const SequenceChunk> blocks) {
  Step step = build_block_step(arena_, blocks, pools_.kinds());
  const auto compute_blocks = [&] { return model_.block_drafting()->draft_blocks(ctx_, step, cache_); };
  ForwardRows out;
  if (on_device()) {
    const ArenaScope scratch(*ctx_.arena);
    InputPack pack;
    for_each_view(step, [&](View& view) { pack.add(view); });
    pack.send(*cuda_);
    out = to_host(compute_blocks());
  } else {
    out = compute_blocks();
  }
  last_result_ = std::chrono::steady_clock::now();
  return out;
}

DraftTerms Runner::draft_terms(View before, View state) {
  const auto compute_terms = [&] { return model_.block_drafting()->draft_terms(ctx_, before, state); };
  DraftTerms out;
  if (on_device()) {
    const ArenaScope scratch(*ctx_.arena);
    InputPack pack;
    pack.add(before);
    pack.add(state);
    pack.send(*cuda_);
    const DraftTerms terms = compute_terms();
    out = {.logits = to_host(terms.logits), .confidence = to_host(terms.confidence)};
    wait();
  } else {
    out = compute_terms();
  }
  last_result_ = std::chrono::steady_clock::now();
  return out;
}

ForwardRows Runner::compute(Form form, const Input& in, const Probe* probe) {
  if (form != Form::kTrunk) return model_.mtp(ctx_, in.step, in.mtp, cache_, probe);
  ForwardRows out = model_.trunk(ctx_, in.step, cache_, probe);
  // A value that is no number stays one through residual stream and norm, so the end shows all rows that had any.
  ops::mark_unusable(ctx_, {.x = out.hidden, .faults = in.step.faults});
  out.faults = in.step.faults;
  return out;
}

ForwardRows Runner::forward_on_device(const Forward& f) {
  const std::optional<StepShape> shape = graph_shape(f);
  if (shape) record_pass({f.form, *shape});
  const ArenaScope scratch(*ctx_.arena);
  const Input in = send(f, shape);
  const Probe asked = on_host(f.probe);
  const ForwardRows out =
      shape ? passes_.replay({f.form, *shape}) : compute(f.form, in, f.probe != nullptr ? &asked : nullptr);
  return to_host({.hidden = first_rows(out.hidden, f.n_rows()),
                  .state = first_rows(out.state, f.n_rows()),
                  .topk = first_rows(out.topk, f.n_rows()),
                  .faults = first_rows(out.faults, f.n_rows())});
}

std::optional<StepShape> Runner::graph_shape(const Forward& f) const {
  const bool has_form = !f.wanted || f.in.topk.empty();
  if (!graphs_ || f.probe != nullptr || !has_form) return std::nullopt;
  const StepShape shape = padded_shape(f.chunks, pools_.kinds(), f.wanted, pools_.max_sequences());
  return shape.n_rows <= kMostGraphRows ? std::optional(shape) : std::nullopt;
}

// A step's input on the device: of one shape always at the same place behind the arena's mark.
Runner::Input Runner::send(const Forward& f, const std::optional<StepShape>& shape) {
  Input in{.step = build_step(arena_, f.chunks, f.rule(), pools_.kinds(), f.wanted, shape), .mtp = f.in};
  if (shape && f.form != Form::kTrunk) {
    in.mtp.state = padded(arena_, f.in.state, shape->n_rows, model_.d_state(), 0.0f);
    if (f.form == Form::kMtpWithPicks)
      in.mtp.topk = padded<int32_t>(arena_, f.in.topk, shape->n_rows, model_.config().n_topk, -1);
  }
  InputPack pack;
  for_each_view(in.step, [&](View& view) { pack.add(view); });
  pack.add(in.mtp.state);
  pack.add(in.mtp.topk);
  pack.send(*cuda_);
  return in;
}

// Of a step that is all padding, which leaves the caches as they are.
void Runner::record_pass(const PassKey& key) {
  if (passes_.contains(key)) return;
  constexpr int32_t kFirstRow = 0;
  Forward f{.form = key.form, .chunks = {}, .wanted = {}, .in = {}};
  if (key.form == Form::kMtpWanted) f.wanted = std::span(&kFirstRow, 1);
  if (key.form == Form::kMtpAppend) f.wanted = std::span<const int32_t>();
  const ArenaScope scratch(*ctx_.arena), host_scratch(arena_);
  const Input in = send(f, key.shape);
  passes_.record(*cuda_, key, [&] { return compute(key.form, in, nullptr); });
}

void Runner::record_head(const HeadKey& key) {
  if (heads_.contains(key)) return;
  const ArenaScope scratch(*ctx_.arena);
  const View hidden = ctx_.arena->allocate(DType::kF32, {key.n_rows, model_.config().d_model});
  heads_.record(*cuda_, key, [&] { return head(hidden, key.of_drafts); });
}

void Runner::record_graphs(int n_drafts) {
  if (!graphs_) return;
  std::vector<Form> forms = {Form::kTrunk};
  const bool drafts = model_.has_mtp() && n_drafts > 0;
  if (drafts) forms.insert(forms.end(), {Form::kMtpWanted, Form::kMtpAppend});
  if (drafts && n_drafts > 1)
    forms.push_back(model_.config().share_topk_across_drafts ? Form::kMtpWithPicks : Form::kMtp);
  const int64_t last_pages = padded_pages((pools_.limits().n_tokens + kPageTokens - 1) / kPageTokens);
  for (int64_t n_rows = 1; n_rows <= kMostGraphRows; n_rows = padded_rows(n_rows + 1)) {
    const int64_t n_sequences = std::min(n_rows, pools_.max_sequences());
    for (int64_t n_pages = padded_pages(1); n_pages <= last_pages; n_pages = padded_pages(n_pages + 1)) {
      for (const Form form : forms) record_pass({form, {n_rows, n_sequences, n_pages}});
    }
    if (n_rows > kDeviceLogitRows) continue;
    record_head({.of_drafts = false, .n_rows = n_rows});
    if (drafts) record_head({.of_drafts = true, .n_rows = n_rows});
  }
}

View Runner::head(View hidden, bool of_drafts) {
  return of_drafts ? model_.draft_logits(ctx_, hidden) : model_.logits(ctx_, hidden);
}

View Runner::head_on_device(View hidden, bool of_drafts) {
  const int64_t n_rows = hidden.dim(0);
  const HeadKey key{of_drafts, graphs_ ? padded_rows(n_rows) : n_rows};
  if (graphs_) record_head(key);
  const View here = ctx_.arena->allocate(DType::kF32, {key.n_rows, hidden.dim(1)});
  cuda_->copy_in(here.slice_first(0, n_rows), hidden);
  return (graphs_ ? heads_.replay(key) : head(here, of_drafts)).slice_first(0, n_rows);
}

// Some rows at a time on a device, so that its scratch need not hold logits of a whole chunk.
View Runner::logits_of(View hidden, bool of_drafts) {
  View out;
  if (on_device()) {
    out = arena_.allocate(DType::kF32, {hidden.dim(0), model_.config().n_vocab});
    for (int64_t row = 0; row < hidden.dim(0); row += kDeviceLogitRows) {
      const int64_t n = std::min(kDeviceLogitRows, hidden.dim(0) - row);
      const ArenaScope scratch(*ctx_.arena);
      const View logits = head_on_device(hidden.slice_first(row, n), of_drafts);
      cuda_->copy_bytes_out(out.slice_first(row, n).bytes(), logits.bytes(), logits.n_elements() * 4);
    }
    wait();
  } else {
    out = head(hidden, of_drafts);
  }
  last_result_ = std::chrono::steady_clock::now();
  return out;
}

View Runner::logits(View hidden) { return logits_of(hidden, false); }

View Runner::draft_logits(View hidden) { return logits_of(hidden, true); }

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
