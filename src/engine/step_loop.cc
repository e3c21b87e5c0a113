#include "engine/step_loop.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <utility>

#include "engine/row_span.h"
#include "engine/sequence.h"

namespace levin {

using Clock = std::chrono::steady_clock;

// One step's rows, packed in the order of `entries`.
struct StepLoop::Batch {
  struct Entry {
    Sequence* sequence = nullptr;
    std::vector<int32_t> tokens;  // of the trunk step
    int64_t first_position = 0;
    int64_t first_row = 0;  // in the packed step
    bool of_prompt = false;
    bool has_all_drafts = false;  // that a round of the last depth gives
    bool wants_tokens = false;    // its rows (verify) or its last row (end of the prompt) are to be chosen from
    int64_t n_committed = 0;      // rows whose positions are now known to be right
    int64_t n_rows() const { return static_cast<int64_t>(tokens.size()); }
    bool ends_block(int64_t r) const { return (first_position + r + 1) % sequence->n_block_tokens == 0; }
    int64_t n_logit_rows() const { return !wants_tokens ? 0 : of_prompt ? 1 : n_rows(); }
  };
  std::vector<Entry> entries;
  ForwardRows rows;     // of the trunk, where the model runs; faults on the host
  View block_end_taps;  // on the host: of all rows that end a block, in order
  int depth = 0;        // drafts that this step makes for every sequence

  std::span<const int32_t> faults(const Entry& entry) const {  // [n_rows]
    return {rows.faults.data<int32_t>() + entry.first_row, static_cast<size_t>(entry.n_rows())};
  }
};

namespace {

constexpr int64_t kScoreRows = 64;  // of a prompt whose logits are held at a time

// What model and drafter can do of what is asked. Chunks and drafts change no token.
LoopOptions within_reach(const Runner& runner, const Drafter& drafter, LoopOptions options) {
  const int64_t n_drafts = std::min<int64_t>(drafter.max_drafts(), runner.max_drafts());
  options.n_spec_steps = static_cast<int>(std::min<int64_t>(options.n_spec_steps, n_drafts));
  options.chunk_tokens = std::min(options.chunk_tokens, runner.max_step_tokens());
  options.max_running = std::min(options.max_running, runner.max_sequences());
  return options;
}

}  // namespace

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kError:
      return "error";
  }
  return "unknown";
}

std::string_view step_phase_name(StepPhase phase) {
  switch (phase) {
    case StepPhase::kIdle:
      return "between steps";
    case StepPhase::kPlanning:
      return "planning and reading stored pages";
    case StepPhase::kTrunk:
      return "computing the trunk";
    case StepPhase::kChoosing:
      return "choosing tokens";
    case StepPhase::kDrafting:
      return "drafting";
    case StepPhase::kSettling:
      return "settling pages";
  }
  return "unknown";
}

StepLoop::StepLoop(Runner& runner, const LoopOptions& options)
    : StepLoop(runner, options, make_drafter(runner, options.n_spec_steps)) {}

StepLoop::StepLoop(Runner& runner, const LoopOptions& options, std::unique_ptr<Drafter> drafter)
    : runner_(runner),
      drafter_(std::move(drafter)),
      options_(within_reach(runner, *drafter_, options)),
      cache_(runner.pools(),
             {.n_block_tokens = runner.block_tokens(),
              .share_prefixes = options_.share_prefixes,
              .max_host_blocks = options_.n_host_blocks,
              .disk = options_.disk,
              .block_bytes = runner.block_bytes(),
              .copy_block = [&runner](const SequencePages& pages, int64_t block,
                                      std::span<std::byte> out) { runner.copy_block(pages, block, out); }}),
      scheduler_({.step_tokens = options_.chunk_tokens,
                  .chunk_tokens = options_.chunk_tokens,
                  .max_running = options_.max_running,
                  .max_waiting = options_.max_waiting,
                  .lookahead_tokens = 1 + options_.n_spec_steps,
                  .prefill_first = options_.prefill_first},
                 cache_, options_.schedule_trace),
      depth_(options_.n_spec_steps) {
  if (options_.n_spec_steps == 0) drafter_ = std::make_unique<NoDrafter>();
}

