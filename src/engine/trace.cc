#include "engine/trace.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>

#include "engine/drafter.h"
#include "io/safetensors.h"

namespace levin {
namespace {

// Everything trace() needs at hand; one sequence, prompt first, then the greedy tokens.
class Tracer {
 public:
  Tracer(Runner& runner, const TraceOptions& options)
      : runner_(runner),
        config_(runner.model().config()),
        options_(options),
        pages_(runner.pools()),
        tokens_(options.ids) {}

  Result<TraceResult> run();

 private:
  int64_t d_streams() const { return config_.n_streams * config_.d_model; }
  int64_t d_state() const { return runner_.model().d_state(); }
  bool drafts_blocks() const { return runner_.model().block_drafting() != nullptr; }
  int64_t n_prompt() const { return static_cast<int64_t>(options_.ids.size()); }
  int64_t chunk_tokens() const {
    return std::min(options_.n_chunk_tokens > 0 ? options_.n_chunk_tokens : n_prompt(), runner_.max_step_tokens());
  }
  SequenceChunk chunk(std::span<const int32_t> tokens, int64_t first_position) const {
    return {.tokens = tokens, .first_position = static_cast<int32_t>(first_position), .pages = &pages_};
  }

  void prefill();
  void decode_greedily(int n_tokens);
  void first_draft();
  void draft_chain();
  void draft_rounds();
  int64_t verify(const std::vector<int32_t>& drafts);
  Probe prompt_probe(int64_t first_position);

