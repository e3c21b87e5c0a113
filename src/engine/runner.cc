#include "engine/runner.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <new>
#include <numeric>
#include <utility>

#include "engine/input_pack.h"
#include "engine/row_span.h"
#include "model/memory_plan.h"
#include "ops/copies.h"

namespace levin {
namespace {

Arena device_arena(CudaBackend* cuda) {
  if (cuda == nullptr) return {};
  const auto block = [cuda](int64_t n_bytes) {
    Result<Buffer> buffer = cuda->allocate(n_bytes);
    if (!buffer.ok()) throw std::bad_alloc();
    return std::move(buffer).value();
  };
  return Arena(block, kAlignment);
}

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

// [T, ...] as [T, W].
View as_rows(const View& rows) {
  const int64_t n = rows.dim(0);
  return rows.reshaped({n, n == 0 ? 0 : rows.n_elements() / n});
}

template <class T>
View filled_row(Arena& arena, int64_t width, T value) {
  const View out = arena.allocate(DTypeOf<T>::value, {1, width});
  std::fill_n(out.data<T>(), width, value);
  return out;
}

// [N, kChoiceRuleWords] i32 that choose the largest logit.
View no_rules(Arena& arena, int64_t n) {
  return filled_row<int32_t>(arena, n * kChoiceRuleWords, 0).reshaped({n, kChoiceRuleWords});
}

bool are_consecutive(std::span<const int32_t> rows) {
  return std::adjacent_find(rows.begin(), rows.end(), [](int32_t a, int32_t b) { return b != a + 1; }) == rows.end();
}

View first_rows(const View& rows, int64_t n) { return rows.empty() ? rows : rows.slice_first(0, n); }

}  // namespace

Runner::Runner(const Model& model, const RunnerOptions& options)
    : model_(model),
      cuda_(options.cuda),
      graphs_(options.cuda != nullptr && options.graphs),
      isa_(options.isa),
      pool_(options.n_threads),
      sides_{{{.host_rows = host_arena(options.cuda), .device_rows = device_arena(options.cuda), .end = nullptr},
              {.host_rows = host_arena(options.cuda), .device_rows = device_arena(options.cuda), .end = nullptr}}},
      cpu_(pool_, sides_[0].host_rows, options.isa),
      host_(op_context(cpu_)),
      ctx_(options.cuda != nullptr ? op_context(*options.cuda) : host_),
      n_step_rows_(options.n_step_rows > 0 ? options.n_step_rows : options.n_step_tokens),
      pools_(model.cache_layout().page_kinds(), {.n_tokens = options.n_cache_tokens,
                                                 .n_sequences = options.n_sequences,
                                                 .n_step_tokens = options.n_step_tokens,
                                                 .n_undone = options.n_undone_tokens}) {
  if (!on_device()) {
    cache_ = KvCache(model.cache_layout(), pools_);
    return;
  }
  ready_ = open_sides();
  if (!ready_.ok()) return;
  Result<KvCache> cache = KvCache::on_device(*cuda_, model.cache_layout(), pools_);
  if (cache.ok()) cache_ = std::move(cache).value();
  if (!cache.ok()) ready_ = cache.error();
}

// A step ahead that nobody waited for may still run, in memory that goes away here. A lost device has told others.
Runner::~Runner() {
  if (on_device()) static_cast<void>(cuda_->synchronize());
}

// Steps ahead have few rows.
Status Runner::open_sides() {
  LEVIN_ASSIGN(trunk_began_, cuda_->allocate(sizeof(Stamps::trunk_began)));
  LEVIN_ASSIGN(stamps_, cuda_->allocate_pinned(std::ssize(sides_) * static_cast<int64_t>(sizeof(Stamps))));
  auto* stamps = reinterpret_cast<Stamps*>(stamps_.data());
  for (Side& side : sides_) {
    side.stamps = new (stamps++) Stamps;
    LEVIN_ASSIGN(side.end, cuda_->make_mark());
  }
  const ModelConfig& config = model_.config();
  sides_[0].device_rows.reserve(step_rows_bytes(config, std::max(n_step_rows_, kMostGraphRows)));
  sides_[1].device_rows.reserve(step_rows_bytes(config, kMostRowsAhead));
  return {};
}

// Steps that may have any number of rows are those of the first side.
int64_t Runner::begin_step() {
  if (is_ahead_) wait();
  step_ += step_ % 2 == 0 ? 2 : 1;
  hold_for_copies();
  host_rows().reset();
  device_rows().reset();
  return step_;
}

int64_t Runner::begin_step_ahead() {
  stamp_end();
  side_of(step_).end->set();
  is_ahead_ = true;
  ++step_;
  hold_for_copies();
  host_rows().reset();
  device_rows().reset();
  return step_;
}

// Of blocks: what is being copied changes if its pages have other owners now, or where steps write over rows.
void Runner::hold_for_copies() {
  const int64_t n_freed = pools_.rows().n_freed();
  if (std::exchange(n_freed_pages_, n_freed) != n_freed || !keeps_all_rows()) cache_.hold_steps();
}

// Steps are waited for before their blocks are complete, but a pass of the MTP layer alone may not be.
std::unique_ptr<BlockCopy> Runner::start_copy(const SequencePages& pages, int64_t block, std::span<std::byte> out) {
  if (std::exchange(has_unwaited_pass_, false)) cache_.follow_steps();
  return cache_.start_copy(pages, block, out);
}

void Runner::set_block(const SequencePages& pages, int64_t block, std::span<const std::byte> record) {
  hold_for_copies();
  cache_.set_block(pages, block, record);
}

void Runner::wait() {
  if (!on_device()) return;
  ++n_waits_;
  stamp_end();
  levin::wait_for(*cuda_);
  is_ahead_ = has_unwaited_pass_ = false;
  note_results(side_of(step_));
}

void Runner::wait_for(int64_t step) {
  if (step == step_) return wait();
  ++n_waits_;
  if (const Status status = side_of(step).end->wait(); !status.ok()) throw DeviceFault(status.error());
  note_results(side_of(step));
}

// A graph writes its stamps to one place.
void Runner::stamp_end() {
  Stamps& stamps = *side_of(step_).stamps;
  cuda_->copy_bytes_out(&stamps.trunk_began, trunk_began_.data(), sizeof(stamps.trunk_began));
  cuda_->stamp_time(&stamps.work_ended);
}

void Runner::note_results(const Side& side) {
  last_result_ = Clock::now();
  const Stamps stamps = *side.stamps;
  if (stamps.trunk_began != last_stamps_.trunk_began && last_stamps_.work_ended > 0)
    idle_before_trunk_s_ = 1e-9 * static_cast<double>(stamps.trunk_began - last_stamps_.work_ended);
  last_stamps_ = stamps;
}

void Runner::measure(OpTimes* times) {
  if (times == nullptr && ctx_.times != nullptr) wait();
  ctx_.times = times;
}

View Runner::fetch(View rows) {
  if (!on_device() || rows.empty()) return rows;
  const View out = allocate_like(host_rows(), rows);
  cuda_->copy_bytes_out(out.bytes(), rows.bytes(), rows.n_elements() * dtype_bytes(rows.dtype()));
  return out;
}

View Runner::to_host(View rows) {
  const View out = fetch(rows);
  wait();
  return out;
}

View Runner::gather(View rows, std::span<const int32_t> which) {
  if (!which.empty() && are_consecutive(which)) return rows.slice_first(which.front(), std::ssize(which));
  Arena& results = rows_where_model_runs();
  const View out = results.allocate(rows.dtype(), {std::ssize(which), rows.dim(1)});
  if (which.empty()) return out;
  View indices = View::of(which.data(), {std::ssize(which)});
  const ArenaScope scratch(*ctx_.arena);
  if (on_device()) {
    InputPack pack;
    pack.add(indices);
    pack.send(*cuda_);
  }
  ops::copy_rows(ctx_, {.x = rows, .rows = indices, .out = out});
  return out;
}

View Runner::place(View host, View after) {
  const int64_t n_host = host.dim(0), n_after = after.empty() ? 0 : after.dim(0);
  Arena& results = rows_where_model_runs();
  const View out = results.allocate(host.dtype(), {n_host + n_after, host.dim(1)});
  const View first = out.slice_first(0, n_host);
  if (on_device()) {
    cuda_->copy_in(first, host);
  } else {
    ops::copy_rows(host_, {.x = host, .out = first});
  }
  if (n_after > 0) ops::copy_rows(ctx_, {.x = after, .out = out.slice_first(n_host, n_after)});
  return out;
}

// Scratch is taken back before anybody reads what a pass leaves there.
View Runner::kept(View rows) {
  if (!on_device() || rows.empty()) return rows;
  const View from = as_rows(rows);
  const View out = device_rows().allocate(from.dtype(), {from.dim(0), from.dim(1)});
  if (from.dim(0) > 0) ops::copy_rows(ctx_, {.x = from, .out = out});
  return rows.rank() == 1 ? out.reshaped({rows.dim(0)}) : out;
}

ForwardRows Runner::kept(const ForwardRows& rows) {
  const View hidden = kept(rows.hidden);
  return {.hidden = hidden,
          .state = rows.state.bytes() == rows.hidden.bytes() ? hidden : kept(rows.state),
          .topk = kept(rows.topk),
          .faults = kept(rows.faults)};
}

Runner::PassOutput Runner::kept(const PassOutput& out) { return {.rows = kept(out.rows), .chosen = kept(out.chosen)}; }

Probe Runner::on_host(const Probe* probe) {
  if (probe == nullptr) return {};
  if (!on_device()) return *probe;
  const auto copying = [this](const std::function<void(int, View)>& ask) -> std::function<void(int, View)> {
    if (!ask) return {};
    return [this, &ask](int layer, View rows) {
      const ArenaScope scratch(host_rows());
      ask(layer, to_host(rows));
    };
  };
  return {.on_layer_output = copying(probe->on_layer_output),
          .on_topk = copying(probe->on_topk),
          .on_window_rows = copying(probe->on_window_rows),
          .on_taps = copying(probe->on_taps),
          .on_index_query = probe->on_index_query,
          .on_experts = probe->on_experts};
}

int64_t Runner::Forward::n_rows() const { return wanted ? std::ssize(*wanted) : n_tokens(); }

int64_t Runner::Forward::n_tokens() const {
  int64_t n = 0;
  for (const SequenceChunk& chunk : chunks) n += std::ssize(chunk.tokens);
  return n;
}

ForwardRows Runner::trunk(std::span<const SequenceChunk> chunks, const Probe* probe) {
  return forward({.form = Form::kTrunk, .chunks = chunks, .wanted = {}, .from = {}, .probe = probe});
}

Runner::Form Runner::mtp_form(const MtpRows& from, const std::optional<std::span<const int32_t>>& wanted) {
  if (wanted) return wanted->empty() ? Form::kMtpAppend : Form::kMtpWanted;
  return from.topk.empty() ? Form::kMtp : Form::kMtpWithPicks;
}

ForwardRows Runner::mtp(std::span<const SequenceChunk> chunks, const MtpRows& from,
                        std::optional<std::span<const int32_t>> wanted, const Probe* probe) {
  const ForwardRows rows =
      forward({.form = mtp_form(from, wanted), .chunks = chunks, .wanted = wanted, .from = from, .probe = probe});
  has_unwaited_pass_ = on_device();
  return rows;
}

// Later work takes the same memory, after this pass.
void Runner::append_pairs(std::span<const SequenceChunk> chunks, View state) {
  const ArenaScope inputs(host_rows()), rows(device_rows());
  mtp(chunks, {.state = place(state)}, std::span<const int32_t>());
}

ForwardRows Runner::edited_trunk(std::span<const SequenceChunk> chunks, const StepEdit& edit) {
  return forward({.form = Form::kTrunk, .chunks = chunks, .wanted = {}, .from = {}, .edit = &edit});
}

ForwardRows Runner::edited_mtp(std::span<const SequenceChunk> chunks, const MtpRows& from,
                               std::optional<std::span<const int32_t>> wanted, const StepEdit& edit) {
  return forward({.form = mtp_form(from, wanted), .chunks = chunks, .wanted = wanted, .from = from, .edit = &edit});
}

// Rows whose logits go beyond one graph of the head, and steps that are not recorded, get it by itself.
DraftStep Runner::edited_draft_step(std::span<const SequenceChunk> pairs, const MtpRows& from, View rules,
                                    const StepEdit& edit) {
  Forward f{.form = mtp_form(from, {}), .chunks = pairs, .wanted = {}, .from = from, .edit = &edit};
  const std::optional<StepShape> shape = graph_shape(f);
  if (!shape || shape->n_rows > kDeviceHeadRows) {
    const ForwardRows rows = forward(f);
    return {.rows = rows, .head = start_draft_head(rows.hidden, rules)};
  }
  f.form = from.topk.empty() ? Form::kDrafts : Form::kDraftsWithPicks;
  f.rules = rules;
  const PassOutput out = forward_on_device(f);
  return {.rows = out.rows,
          .head = {.by_rule = std::vector<bool>(pairs.size(), true),
                   .logits = {},
                   .chosen = fetch(out.chosen),
                   .chosen_there = out.chosen}};
}

ForwardRows Runner::forward(const Forward& f) {
  if (on_device()) return forward_on_device(f).rows;
  const auto of_tokens = [&](View rows) {
    return rows.empty() || f.from.rows.empty() ? rows : gather(rows, f.from.rows);
  };
  const Input in{.step = build_step(host_rows(), f.chunks, f.rule(), pools_.kinds(), f.wanted),
                 .mtp = {.state = of_tokens(f.from.state), .topk = of_tokens(f.from.topk)}};
  if (f.edit != nullptr) (*f.edit)(ctx_, in.step);
  const ForwardRows out = compute(f.form, in, f.probe);
  last_result_ = Clock::now();
  return out;
}

ForwardRows Runner::draft_blocks(std::span<const SequenceChunk> blocks) {
  Step step = build_block_step(host_rows(), blocks, pools_.kinds());
  const auto compute_blocks = [&] { return model_.block_drafting()->draft_blocks(ctx_, step, cache_); };
  ForwardRows out;
  if (on_device()) {
    const ArenaScope scratch(*ctx_.arena);
    InputPack pack;
    for_each_view(step, [&](View& view) { pack.add(view); });
    pack.send(*cuda_);
    out = kept(compute_blocks());
  } else {
    out = compute_blocks();
  }
  last_result_ = Clock::now();
  return out;
}

DraftTerms Runner::draft_terms(View before, View state) {
  const auto compute_terms = [&] { return model_.block_drafting()->draft_terms(ctx_, before, state); };
  DraftTerms out;
  if (on_device()) {
    const ArenaScope scratch(*ctx_.arena);
    InputPack pack;
    pack.add(before);
    pack.send(*cuda_);
    const DraftTerms terms = compute_terms();
    out = {.logits = fetch(terms.logits), .confidence = fetch(terms.confidence)};
    wait();
  } else {
    out = compute_terms();
  }
  last_result_ = Clock::now();
  return out;
}

ForwardRows Runner::compute(Form form, const Input& in, const Probe* probe) {
  if (form != Form::kTrunk) return model_.mtp(ctx_, in.step, in.mtp, cache_, probe);
  if (on_device()) cuda_->stamp_time(reinterpret_cast<int64_t*>(trunk_began_.data()));
  ForwardRows out = model_.trunk(ctx_, in.step, cache_, probe);
  // A value that is no number stays one through residual stream and norm, so the end shows all rows that had any.
  ops::mark_unusable(ctx_, {.x = out.hidden, .faults = in.step.faults});
  out.faults = in.step.faults;
  return out;
}

// The hidden rows of drafts have served their purpose.
Runner::PassOutput Runner::compute_pass(Form form, const Input& in, const Probe* probe) {
  ForwardRows rows = compute(form, in, probe);
  if (!gives_drafts(form)) return {.rows = rows};
  const View chosen = compute_head({.hidden = rows.hidden, .rules = in.rules}, true).chosen;
  rows.hidden = {};
  return {.rows = rows, .chosen = chosen};
}

Runner::PassOutput Runner::forward_on_device(const Forward& f) {
  std::optional<StepShape> shape = graph_shape(f);
  if (shape && !is_recorded(PassKey{f.form, *shape})) shape.reset();
  const ArenaScope scratch(*ctx_.arena);
  const PassOutput out = run_pass(f, shape);
  return kept({.rows = {.hidden = first_rows(out.rows.hidden, f.n_rows()),
                        .state = first_rows(out.rows.state, f.n_rows()),
                        .topk = first_rows(out.rows.topk, f.n_rows()),
                        .faults = first_rows(out.rows.faults, f.n_rows())},
               .chosen = first_rows(out.chosen, f.n_rows())});
}

// Rules may be what the edit changes.
Runner::PassOutput Runner::run_pass(const Forward& f, const std::optional<StepShape>& shape) {
  const Input in = send(f, shape);
  if (f.edit != nullptr) (*f.edit)(ctx_, in.step);
  if (!f.rules.empty()) ops::copy_rows(ctx_, {.x = f.rules, .out = in.rules.slice_first(0, f.n_rows())});
  if (shape) return passes_.replay({f.form, *shape});
  const Probe asked = on_host(f.probe);
  return compute_pass(f.form, in, f.probe != nullptr ? &asked : nullptr);
}

std::optional<StepShape> Runner::graph_shape(const Forward& f) const {
  const bool has_form = !f.wanted || f.from.topk.empty();
  if (!replays() || f.probe != nullptr || !has_form) return std::nullopt;
  const StepShape shape = padded_shape(f.chunks, pools_.kinds(), f.wanted, pools_.max_sequences());
  return shape.n_rows <= kMostGraphRows ? std::optional(shape) : std::nullopt;
}

// A step's input on the device: of one shape always at the same place after the arena's mark.
Runner::Input Runner::send(const Forward& f, const std::optional<StepShape>& shape) {
  Input in{
      .step = build_step(host_rows(), f.chunks, f.rule(), pools_.kinds(), f.wanted, shape), .mtp = {}, .rules = {}};
  InputPack pack;
  for_each_view(in.step, [&](View& view) { pack.add(view); });
  if (f.form == Form::kTrunk) {
    pack.send(*cuda_);
    return in;
  }
  const int64_t n_given = f.n_tokens(), n_rows = in.step.n_tokens();
  View which = host_rows().allocate(DType::kI32, {n_rows});
  int32_t* const rows = which.data<int32_t>();
  std::iota(rows, rows + n_rows, 0);
  std::copy(f.from.rows.begin(), f.from.rows.end(), rows);
  RowInput state{.from = f.from.state, .padding = filled_row(host_rows(), model_.d_state(), 0.0f)};
  RowInput topk{.from = f.from.topk, .padding = {}};
  const bool gives_topk = takes_picks(f.form) || !f.from.topk.empty();
  if (gives_topk) topk.padding = filled_row<int32_t>(host_rows(), model_.config().n_topk, -1);
  if (gives_drafts(f.form)) in.rules = no_rules(host_rows(), n_rows);
  for (View* view : {&which, &state.padding, &topk.padding, &in.rules}) pack.add(*view);
  pack.send(*cuda_);
  in.mtp.state = input_rows(state, which, n_given);
  if (gives_topk) in.mtp.topk = input_rows(topk, which, n_given);
  return in;
}

// The rows that the first n_given of `which` [T] name, and padding after them: [T, W].
View Runner::input_rows(const RowInput& in, View which, int64_t n_given) {
  const int64_t n_rows = which.dim(0), n_padding = n_rows - n_given;
  const View out = ctx_.arena->allocate(in.padding.dtype(), {n_rows, in.padding.dim(1)});
  if (n_given > 0)
    ops::copy_rows(ctx_, {.x = in.from, .rows = which.slice_first(0, n_given), .out = out.slice_first(0, n_given)});
  if (n_padding > 0)
    ops::copy_rows(ctx_, {.x = in.padding, .repeat = n_padding, .out = out.slice_first(n_given, n_padding)});
  return out;
}

// Of a step that is all padding, which leaves the caches as they are.
Status Runner::record_pass(const PassKey& key) {
  constexpr int32_t kFirstRow = 0;
  Forward f{.form = key.form, .chunks = {}, .wanted = {}, .from = {}};
  if (key.form == Form::kMtpWanted) f.wanted = std::span(&kFirstRow, 1);
  if (key.form == Form::kMtpAppend) f.wanted = std::span<const int32_t>();
  const ArenaScope scratch(*ctx_.arena), host_scratch(host_rows());
  const Input in = send(f, key.shape);
  return passes_.record(
      *cuda_, key, [&] { return compute_pass(key.form, in, nullptr); }, gives_drafts(key.form) ? in.step.seq : View());
}

Status Runner::record_head(const HeadKey& key) {
  const ArenaScope scratch(*ctx_.arena), host_scratch(host_rows());
  const HeadInput in = send_head({}, key.n_rows);
  return heads_.record(*cuda_, key, [&] { return compute_head(in, key.of_drafts); });
}

Status Runner::record_graphs(int n_drafts) {
  if (!graphs_) return {};
  const GraphPlan plan = plan_graphs({.n_sequences = pools_.max_sequences(),
                                      .n_tokens = pools_.limits().n_tokens,
                                      .n_drafts = model_.has_mtp() ? n_drafts : 0,
                                      .drafts_blocks = model_.block_drafting() != nullptr,
                                      .shares_topk = model_.config().share_topk_across_drafts});
  for (const PassKey& key : plan.passes) {
    if (!passes_.contains(key)) LEVIN_TRY(record_pass(key));
  }
  for (const HeadKey& key : plan.heads) {
    if (!heads_.contains(key)) LEVIN_TRY(record_head(key));
  }
  return {};
}

// What has no graph, for want of memory, runs kernel by kernel, with the same bits.
bool Runner::is_recorded(const PassKey& key) {
  if (has_graph_memory_ && !passes_.contains(key)) note_recording(record_pass(key));
  return passes_.contains(key);
}

bool Runner::is_recorded(const HeadKey& key) {
  if (has_graph_memory_ && !heads_.contains(key)) note_recording(record_head(key));
  return heads_.contains(key);
}

void Runner::note_recording(const Status& status) {
  if (status.ok()) return;
  if (status.error().kind != ErrorKind::kOutOfMemory) throw DeviceFault(status.error());
  has_graph_memory_ = false;
}

View Runner::compute_logits(View hidden, bool of_drafts) {
  return of_drafts ? model_.draft_logits(ctx_, hidden) : model_.logits(ctx_, hidden);
}

Runner::HeadOutput Runner::compute_head(const HeadInput& in, bool of_drafts) {
  const HeadOutput out{.logits = compute_logits(in.hidden, of_drafts),
                       .chosen = ctx_.arena->allocate(DType::kI32, {in.hidden.dim(0), kChosenTokenWords})};
  ops::choose_tokens(ctx_, {.x = out.logits, .rules = in.rules, .out = out.chosen});
  return out;
}

Runner::HeadRows Runner::HeadRows::part(int64_t first, int64_t n) const {
  return {.hidden = hidden,
          .rows = rows.subspan(static_cast<size_t>(first), static_cast<size_t>(n)),
          .rules = rules.empty() ? rules : rules.slice_first(first, n)};
}

// Hidden rows and rules on the device, and rows of padding after them: always at the same place after the arena's mark.
Runner::HeadInput Runner::send_head(const HeadRows& in, int64_t n_rows) {
  View which = host_rows().allocate(DType::kI32, {n_rows});
  HeadInput out{.hidden = {}, .rules = host_rows().allocate(DType::kI32, {n_rows, kChoiceRuleWords})};
  const int64_t n_given = std::ssize(in.rows);
  for (int64_t i = 0; i < n_rows; ++i) {
    const HeadRow row = i < n_given ? in.rows[static_cast<size_t>(i)] : HeadRow{};
    const ChoiceRule rule = row.rule.value_or(ChoiceRule{});
    which.data<int32_t>()[i] = row.number;
    std::memcpy(out.rules.row<int32_t>(i), &rule, sizeof(rule));
  }
  InputPack pack;
  pack.add(which);
  pack.add(out.rules);
  pack.send(*cuda_);
  out.hidden = ctx_.arena->allocate(DType::kF32, {n_rows, model_.config().d_model});
  if (n_given > 0)
    ops::copy_rows(ctx_,
                   {.x = in.hidden, .rows = which.slice_first(0, n_given), .out = out.hidden.slice_first(0, n_given)});
  if (!in.rules.empty()) ops::copy_rows(ctx_, {.x = in.rules, .out = out.rules.slice_first(0, n_given)});
  return out;
}

// Enqueues the head for a few rows; `to`: where what comes out is to be.
void Runner::run_head(const HeadRows& given, bool of_drafts, const HeadOutput& to) {
  const std::span<const HeadRow> rows = given.rows;
  const int64_t n_rows = std::ssize(rows);
  HeadKey key{of_drafts, padded_rows(n_rows)};
  const bool recorded = replays() && is_recorded(key);
  if (!recorded) key.n_rows = n_rows;
  const ArenaScope scratch(*ctx_.arena);
  const HeadInput in = send_head(given, key.n_rows);
  const HeadOutput out = recorded ? heads_.replay(key) : compute_head(in, of_drafts);
  const auto copy_out = [&](const View& host, const View& device) {
    cuda_->copy_bytes_out(host.bytes(), device.bytes(), device.n_elements() * dtype_bytes(device.dtype()));
  };
  copy_out(to.chosen, out.chosen.slice_first(0, n_rows));
  if (!to.there.empty()) ops::copy_rows(ctx_, {.x = out.chosen.slice_first(0, n_rows), .out = to.there});
  for (int64_t row = 0, n_copied = 0; row < n_rows;) {
    int64_t n = 0;  // rows from here on whose logits are wanted
    while (row + n < n_rows && !rows[static_cast<size_t>(row + n)].rule) ++n;
    copy_out(to.logits.slice_first(n_copied, n), out.logits.slice_first(row, n));
    n_copied += n;
    row += std::max<int64_t>(n, 1);
  }
}

// Some rows at a time, so that the device's scratch need not hold logits of a whole chunk.
Runner::HeadOutput Runner::start_head_on_device(const HeadRows& in, bool of_drafts) {
  const auto n_with_logits = [](std::span<const HeadRow> some) {
    return std::count_if(some.begin(), some.end(), [](const HeadRow& row) { return !row.rule; });
  };
  const int64_t n_rows = std::ssize(in.rows), n_logits = n_with_logits(in.rows);
  HeadOutput out{.logits = host_rows().allocate(DType::kF32, {n_logits, model_.config().n_vocab}),
                 .chosen = host_rows().allocate(DType::kI32, {n_rows, kChosenTokenWords})};
  if (n_logits == 0) out.there = device_rows().allocate(DType::kI32, {n_rows, kChosenTokenWords});
  int64_t n_copied = 0;
  for (int64_t row = 0; row < n_rows; row += kDeviceHeadRows) {
    const int64_t n = std::min(kDeviceHeadRows, n_rows - row);
    const HeadRows part = in.part(row, n);
    const int64_t n_more = n_with_logits(part.rows);
    run_head(part, of_drafts,
             {.logits = out.logits.slice_first(n_copied, n_more),
              .chosen = out.chosen.slice_first(row, n),
              .there = out.there.empty() ? View() : out.there.slice_first(row, n)});
    n_copied += n_more;
  }
  return out;
}

HeadCall Runner::start_head(const HeadRows& in, bool of_drafts) {
  HeadCall call;
  if (on_device()) {
    for (const HeadRow& row : in.rows) call.by_rule.push_back(row.rule.has_value());
    const HeadOutput out = start_head_on_device(in, of_drafts);
    call.logits = out.logits;
    call.chosen = out.chosen;
    call.chosen_there = out.there;
    return call;
  }
  std::vector<int32_t> numbers;
  for (const HeadRow& row : in.rows) numbers.push_back(row.number);
  call.by_rule.assign(in.rows.size(), false);
  call.logits = logits_of(gather(in.hidden, numbers), of_drafts);
  return call;
}

HeadCall Runner::start_draft_head(View hidden, View rules) {
  std::vector<HeadRow> rows(static_cast<size_t>(hidden.dim(0)));
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = {.number = static_cast<int32_t>(i), .rule = ChoiceRule{}};
  return start_head({.hidden = hidden, .rows = rows, .rules = rules}, true);
}

std::vector<HeadResult> Runner::results_of(const HeadCall& call) {
  std::vector<HeadResult> results(call.by_rule.size());
  int64_t n_logits = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    if (call.by_rule[i]) {
      std::memcpy(static_cast<void*>(&results[i].chosen.emplace()), call.chosen.row<int32_t>(static_cast<int64_t>(i)),
                  sizeof(ChosenToken));
    } else {
      results[i].logits = row_span(call.logits, n_logits++);
    }
  }
  return results;
}

std::vector<HeadResult> Runner::draft_head(View hidden, std::span<const HeadRow> rows) {
  const HeadCall call = start_head({.hidden = hidden, .rows = rows}, true);
  wait();
  return results_of(call);
}

View Runner::logits_of(View hidden, bool of_drafts) {
  if (on_device()) {
    std::vector<HeadRow> rows(static_cast<size_t>(hidden.dim(0)));
    for (size_t i = 0; i < rows.size(); ++i) rows[i].number = static_cast<int32_t>(i);
    const View out = start_head_on_device({.hidden = hidden, .rows = rows}, of_drafts).logits;
    wait();
    return out;
  }
  const View out = compute_logits(hidden, of_drafts);
  last_result_ = Clock::now();
  return out;
}

View Runner::logits(View hidden) { return logits_of(hidden, false); }

View Runner::draft_logits(View hidden) { return logits_of(hidden, true); }

std::vector<int32_t> Runner::argmax(View logits) {
  std::vector<int32_t> tokens(static_cast<size_t>(logits.dim(0)));
  ops::argmax(host_, {.x = logits, .out = View::of(tokens.data(), {logits.dim(0)})});
  return tokens;
}

}  // namespace levin