StepLoop::~StepLoop() = default;

Status StepLoop::check(const GenerateRequest& request) const {
  const ModelConfig& config = runner_.model().config();
  const int64_t n_prompt = static_cast<int64_t>(request.prompt.size());
  if (n_prompt == 0) return Error{ErrorKind::kUsage, "the prompt is empty"};
  for (const int32_t token : request.prompt) {
    if (token < 0 || token >= config.n_vocab) {
      return Error{ErrorKind::kUsage,
                   fmt::format("token id {} is outside the vocabulary of {} tokens", token, config.n_vocab)};
    }
  }
  if (n_prompt >= options_.max_context_tokens) {
    return Error{ErrorKind::kUsage,
                 fmt::format("the prompt has {} tokens and the context {}; shorten the prompt or raise --max-model-len",
                             n_prompt, options_.max_context_tokens)};
  }
  if (request.structure && !request.sampling.allowed_tokens.empty()) {
    return Error{ErrorKind::kUsage,
                 "allowed_token_ids and a structure for the answer exclude each other; leave one out"};
  }
  if (request.structure && request.structure->constraint->vocabulary().n_tokens() != config.n_vocab) {
    return Error{ErrorKind::kUsage,
                 fmt::format("the structure is made for {} tokens and the model has {}",
                             request.structure->constraint->vocabulary().n_tokens(), config.n_vocab)};
  }
  const Result<SamplingPlan> plan = SamplingPlan::make(request.sampling, config.n_vocab);
  return plan.ok() ? Status() : Status(plan.error());
}

Result<RequestId> StepLoop::submit(GenerateRequest request) {
  LEVIN_TRY(check(request));
  const int64_t n_prompt = std::ssize(request.prompt);
  LEVIN_ASSIGN(SamplingPlan plan, SamplingPlan::make(request.sampling, runner_.model().config().n_vocab));
  auto sequence = std::make_unique<Sequence>(*drafter_, std::move(plan), runner_.block_tokens());
  sequence->id = next_id_++;
  sequence->n_prompt = sequence->n_fill = n_prompt;
  const int64_t room = options_.max_context_tokens - n_prompt;
  sequence->max_tokens = request.max_tokens > 0 ? std::min(request.max_tokens, room) : room;
  sequence->tokens = request.prompt;
  switch (scheduler_.submit({.id = sequence->id,
                             .priority = request.priority,
                             .limit_tokens = n_prompt + sequence->max_tokens,
                             .tokens = &sequence->tokens,
                             .look_up = !request.prompt_logprobs})) {
    case Submission::kAccepted:
      break;
    case Submission::kQueueFull:
      return Error{ErrorKind::kRuntime, fmt::format("{} requests wait already", options_.max_waiting)};
    case Submission::kTooLong:
      return Error{ErrorKind::kOutOfMemory,
                   fmt::format("prompt and answer of {} tokens do not fit the cache of {}; ask for fewer tokens",
                               n_prompt + sequence->max_tokens, runner_.pools().limits().n_tokens)};
  }
  sequence->history.add_prompt(request.prompt);
  if (request.structure) {
    sequence->matcher = std::make_unique<grammar::Matcher>(*request.structure, request.sampling.stop_tokens);
  }
  sequence->request = std::move(request);
  sequence->acceptance = typical_;
  sequence->out->speculation.accepted_per_position.assign(options_.n_spec_steps, 0);
  sequences_.push_back(std::move(sequence));
  return sequences_.back()->id;
}

bool StepLoop::step() {
  retire_finished();
  if (sequences_.empty()) {
    went_on_ = false;
    return false;
  }
  const Clock::time_point start = Clock::now();
  times_ = {};
  Batch batch;
  phase_ = StepPhase::kPlanning;
  plan(batch);
  if (!batch.entries.empty()) run(batch);  // otherwise all that was planned has been read
  phase_ = StepPhase::kSettling;
  advance(batch);
  retire_finished();
  went_on_ = !sequences_.empty() && !batch.entries.empty();
  times_.step_s = std::chrono::duration<double>(Clock::now() - start).count();
  phase_ = StepPhase::kIdle;
  return true;
}

