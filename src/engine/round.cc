#include "engine/round.h"

#include <algorithm>
#include <map>
#include <utility>

#include "engine/row_span.h"

namespace levin {
namespace {

constexpr int64_t kScoreRows = 64;  // of a prompt whose logits are held at a time

// Copies blocks that exist as records into the sequence's pages.
void restore(const Restored& restored, Sequence& s, const Drafter& drafter, Runner& runner, Round& round) {
  for (const RestoredBlock& block : restored.blocks) {
    runner.set_block(*s.pages, block.block, block.record->rows);
    const int64_t begin = block.block * s.n_block_tokens;
    const int64_t n_new = begin + s.n_block_tokens - std::max(restored.n_before, begin);
    (block.from_disk ? round.n_disk_hit_tokens : round.n_host_hit_tokens) += n_new;
  }
  s.resume(restored.n_cached, restored.blocks.back().resume(), drafter);
  if (s.n_answer_tokens() == 0) s.out->n_hit_tokens += restored.n_cached - restored.n_before;
}

RoundEntry entry_of(const StepEntry& planned, Sequence& s, int last_depth) {
  s.low_confidence = s.low_confidence && std::ssize(s.drafts) == planned.n_drafts;
  s.drafts.resize(static_cast<size_t>(planned.n_drafts));
  RoundEntry entry{.sequence = &s,
                   .tokens = {},
                   .first_position = planned.first_position,
                   .n_drafts = planned.n_drafts,
                   .of_prompt = s.in_prompt(),
                   .full_depth = planned.n_drafts == last_depth || s.low_confidence,
                   .gives_token = planned.gives_token,
                   .sampled = {},
                   .verified = {}};
  const auto first = s.tokens.begin() + planned.first_position;
  entry.tokens.assign(first, first + planned.n_tokens);
  entry.tokens.insert(entry.tokens.end(), s.drafts.begin(), s.drafts.end());
  return entry;
}

SequenceChunk chunk_of(const RoundEntry& entry) { return entry.sequence->chunk(entry.tokens, entry.first_position); }

// What a later sequence may resume from comes to the host with the step's other results.
void fetch_block_ends(Runner& runner, Round& round) {
  std::vector<int32_t> rows;
  for (const RoundEntry& entry : round.entries) {
    for (int64_t r = 0; r < entry.n_rows(); ++r) {
      if (entry.ends_block(r)) rows.push_back(static_cast<int32_t>(entry.first_row + r));
    }
  }
  if (!rows.empty()) round.block_end_taps = runner.fetch(runner.gather(round.rows.state, rows));
}

void start_sampling(Sampler& sampler, Round& round) {
  std::vector<SampleRows> rows;
  for (const RoundEntry& entry : round.entries) {
    if (!entry.gives_token) continue;
    const int64_t n_rows = 1 + entry.n_drafts, first_row = entry.first_row + entry.n_rows() - n_rows;
    rows.push_back({.chooser = &entry.sequence->chooser,
                    .first_row = first_row,
                    .drafts = std::span(entry.tokens).last(static_cast<size_t>(entry.n_drafts)),
                    .faults = round.faults.slice_first(first_row, n_rows)});
  }
  sampler.start(round.rows.hidden, std::move(rows));
}

// Log probabilities of the tokens that follow these rows of the prompt. A preempted prompt's are known already.
void score_prompt(Runner& runner, const Round& round, const RoundEntry& entry) {
  Sequence& s = *entry.sequence;
  if (s.n_answer_tokens() > 0) return;
  const int64_t n_known = std::max<int64_t>(std::ssize(s.prompt_logprobs) - s.n_cached, 0);
  const int64_t n_scored = std::min(entry.n_rows(), s.n_prompt - 1 - s.n_cached);
  for (int64_t r = n_known; r < n_scored; r += kScoreRows) {
    const ArenaScope scratch = runner.scope();
    const int64_t count = std::min(kScoreRows, n_scored - r);
    const View logits = runner.logits(round.rows.hidden.slice_first(entry.first_row + r, count));  // [count, V]
    for (int64_t i = 0; i < count; ++i) {
      if (!is_sound(row_span(logits, i))) return s.fail(RowFault::kNotNumbers, s.n_cached + r + i + 1);
      const int32_t next = s.tokens[static_cast<size_t>(s.n_cached + r + i + 1)];
      s.prompt_logprobs.push_back(row_logprobs(row_span(logits, i), next, s.request.n_top_logprobs));
    }
  }
}

// Keeps what a later sequence needs to resume after a block that this round completed.
void keep_block_ends(const Round& round) {
  int64_t n_ends = 0;
  for (const RoundEntry& entry : round.entries) {
    for (int64_t r = 0; r < entry.n_rows(); ++r) {
      if (!entry.ends_block(r)) continue;
      const int64_t end = n_ends++;
      if (r >= entry.n_committed) continue;
      std::vector<float> state;
      if (!round.block_end_taps.empty()) {
        const std::span<const float> row = row_span(round.block_end_taps, end);
        state.assign(row.begin(), row.end());
      }
      entry.sequence->block_ends.push_back(std::make_shared<const std::vector<float>>(std::move(state)));
    }
  }
}

}  // namespace

Round plan_round(Scheduler& scheduler, const Sequences& sequences, const Drafter& drafter, Runner& runner,
                 int last_depth) {
  std::map<SequenceId, Sequence*> by_id;
  for (const std::unique_ptr<Sequence>& s : sequences) by_id[s->id] = s.get();
  const StepPlan plan = scheduler.plan();
  for (const Admitted& admitted : plan.admitted) {
    Sequence& s = *by_id.at(admitted.id);
    s.pages = &scheduler.pages(s.id);
    s.begin(admitted, drafter);
  }
  Round round;
  for (const Restored& restored : plan.restored) restore(restored, *by_id.at(restored.id), drafter, runner, round);
  int64_t n_rows = 0;
  for (const StepEntry& planned : plan.entries) {
    RoundEntry entry = entry_of(planned, *by_id.at(planned.id), last_depth);
    if (const Status room = check_room(chunk_of(entry), SlotRule::kAtPosition, runner.pools().kinds()); !room.ok()) {
      entry.sequence->fail_internally(room.error().message);
      continue;
    }
    entry.first_row = n_rows;
    n_rows += entry.n_rows();
    round.entries.push_back(std::move(entry));
  }
  return round;
}

void run_round(Runner& runner, Sampler& sampler, Round& round, bool keep_taps) {
  std::vector<SequenceChunk> chunks;
  for (const RoundEntry& entry : round.entries) chunks.push_back(chunk_of(entry));
  runner.begin_step();
  round.rows = runner.trunk(chunks);
  round.faults = runner.fetch(round.rows.faults);
  if (keep_taps) fetch_block_ends(runner, round);
  start_sampling(sampler, round);
}

void sample_round(Runner& runner, Sampler& sampler, Round& round) {
  std::vector<Sampled> sampled = sampler.finish();
  size_t n_sampled = 0;
  for (RoundEntry& entry : round.entries) {
    if (entry.gives_token) entry.sampled = std::move(sampled[n_sampled++]);
  }
  for (const RoundEntry& entry : round.entries) {
    Sequence& s = *entry.sequence;
    if (!entry.of_prompt || s.finished || s.fail_on_faults(round.faults_of(entry))) continue;
    if (s.request.prompt_logprobs) score_prompt(runner, round, entry);
  }
}

void commit_round(Round& round) {
  for (RoundEntry& entry : round.entries) {
    Sequence& s = *entry.sequence;
    if (s.finished) continue;
    if (entry.of_prompt) {
      s.commit_prompt(entry.n_rows());
      entry.n_committed = entry.n_rows();
      if (entry.gives_token) s.commit_first_token(entry.sampled);
    } else {
      const int64_t n_before = s.n_tokens();
      entry.verified = s.commit_verified(entry.sampled);
      entry.n_committed = s.n_tokens() - n_before;
    }
  }
  keep_block_ends(round);
}

void settle_round(Scheduler& scheduler, const Drafter& drafter, const Round& round) {
  for (const RoundEntry& entry : round.entries) {
    Sequence& s = *entry.sequence;
    if (s.out->error) continue;  // its rows are not to be shared
    const int64_t n_committed = drafter.n_committed(*s.draft_state, s.n_cached);
    const int64_t n_uncommitted_blocks = s.n_cached / s.n_block_tokens - n_committed / s.n_block_tokens;
    const std::span<const ResumeState> committed =
        std::span(s.block_ends).first(s.block_ends.size() - static_cast<size_t>(n_uncommitted_blocks));
    guarded(s, [&] {
      scheduler.advance(
          s.id,
          {.n_cached = s.n_cached, .n_committed = n_committed, .n_drafts = std::ssize(s.drafts), .resume = committed});
    });
    s.block_ends.erase(s.block_ends.begin(), s.block_ends.begin() + std::ssize(committed));
  }
}

}  // namespace levin