  Runner& runner_;
  const ModelConfig& config_;
  const TraceOptions& options_;
  SequencePages pages_;
  std::vector<int32_t> tokens_;      // prompt and greedy tokens
  std::vector<float> state_;         // [S, d_state], the trunk's
  std::vector<float> draft_state_;   // [d_state], the MTP layer's at the last position drafted from
  std::vector<int32_t> draft_topk_;  // [K], what the first draft attended to there; empty when drafts do not share it
  int32_t next_token_ = -1;          // argmax of the last logits
  TraceResult result_;
};

// The most likely token, whose logits it keeps.
class GreedyChooser final : public DraftChooser {
 public:
  explicit GreedyChooser(std::vector<float>* logits) : logits_(logits) {}
  std::optional<int32_t> choose_draft(std::span<const float> logits, std::span<const int32_t>) override {
    logits_->insert(logits_->end(), logits.begin(), logits.end());
    return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
  bool logits_tell_confidence() const override { return true; }

 private:
  std::vector<float>* logits_;
};

void append_rows(std::vector<float>* to, View rows) {  // [N, W] f32
  const float* data = rows.data<float>();
  to->insert(to->end(), data, data + rows.n_elements());
}

template <class T>
std::vector<T> row_copy(View rows, int64_t r) {  // [N, W] -> [W]
  return std::vector<T>(rows.row<T>(r), rows.row<T>(r) + rows.dim(1));
}

int32_t last_argmax(Runner& runner, View logits) {
  return runner.argmax(logits.slice_first(logits.dim(0) - 1, 1)).front();
}

Result<TraceResult> Tracer::run() {
  LEVIN_TRY(pages_.grow(trace_cache_tokens(options_)));
  result_.n_tail = std::min<int64_t>(8, n_prompt());
  prefill();
  const bool in_rounds = options_.n_drafts > 0 && drafts_blocks();
  decode_greedily(in_rounds ? 1 : std::max(options_.n_greedy, options_.n_drafts > 0 ? 1 : 0));
  if (options_.n_drafts > 0 && drafts_blocks()) {
    draft_rounds();
  } else if (options_.n_drafts > 0) {
    first_draft();
    draft_chain();
  }
  result_.greedy_ids.assign(tokens_.begin() + n_prompt(), tokens_.begin() + n_prompt() + options_.n_greedy);
  return std::move(result_);
}

Probe Tracer::prompt_probe(int64_t first_position) {
  Probe probe;
  probe.on_layer_output = [this, first_position](int layer, View x) {
    const int64_t tail_begin = n_prompt() - result_.n_tail;
    for (int64_t t = 0; t < x.dim(0); ++t) {
      const int64_t row = first_position + t - tail_begin;
      if (row < 0) continue;
      float* to = result_.hidden_tail.data() + (layer * result_.n_tail + row) * d_streams();
      std::copy_n(x.row<float>(t), d_streams(), to);
    }
  };
  probe.on_topk = [this](int layer, View topk) {
    std::vector<int32_t>& to = result_.topk[layer];
    to.insert(to.end(), topk.data<int32_t>(), topk.data<int32_t>() + topk.n_elements());
  };
  probe.on_taps = [this](int part, View x) { append_rows(part == 0 ? &result_.main_hidden : &result_.main_x, x); };
  probe.on_window_rows = [this](int layer, View x) {
    if (layer >= config_.n_layers) append_rows(&result_.context[static_cast<size_t>(layer - config_.n_layers)], x);
  };
  return probe;
}

void Tracer::prefill() {
  result_.topk.resize(config_.n_layers);
  if (drafts_blocks()) result_.context.resize(config_.n_mtp_layers);
  result_.hidden_tail.resize(config_.n_layers * result_.n_tail * d_streams());
  for (int64_t begin = 0; begin < n_prompt(); begin += chunk_tokens()) {
    const int64_t count = std::min(chunk_tokens(), n_prompt() - begin);
    const Probe probe = prompt_probe(begin);
    runner_.begin_step();
    const SequenceChunk step = chunk(std::span(tokens_).subspan(begin, count), begin);
    const ForwardRows rows = runner_.trunk({&step, 1}, &probe);
    if (d_state() > 0) append_rows(&state_, runner_.to_host(rows.state));
    const View logits = runner_.logits(rows.hidden);
    append_rows(&result_.logits, logits);
    next_token_ = last_argmax(runner_, logits);
  }
}

void Tracer::decode_greedily(int n_tokens) {
  for (int i = 0; i < n_tokens; ++i) {
    tokens_.push_back(next_token_);
    if (i + 1 == n_tokens) break;
    runner_.begin_step();
    const SequenceChunk step = chunk(std::span(tokens_).last(1), n_prompt() + i);
    next_token_ = last_argmax(runner_, runner_.logits(runner_.trunk({&step, 1}).hidden));
  }
}

void Tracer::first_draft() {
  Probe probe;
  probe.on_topk = [this](int, View topk) {
    for (int64_t i = 0; i < topk.n_elements(); ++i) {
      const int32_t slot = topk.data<int32_t>()[i];
      result_.draft1_topk.push_back(slot < 0 ? -1 : slot - 1);
    }
  };
  for (int64_t begin = 0; begin < n_prompt(); begin += chunk_tokens()) {
    const int64_t count = std::min(chunk_tokens(), n_prompt() - begin);
    runner_.begin_step();
    const SequenceChunk step = chunk(std::span(tokens_).subspan(begin + 1, count), begin);
    const View trunk_state = View::of(state_.data() + begin * d_state(), {count, d_state()});
    const ForwardRows rows = runner_.mtp({&step, 1}, {.state = runner_.place(trunk_state)}, std::nullopt, &probe);
    const View logits = runner_.logits(rows.hidden);
    append_rows(&result_.draft1_logits, logits);
    next_token_ = last_argmax(runner_, logits);
    draft_state_ = row_copy<float>(runner_.to_host(rows.state), count - 1);
    if (config_.share_topk_across_drafts) draft_topk_ = row_copy<int32_t>(runner_.to_host(rows.topk), count - 1);
  }
}

void Tracer::draft_chain() {
  const int64_t n_vocab = config_.n_vocab;
  result_.draft_tokens.push_back(next_token_);
  result_.draft_logits.assign(result_.draft1_logits.end() - n_vocab, result_.draft1_logits.end());
  for (int i = 1; i < options_.n_drafts; ++i) {
    const std::vector<int32_t> token = {next_token_};
    runner_.begin_step();
    const SequenceChunk step = chunk(token, n_prompt() - 1 + i);
    MtpRows from{.state = runner_.place(View::of(draft_state_.data(), {1, d_state()}))};
    if (!draft_topk_.empty()) from.topk = runner_.place(View::of(draft_topk_.data(), {1, config_.n_topk}));
    const ForwardRows rows = runner_.mtp({&step, 1}, from);
    const View logits = runner_.logits(rows.hidden);
    append_rows(&result_.draft_logits, logits);
    next_token_ = last_argmax(runner_, logits);
    result_.draft_tokens.push_back(next_token_);
    draft_state_ = row_copy<float>(runner_.to_host(rows.state), 0);
  }
}

// Appends the tokens that the trunk chooses, as long as they equal the drafts. Returns how many drafts were accepted.
int64_t Tracer::verify(const std::vector<int32_t>& drafts) {
  std::vector<int32_t> step_tokens = {tokens_.back()};
  step_tokens.insert(step_tokens.end(), drafts.begin(), drafts.end());
  runner_.begin_step();
  const SequenceChunk step = chunk(step_tokens, std::ssize(tokens_) - 1);
  const std::vector<int32_t> chosen = runner_.argmax(runner_.logits(runner_.trunk({&step, 1}).hidden));
  const auto n_kept = std::mismatch(drafts.begin(), drafts.end(), chosen.begin()).first - drafts.begin();
  tokens_.insert(tokens_.end(), chosen.begin(), chosen.begin() + n_kept + 1);
  return n_kept;
}

void Tracer::draft_rounds() {
  const std::unique_ptr<Drafter> drafter = make_drafter(runner_, options_.n_drafts);
  const std::unique_ptr<DraftState> state = drafter->open();
  TracedRounds& out = result_.rounds;
  GreedyChooser chooser(&out.logits);
  do {
    runner_.begin_step();
    DraftRound round{.taps = {}, .depth = options_.n_drafts};
    round.entries.push_back({.state = state.get(), .chooser = &chooser, .pages = &pages_, .tokens = tokens_});
    round.entries.front().n_wanted = options_.n_drafts;
    drafter->propose(round);
    const std::vector<int32_t>& drafts = round.entries.front().drafts;
    const std::vector<float>& confidence = round.entries.front().confidence;
    out.tokens.insert(out.tokens.end(), drafts.begin(), drafts.end());
    out.confidence.insert(out.confidence.end(), confidence.begin(), confidence.end());
    out.accepted.push_back(verify(drafts));
  } while (std::ssize(tokens_) - n_prompt() < options_.n_greedy);
  const auto n_first = options_.n_drafts;
  result_.draft_tokens.assign(out.tokens.begin(), out.tokens.begin() + n_first);
  result_.draft_confidence.assign(out.confidence.begin(), out.confidence.begin() + n_first);
  result_.draft_logits.assign(out.logits.begin(), out.logits.begin() + n_first * config_.n_vocab);
}

Status check_options(Runner& runner, const TraceOptions& options) {
  const ModelConfig& config = runner.model().config();
  if (options.ids.empty()) return Error{ErrorKind::kUsage, "the ids file has no token ids"};
  for (size_t i = 0; i < options.ids.size(); ++i) {
    const int32_t id = options.ids[i];
    if (id < 0 || id >= config.n_vocab) {
      return Error{ErrorKind::kUsage,
                   fmt::format("token id {} (number {} of the ids) is outside the vocabulary of {} tokens", id, i,
                               config.n_vocab)};
    }
  }
  if (trace_cache_tokens(options) > config.max_position) {
    return Error{
        ErrorKind::kUsage,
        fmt::format("{} prompt tokens, {} greedy and {} drafted ones do not fit the context of {} tokens; give fewer",
                    options.ids.size(), options.n_greedy, options.n_drafts, config.max_position)};
  }
  if (options.n_drafts > 0 && !runner.model().has_mtp()) {
    return Error{ErrorKind::kUsage,
                 "--drafts needs layers that draft, and the checkpoint has none; leave --drafts out"};
  }
  if (runner.model().block_drafting() == nullptr) return {};
  if (const int most = make_drafter(runner, options.n_drafts)->max_drafts(); options.n_drafts > most) {
    return Error{
        ErrorKind::kUsage,
        fmt::format("--drafts is {}, and {} can be drafted and verified at once (dspark_block_size is {}); give "
                    "at most that",
                    options.n_drafts, most, config.n_draft_block)};
  }
  return {};
}

}  // namespace

int64_t trace_cache_tokens(const TraceOptions& options) {
  const int n_greedy = std::max(options.n_greedy, options.n_drafts > 0 ? 1 : 0);
  return static_cast<int64_t>(options.ids.size()) + n_greedy + options.n_drafts;
}

Result<TraceResult> trace(Runner& runner, const TraceOptions& options) {
  LEVIN_TRY(check_options(runner, options));
  return Tracer(runner, options).run();
}

Status write_trace(const std::string& path, const ModelConfig& config, const TraceOptions& options,
                   const TraceResult& result) {
  const int64_t n_prompt = static_cast<int64_t>(options.ids.size());
  const std::vector<int64_t> ids(options.ids.begin(), options.ids.end());
  io::SafetensorsWriter writer;
  const auto add = [&](std::string name, io::StoredDtype dtype, std::vector<int64_t> shape, const auto& values) {
    writer.add({.name = std::move(name),
                .dtype = dtype,
                .shape = std::move(shape),
                .bytes = std::as_bytes(std::span(values))});
  };
  add("input_ids", io::StoredDtype::kI64, {n_prompt}, ids);
  add("logits", io::StoredDtype::kF32, {n_prompt, config.n_vocab}, result.logits);
  std::vector<int64_t> tail_shape = {config.n_layers, result.n_tail, config.d_model};
  if (config.n_streams > 1) tail_shape.insert(tail_shape.end() - 1, config.n_streams);
  add("hidden_tail", io::StoredDtype::kF32, tail_shape, result.hidden_tail);
  for (int layer = 0; layer < config.n_layers; ++layer) {
    if (!config.has_indexer(layer)) continue;  // it has no top-k indices, or those of a layer below
    add(fmt::format("topk.{}", layer), io::StoredDtype::kI32, {n_prompt, config.n_topk}, result.topk[layer]);
  }
  if (options.n_greedy > 0) add("greedy_ids", io::StoredDtype::kI64, {options.n_greedy}, result.greedy_ids);
  if (!result.main_x.empty()) {
    add("dspark.main_hidden", io::StoredDtype::kF32, {n_prompt, config.n_mtp_layers * config.d_model},
        result.main_hidden);
    add("dspark.main_x", io::StoredDtype::kF32, {n_prompt, config.d_model}, result.main_x);
    for (size_t s = 0; s < result.context.size(); ++s)
      add(fmt::format("dspark.context.{}", s), io::StoredDtype::kF32, {n_prompt, config.d_head()}, result.context[s]);
  }
  if (const auto n_rounds = std::ssize(result.rounds.accepted); n_rounds > 0) {
    const TracedRounds& r = result.rounds;
    add("draft.confidence", io::StoredDtype::kF32, {options.n_drafts}, result.draft_confidence);
    add("rounds.tokens", io::StoredDtype::kI64, {n_rounds, options.n_drafts}, r.tokens);
    add("rounds.logits", io::StoredDtype::kF32, {n_rounds, options.n_drafts, config.n_vocab}, r.logits);
    add("rounds.confidence", io::StoredDtype::kF32, {n_rounds, options.n_drafts}, r.confidence);
    add("rounds.accepted", io::StoredDtype::kI64, {n_rounds}, r.accepted);
  }
  if (!result.draft1_logits.empty()) {
    add("draft1.logits", io::StoredDtype::kF32, {n_prompt, config.n_vocab}, result.draft1_logits);
  }
  if (!result.draft1_topk.empty()) {
    add("draft1.topk", io::StoredDtype::kI32, {n_prompt, config.n_topk}, result.draft1_topk);
  }
  if (options.n_drafts > 0) {
    add("draft.tokens", io::StoredDtype::kI64, {options.n_drafts}, result.draft_tokens);
    add("draft.logits", io::StoredDtype::kF32, {options.n_drafts, config.n_vocab}, result.draft_logits);
  }
  return writer.write(path);
}

}  // namespace levin