void StepLoop::run(Batch& batch) {
  const Clock::time_point start = Clock::now();
  phase_ = StepPhase::kTrunk;
  if (went_on_) times_.host_gap_s = std::chrono::duration<double>(start - runner_.last_result()).count();
  run_trunk(batch);
  phase_ = StepPhase::kChoosing;
  choose_tokens(batch);
  if (options_.n_spec_steps == 0) return;
  phase_ = StepPhase::kDrafting;
  choose_depth(batch);
  draft(batch);
  note_round(batch, std::chrono::duration<double>(Clock::now() - start).count());
}

void StepLoop::plan(Batch& batch) {
  std::map<SequenceId, Sequence*> by_id;
  for (const std::unique_ptr<Sequence>& s : sequences_) by_id[s->id] = s.get();
  const StepPlan plan = scheduler_.plan();
  for (const Admitted& admitted : plan.admitted) {
    Sequence& s = *by_id.at(admitted.id);
    s.pages = &scheduler_.pages(s.id);
    s.begin(admitted, *drafter_);
  }
  for (const Restored& restored : plan.restored) restore(*by_id.at(restored.id), restored);
  for (const StepEntry& planned : plan.entries) {
    Sequence& s = *by_id.at(planned.id);
    s.low_confidence = s.low_confidence && std::ssize(s.drafts) == planned.n_drafts;
    s.drafts.resize(static_cast<size_t>(planned.n_drafts));
    Batch::Entry entry{.sequence = &s,
                       .tokens = {},
                       .first_position = planned.first_position,
                       .of_prompt = s.in_prompt(),
                       .has_all_drafts = planned.n_drafts == last_depth_ || s.low_confidence,
                       .wants_tokens = planned.gives_token};
    const auto first = s.tokens.begin() + planned.first_position;
    entry.tokens.assign(first, first + planned.n_tokens);
    entry.tokens.insert(entry.tokens.end(), s.drafts.begin(), s.drafts.end());
    batch.entries.push_back(std::move(entry));
  }
}

// Puts blocks that exist as records into the sequence's pages.
void StepLoop::restore(Sequence& s, const Restored& restored) {
  for (const RestoredBlock& block : restored.blocks) {
    runner_.set_block(*s.pages, block.block, block.record->rows);
    const int64_t begin = block.block * s.n_block_tokens;
    const int64_t n_new = begin + s.n_block_tokens - std::max(restored.n_before, begin);
    (block.from_disk ? n_disk_hit_tokens_ : n_host_hit_tokens_) += n_new;
  }
  s.go_on(restored.n_cached, restored.blocks.back().resume(), *drafter_);
  if (s.n_answer_tokens() == 0) s.out->n_hit_tokens += restored.n_cached - restored.n_before;
}

void StepLoop::run_trunk(Batch& batch) {
  std::vector<SequenceChunk> chunks;
  int64_t row = 0;
  for (Batch::Entry& entry : batch.entries) {
    entry.first_row = row;
    row += entry.n_rows();
    chunks.push_back(entry.sequence->chunk(entry.tokens, entry.first_position));
  }
  runner_.begin_step();
  batch.rows = runner_.trunk(chunks);
  batch.rows.faults = runner_.fetch(batch.rows.faults);
  if (drafter_->needs_taps()) fetch_block_ends(batch);
}

// What keep_block_ends() may need, which comes with the step's other results.
void StepLoop::fetch_block_ends(Batch& batch) {
  std::vector<int32_t> rows;
  for (const Batch::Entry& entry : batch.entries) {
    for (int64_t r = 0; r < entry.n_rows(); ++r) {
      if (entry.ends_block(r)) rows.push_back(static_cast<int32_t>(entry.first_row + r));
    }
  }
  if (!rows.empty()) batch.block_end_taps = runner_.fetch(runner_.gather(batch.rows.state, rows));
}

