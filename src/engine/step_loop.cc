#include "engine/step_loop.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/device_fault.h"
#include "base/recovery.h"

namespace levin {
namespace {

// What model and drafter can do of what is asked. Chunks and drafts change no token.
LoopOptions within_reach(const Runner& runner, const Drafter& drafter, LoopOptions options) {
  const int64_t n_drafts = std::min<int64_t>(drafter.max_drafts(), runner.max_drafts());
  options.n_spec_steps = static_cast<int>(std::min<int64_t>(options.n_spec_steps, n_drafts));
  options.chunk_tokens = std::min(options.chunk_tokens, runner.max_chunk_tokens());
  options.max_running = std::min(options.max_running, runner.max_sequences());
  return options;
}

CacheOptions cache_options(Runner& runner, const LoopOptions& options) {
  return {.n_block_tokens = runner.block_tokens(),
          .share_prefixes = options.share_prefixes,
          .max_host_blocks = options.n_host_blocks,
          .disk = options.disk,
          .block_bytes = runner.block_bytes(),
          .copy_block = [&runner](const SequencePages& pages, int64_t block,
                                  std::span<std::byte> out) { return runner.start_copy(pages, block, out); },
          .assumed = options.assumed};
}

SchedulerOptions scheduler_options(const LoopOptions& options) {
  return {.step_tokens = options.chunk_tokens,
          .chunk_tokens = options.chunk_tokens,
          .max_running = options.max_running,
          .max_waiting = options.max_waiting,
          .lookahead_tokens = 1 + options.n_spec_steps,
          .prefill_first = options.prefill_first};
}

}  // namespace

StepLoop::StepLoop(Runner& runner, const LoopOptions& options)
    : StepLoop(runner, options, make_drafter(runner, options.n_spec_steps)) {}

StepLoop::StepLoop(Runner& runner, const LoopOptions& options, std::unique_ptr<Drafter> drafter)
    : runner_(runner),
      sampler_(runner),
      options_(within_reach(runner, *drafter, options)),
      speculation_(std::move(drafter), {.max_depth = options_.n_spec_steps,
                                        .adapt_depth = options_.adapt_depth,
                                        .min_confidence = options_.min_confidence}),
      cache_(runner.pools(), cache_options(runner, options_)),
      scheduler_(scheduler_options(options_), cache_, options_.schedule_trace) {}

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
  try {
    const Recovery recovery;
    return enqueue(std::move(request));
  } catch (const std::exception& thrown) {
    return failure_of(thrown);
  }
}

Result<RequestId> StepLoop::enqueue(GenerateRequest request) {
  LEVIN_TRY(check(request));
  LEVIN_ASSIGN(SamplingPlan plan, SamplingPlan::make(request.sampling, runner_.model().config().n_vocab));
  auto sequence =
      std::make_unique<Sequence>(speculation_.drafter(), std::move(request), std::move(plan), runner_.block_tokens());
  const GenerateRequest& asked = sequence->request;
  const int64_t room = options_.max_context_tokens - sequence->n_prompt;
  sequence->id = next_id_++;
  sequence->max_tokens = asked.max_tokens > 0 ? std::min(asked.max_tokens, room) : room;
  sequence->acceptance = speculation_.typical();
  sequence->out->speculation.accepted_per_position.assign(options_.n_spec_steps, 0);
  const int64_t limit_tokens = sequence->n_prompt + sequence->max_tokens;
  sequences_.reserve(sequences_.size() + 1);  // nothing fails once the scheduler knows it
  switch (scheduler_.submit({.id = sequence->id,
                             .priority = asked.priority,
                             .limit_tokens = limit_tokens,
                             .tokens = &sequence->tokens,
                             .look_up = !asked.prompt_logprobs})) {
    case Submission::kAccepted:
      break;
    case Submission::kQueueFull:
      return Error{ErrorKind::kRuntime, fmt::format("{} requests wait already", options_.max_waiting)};
    case Submission::kTooLong:
      return Error{ErrorKind::kOutOfMemory,
                   fmt::format("prompt and answer of {} tokens do not fit the cache of {}; ask for fewer tokens",
                               limit_tokens, runner_.pools().limits().n_tokens)};
  }
  sequences_.push_back(std::move(sequence));
  return sequences_.back()->id;
}

bool StepLoop::step() {
  retire_finished();
  if (sequences_.empty()) {
    if (std::exchange(ahead_, std::nullopt)) runner_.wait();
    cache_.finish_records();  // there may be no next step for long
    busy_ = false;
    return false;
  }
  const Clock::time_point start = Clock::now();
  times_ = {};
  const bool computed = run_step();
  retire_finished();
  busy_ = computed && !sequences_.empty();
  times_.step_s = seconds_since(start);
  phase_ = StepPhase::kIdle;
  return true;
}

// False: nothing was computed, all that was planned has been restored.
bool StepLoop::run_step() {
  Round round;
  try {
    const Recovery recovery;
    phase_ = StepPhase::kPlanning;
    round = next_round();
    compute_round(round);
    phase_ = StepPhase::kSettling;
    settle_round(scheduler_, speculation_.drafter(), round);
  } catch (const DeviceFault&) {
    throw;
  } catch (const std::exception& thrown) {
    end_round(round, thrown);
  }
  return !round.entries.empty();
}

