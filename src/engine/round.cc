#include "engine/round.h"

#include <algorithm>
#include <map>
#include <utility>

#include "engine/row_span.h"
#include "ops/copies.h"

namespace levin {
namespace {

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

// Sequences that are not drafted for keep their taps on the host; prompts are not among them.
void fetch_first_taps(Runner& runner, Round& round) {
  int64_t n_rows = 0;
  for (const RoundEntry& entry : round.entries) {
    if (!entry.of_prompt) n_rows = entry.first_row + entry.n_rows();
  }
  if (n_rows > 0) round.first_taps = runner.fetch(round.rows.state.slice_first(0, n_rows));
}

// Of the entries that give tokens.
std::vector<SampleRows> sample_rows(const Round& round) {
  std::vector<SampleRows> rows;
  for (const RoundEntry& entry : round.entries) {
    if (!entry.gives_token) continue;
    const int64_t n_rows = 1 + entry.n_drafts, first_row = entry.first_row + entry.n_rows() - n_rows;
    rows.push_back({.chooser = &entry.sequence->chooser,
                    .first_row = first_row,
                    .drafts = std::span(entry.tokens).last(static_cast<size_t>(entry.n_drafts)),
                    .faults = round.faults.slice_first(first_row, n_rows),
                    .first_result = entry.first_result});
  }
  return rows;
}

bool decodes_by_rules(const Round& round) {
  const bool by_rules = round.head && !round.head->chosen_there.empty();
  return by_rules && std::all_of(round.entries.begin(), round.entries.end(), [](const RoundEntry& entry) {
           return !entry.of_prompt && entry.gives_token && !entry.sequence->finished;
         });
}

// Its tokens, and where it begins, are still to come.
RoundEntry entry_ahead(const StepEntry& planned, const RoundEntry& before, int32_t place) {
  const Sequence& s = *before.sequence;
  const int64_t n_rows = planned.n_rows(), last_begin = s.n_prompt + s.max_tokens - n_rows;
  RoundEntry entry{.sequence = before.sequence,
                   .tokens = std::vector<int32_t>(static_cast<size_t>(n_rows), 0),
                   .first_position = std::min(planned.first_position, last_begin),
                   .first_row = place * n_rows,
                   .n_drafts = planned.n_drafts,
                   .first_result = place * n_rows,
                   .place = place,
                   .place_before = before.place,
                   .gives_token = true,
                   .sampled = {},
                   .verified = {}};
  return entry;
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
  int64_t n_rows = 0, n_results = 0;
  for (const StepEntry& planned : plan.entries) {
    RoundEntry entry = entry_of(planned, *by_id.at(planned.id), last_depth);
    if (const Status room = check_room(chunk_of(entry), SlotRule::kAtPosition, runner.pools().kinds()); !room.ok()) {
      entry.sequence->fail_internally(room.error().message);
      continue;
    }
    entry.first_row = n_rows;
    entry.first_result = n_results;
    entry.place = static_cast<int32_t>(std::ssize(round.entries));
    n_rows += entry.n_rows();
    n_results += entry.gives_token ? 1 + entry.n_drafts : 0;
    round.entries.push_back(std::move(entry));
  }
  return round;
}

void run_round(Runner& runner, Sampler& sampler, Round& round, bool keep_taps) {
  std::vector<SequenceChunk> chunks;
  for (const RoundEntry& entry : round.entries) chunks.push_back(chunk_of(entry));
  round.step = runner.begin_step();
  round.rows = runner.trunk(chunks);
  round.faults = runner.fetch(round.rows.faults);
  if (keep_taps) fetch_block_ends(runner, round);
  if (keep_taps && round.depth == 0) fetch_first_taps(runner, round);
  round.head = sampler.start(round.rows.hidden, sample_rows(round));
}

std::optional<Round> plan_round_ahead(Scheduler& scheduler, Runner& runner, const Round& last, int64_t n_drafts) {
  const bool is_small = std::ssize(last.entries) * (1 + n_drafts) <= kMostRowsAhead;
  if (!is_small || !decodes_by_rules(last)) return std::nullopt;
  const std::optional<StepPlan> plan = scheduler.plan_ahead(n_drafts);
  if (!plan) return std::nullopt;
  Round round{.ahead = true};
  auto before = last.entries.begin();  // in the scheduler's order too
  for (const StepEntry& planned : plan->entries) {
    const auto is_it = [&](const RoundEntry& entry) { return entry.sequence->id == planned.id; };
    before = std::find_if(before, last.entries.end(), is_it);
    if (before == last.entries.end()) return std::nullopt;
    RoundEntry entry = entry_ahead(planned, *before, static_cast<int32_t>(std::ssize(round.entries)));
    const bool has_room = check_room(chunk_of(entry), SlotRule::kAtPosition, runner.pools().kinds()).ok();
    if (entry.first_position < 0 || !has_room) return std::nullopt;
    round.entries.push_back(std::move(entry));
  }
  return round;
}

CarriedRows carry_tokens(Runner& runner, const Round& last, const Round& next) {
  std::vector<int32_t> which;
  for (const RoundEntry& entry : next.entries) which.push_back(entry.place_before);
  const View tokens = runner.gather(last.head->chosen_there, which).slice_last(0, 1);  // ChosenToken::token
  return {.edit = [tokens](OpContext& ctx, const Step& step) {
    const int64_t n = tokens.dim(0);
    ops::copy_rows(ctx, {.x = tokens, .out = step.tokens.slice_first(0, n).reshaped({n, 1})});
  }};
}

void run_round_ahead(Runner& runner, Round& round, const CarriedRows& carried, bool keep_taps) {
  std::vector<SequenceChunk> chunks;
  std::vector<HeadRow> rows;
  for (const RoundEntry& entry : round.entries) {
    chunks.push_back(chunk_of(entry));
    for (int64_t j = 0; j < entry.n_rows(); ++j)
      rows.push_back(
          {.number = static_cast<int32_t>(entry.first_row + j), .rule = entry.sequence->chooser.rule(1 + j)});
  }
  round.rows = runner.edited_trunk(chunks, carried.edit);
  round.faults = runner.fetch(round.rows.faults);
  if (keep_taps && round.depth == 0) fetch_first_taps(runner, round);
  round.head = runner.start_head(round.rows.hidden, rows, carried.rules);
}

void catch_up(Runner& runner, Round& round, int last_depth, bool keep_taps) {
  for (RoundEntry& entry : round.entries) {
    const Sequence& s = *entry.sequence;
    entry.first_position = s.n_cached;
    entry.tokens.assign(1, s.tokens.back());
    entry.tokens.insert(entry.tokens.end(), s.drafts.begin(), s.drafts.end());
    entry.n_drafts = std::ssize(s.drafts);
    entry.full_depth = entry.n_drafts == last_depth || s.low_confidence;
  }
  if (keep_taps) fetch_block_ends(runner, round);
}

void sample_round(Runner& runner, Round& round) {
  runner.wait_for(round.step);
  std::vector<Sampled> sampled;
  if (round.head) sampled = Sampler::finish(*round.head, sample_rows(round));
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