void StepLoop::choose_tokens(Batch& batch) {
  std::vector<HeadRow> asked;
  for (const Batch::Entry& entry : batch.entries) {
    const int64_t first = entry.first_row + entry.n_rows() - entry.n_logit_rows();
    for (int64_t i = 0; i < entry.n_logit_rows(); ++i)
      asked.push_back({.number = static_cast<int32_t>(first + i), .rule = entry.sequence->rule(i)});
  }
  std::vector<HeadResult> results;
  if (asked.empty()) {
    runner_.wait();
  } else {
    results = runner_.head(batch.rows.hidden, asked);
  }
  size_t row = 0;
  for (Batch::Entry& entry : batch.entries) {
    Sequence& s = *entry.sequence;
    const auto count = static_cast<size_t>(entry.n_logit_rows());
    const int64_t n_before = s.n_tokens();
    if (!entry.of_prompt) {
      const VerifiedDrafts verified = s.accept(batch.faults(entry), std::span(results).subspan(row, count));
      typical_.observe(verified.n_drafted, verified.n_accepted);
      entry.n_committed = s.n_tokens() - n_before;
    } else if (!s.fail_on_faults(batch.faults(entry))) {
      if (s.request.prompt_logprobs) score_prompt(s, batch, entry.first_row, entry.n_rows());
      s.n_cached += entry.n_rows();
      entry.n_committed = entry.n_rows();
      if (count > 0 && !s.finished) s.choose_first_token(results[row]);
    }
    row += count;
  }
  keep_block_ends(batch);
}

// What these rows of the prompt say of the tokens behind them. Rows that come a second time are known.
void StepLoop::score_prompt(Sequence& s, const Batch& batch, int64_t first_row, int64_t n_rows) {
  if (s.n_answer_tokens() > 0) return;
  const int64_t n_known = std::max<int64_t>(std::ssize(s.prompt_logprobs) - s.n_cached, 0);
  const int64_t n_scored = std::min(n_rows, s.n_prompt - 1 - s.n_cached);
  for (int64_t r = n_known; r < n_scored; r += kScoreRows) {
    const ArenaScope scratch = runner_.scope();
    const int64_t count = std::min(kScoreRows, n_scored - r);
    const View logits = runner_.logits(batch.rows.hidden.slice_first(first_row + r, count));
    for (int64_t i = 0; i < count; ++i) {
      if (!is_sound(row_span(logits, i))) return s.fail(RowFault::kNotNumbers, s.n_cached + r + i + 1);
      const int32_t next = s.tokens[static_cast<size_t>(s.n_cached + r + i + 1)];
      s.prompt_logprobs.push_back(row_logprobs(row_span(logits, i), next, s.request.n_top_logprobs));
    }
  }
}

// Keeps what a later sequence needs to go on after a block that filled up.
void StepLoop::keep_block_ends(const Batch& batch) {
  int64_t n_ends = 0;
  for (const Batch::Entry& entry : batch.entries) {
    for (int64_t r = 0; r < entry.n_rows(); ++r) {
      if (!entry.ends_block(r)) continue;
      const int64_t end = n_ends++;
      if (r >= entry.n_committed) continue;
      std::vector<float> state;
      if (!batch.block_end_taps.empty()) {
        const std::span<const float> row = row_span(batch.block_end_taps, end);
        state.assign(row.begin(), row.end());
      }
      entry.sequence->block_ends.push_back(std::make_shared<const std::vector<float>>(std::move(state)));
    }
  }
}