// One that is enqueued already, unless all of its sequences have ended.
Round StepLoop::next_round() {
  if (!ahead_) return plan();
  Round round = *std::exchange(ahead_, std::nullopt);
  if (round.entries.empty()) {
    runner_.wait();
    return plan();
  }
  if (busy_) times_.host_gap_s = 0;
  return round;
}

void StepLoop::compute_round(Round& round) {
  if (round.entries.empty()) {
    deliver();
  } else {
    run(round);
  }
}

// Without a round everything was being planned, so all end. Until tokens are chosen those that decode can be in the next step
// instead: then the prompts alone end, for which a step needs by far the most, if there are any. A device may still be at work
// with memory of the step.
void StepLoop::end_round(const Round& round, const std::exception& thrown) {
  ahead_.reset();
  runner_.wait();
  const auto of_prompt = [](const RoundEntry& entry) { return entry.of_prompt; };
  const bool prompts_alone =
      phase_ == StepPhase::kTrunk && std::any_of(round.entries.begin(), round.entries.end(), of_prompt);
  const auto end = [&](Sequence& s) {
    if (!s.finished) s.fail(thrown);
  };
  for (const RoundEntry& entry : round.entries) {
    if (entry.of_prompt || !prompts_alone) end(*entry.sequence);
  }
  if (!round.entries.empty()) return;
  for (const std::unique_ptr<Sequence>& s : sequences_) end(*s);
}

void StepLoop::run(Round& round) {
  const Clock::time_point start = Clock::now();
  if (round.ahead) {
    phase_ = StepPhase::kTrunk;
    catch_up(runner_, round, speculation_.last_depth(), speculation_.drafter().needs_taps());
  } else {
    compute(round);
  }
  std::optional<Round> next;
  if (options_.overlap) next = look_ahead(round);
  sample(round);
  deliver();
  draft(round);
  if (speculation_.on()) speculation_.observe_time(round, seconds_since(start));
  ahead_ = std::move(next);
}

// Both rounds make drafts that are enqueued; or both make none, and the first has none to verify.
std::optional<Round> StepLoop::look_ahead(const Round& last) {
  const bool drafts = last.drafts_enqueued;
  const auto may_draft_later = [&](const Round& round) {
    return speculation_.on() && !round.drafts_enqueued && round.depth != 0;
  };
  const bool has_fixed_rows = std::all_of(last.entries.begin(), last.entries.end(),
                                          [](const RoundEntry& entry) { return entry.n_drafts == 0; });
  if (!runner_.has_steps_ahead() || may_draft_later(last) || !(drafts || has_fixed_rows)) return std::nullopt;
  std::optional<Round> next = plan_round_ahead(scheduler_, runner_, last, drafts ? *last.depth : 0);
  if (!next) return std::nullopt;
  speculation_.plan(*next);
  if (next->drafts_enqueued != drafts || may_draft_later(*next)) {
    speculation_.give_up(*next);
    return std::nullopt;
  }
  next->step = runner_.begin_step_ahead();
  run_round_ahead(runner_, *next, drafts ? speculation_.carry(*next) : carry_tokens(runner_, last, *next),
                  speculation_.drafter().needs_taps());
  if (drafts) speculation_.enqueue(*next);
  return next;
}

Round StepLoop::plan() {
  Round round = plan_round(scheduler_, sequences_, speculation_.drafter(), runner_, speculation_.last_depth());
  n_disk_hit_tokens_ += round.n_disk_hit_tokens;
  n_host_hit_tokens_ += round.n_host_hit_tokens;
  return round;
}

void StepLoop::compute(Round& round) {
  phase_ = StepPhase::kTrunk;
  if (busy_) times_.host_gap_s = seconds_since(runner_.last_result());
  speculation_.plan(round);
  run_round(runner_, sampler_, round, speculation_.drafter().needs_taps());
  if (round.drafts_enqueued) speculation_.enqueue(round);
}

void StepLoop::sample(Round& round) {
  phase_ = StepPhase::kChoosing;
  sample_round(runner_, round);
  if (times_.host_gap_s) times_.host_gap_s = runner_.idle_before_trunk_s().value_or(*times_.host_gap_s);
  commit_round(round);
  speculation_.observe(round);
}

void StepLoop::draft(Round& round) {
  if (!speculation_.on()) return;
  phase_ = StepPhase::kDrafting;
  speculation_.draft(round);
}

void StepLoop::deliver() {
  for (const std::unique_ptr<Sequence>& s : sequences_) guarded(*s, [&] { s->deliver(); });
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
  if (ahead_) std::erase_if(ahead_->entries, [](const RoundEntry& entry) { return entry.sequence->finished; });
  for (const std::unique_ptr<Sequence>& s : sequences_) {
    if (!s->finished) continue;
    guarded(*s, [&] { s->deliver(); });
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