// Tells the scheduler what the step has done.
void StepLoop::advance(const Batch& batch) {
  for (const Batch::Entry& entry : batch.entries) {
    Sequence& s = *entry.sequence;
    if (s.out->error) continue;  // nobody may find its rows
    const int64_t n_committed = drafter_->n_committed(*s.draft_state, s.n_cached);
    const int64_t n_uncommitted_blocks = s.n_cached / s.n_block_tokens - n_committed / s.n_block_tokens;
    const std::span<const ResumeState> committed =
        std::span(s.block_ends).first(s.block_ends.size() - static_cast<size_t>(n_uncommitted_blocks));
    scheduler_.advance(
        s.id,
        {.n_cached = s.n_cached, .n_committed = n_committed, .n_drafts = std::ssize(s.drafts), .resume = committed});
    s.block_ends.erase(s.block_ends.begin(), s.block_ends.begin() + std::ssize(committed));
  }
}

void StepLoop::choose_depth(Batch& batch) {
  batch.depth = options_.n_spec_steps;
  if (!options_.adapt_depth) return;
  std::vector<DraftAcceptance> sequences;
  for (const Batch::Entry& entry : batch.entries) {
    const Sequence& s = *entry.sequence;
    if (!s.finished && !s.in_prompt()) sequences.push_back(s.acceptance);
  }
  batch.depth = sequences.empty() ? last_depth_ : depth_.next(sequences);
}

// Only a round that verified what another of its depth had made, for the same sequences and nothing else, tells what its
// depth costs.
void StepLoop::note_round(const Batch& batch, double seconds) {
  const bool steady = std::all_of(batch.entries.begin(), batch.entries.end(), [&](const Batch::Entry& entry) {
    return !entry.of_prompt && !entry.sequence->finished && entry.has_all_drafts;
  });
  if (steady && batch.depth == last_depth_ && options_.adapt_depth)
    depth_.observe(std::ssize(batch.entries), batch.depth, seconds);
  last_depth_ = batch.depth;
}

void StepLoop::draft(Batch& batch) {
  DraftRound round{.taps = batch.rows.state, .depth = batch.depth, .min_confidence = options_.min_confidence};
  std::vector<Sequence*> sequences;
  for (const Batch::Entry& entry : batch.entries) {
    Sequence& s = *entry.sequence;
    if (s.finished || entry.n_committed == 0) continue;
    sequences.push_back(&s);
    round.entries.push_back({.state = s.draft_state.get(),
                             .chooser = &s,
                             .pages = s.pages,
                             .tokens = s.tokens,
                             .first_row = entry.first_row,
                             .n_committed = entry.n_committed,
                             .of_prompt = entry.of_prompt,
                             .n_wanted = s.in_prompt() ? 0 : std::max<int64_t>(s.n_drafts_within(batch.depth), 0)});
  }
  drafter_->commit(round);
  for (const Batch::Entry& entry : batch.entries) {
    if (entry.of_prompt && entry.sequence->n_answer_tokens() == 1) entry.sequence->note_prompt_done();
  }
  drafter_->propose(round);
  for (size_t i = 0; i < sequences.size(); ++i) {
    sequences[i]->drafts = std::move(round.entries[i].drafts);
    sequences[i]->low_confidence = round.entries[i].low_confidence;
  }
}

SchedulerCounts StepLoop::counts() const {
  SchedulerCounts counts = scheduler_.counts();
  counts.n_hit_tokens += n_host_hit_tokens_;
  return counts;
}

void StepLoop::cancel(RequestId id) {
  for (const std::unique_ptr<Sequence>& s : sequences_) {
    if (s->id == id && !s->finished) s->cancel();
  }
}

void StepLoop::retire_finished() {
  for (const std::unique_ptr<Sequence>& s : sequences_) {
    if (!s->finished) continue;
    scheduler_.remove(s->id);
    finished_.emplace_back(s->id, std::move(s->out));
  }
  std::erase_if(sequences_, [](const std::unique_ptr<Sequence>& s) { return s->finished; });
}

std::unique_ptr<Generation> StepLoop::take(RequestId id) {
  for (auto& [finished_id, generation] : finished_) {
    if (finished_id != id) continue;
    std::unique_ptr<Generation> out = std::move(generation);
    std::erase_if(finished_, [&](const auto& entry) { return entry.first == id; });
    return out;
  }
  return nullptr;
}

}  // namespace levin
