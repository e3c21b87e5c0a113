#include "engine/enqueued_drafts.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "base/check.h"

namespace levin {
namespace {

// Records of several types, which go to the device in one copy. Of types with eight bytes in one first.
class RecordPack {
 public:
  // Returns where they begin.
  template <class T>
  int64_t add(const std::vector<T>& records) {
    const int64_t first = std::ssize(words_);
    words_.resize(words_.size() + records.size() * sizeof(T) / 4);
    if (!records.empty()) std::memcpy(words_.data() + first, records.data(), records.size() * sizeof(T));
    return first;
  }
  void send(Runner& runner) {
    const int64_t n = std::ssize(words_);
    there_ = runner.place(View::of(words_.data(), {1, n})).reshaped({n});
  }
  // n records of so many words each, on the device.
  View rows(int64_t first, int64_t n, int64_t n_words) const {
    return n == 0 ? View() : there_.slice_first(first, n * n_words).reshaped({n, n_words});
  }

 private:
  std::vector<int32_t> words_;
  View there_;
};

// The tokens that follow the rows as far as the host knows them.
std::vector<int32_t> next_tokens(const EnqueuedEntry& entry) {
  std::vector<int32_t> tokens(entry.rows.begin() + 1, entry.rows.end());
  tokens.push_back(entry.next_token);
  return tokens;
}

int64_t n_known(const EnqueuedEntry& entry) { return std::ssize(entry.rows) - entry.n_chosen; }

// The first token that is chosen leaves room for a draft.
bool has_chain(const EnqueuedEntry& entry) { return entry.n_chosen > 0 && entry.room > 1; }

// Of the pair that a chain's step s >= 1 runs: at most, as if all rows were right; and where a draft after it has room.
int64_t chain_position(const EnqueuedEntry& entry, int64_t step) {
  const int64_t n_rows = std::ssize(entry.rows);
  return entry.first_position + std::min(n_rows - 1 + step, n_known(entry) + entry.room - 2);
}

DraftChain chain_of(const EnqueuedEntry& entry, int depth) {
  return {.rule = *entry.chooser->rule(0),
          .n_wanted = depth,
          .room = static_cast<int32_t>(std::min<int64_t>(entry.room, std::numeric_limits<int32_t>::max())),
          .position = static_cast<int32_t>(entry.first_position - 1)};
}

}  // namespace

bool EnqueuedDrafts::has_room(const EnqueuedEntry& entry, int depth) const {
  const SequenceChunk rows{
      .tokens = entry.rows, .first_position = static_cast<int32_t>(entry.first_position), .pages = entry.pages};
  const auto fits = [&](const SequenceChunk& chunk) {
    return check_room(chunk, SlotRule::kAfterPosition, runner_.pools().kinds()).ok();
  };
  if (!fits(rows) || !has_chain(entry) || depth < 2) return fits(rows);
  SequenceChunk last = rows;
  last.tokens = last.tokens.last(1);
  last.first_position = static_cast<int32_t>(chain_position(entry, depth - 1));
  return fits(last);
}

void EnqueuedDrafts::start(const EnqueuedRound& round) {
  if (!round.ahead) describe(round);
  heads_.clear();
  extend(round);
  if (round.depth > 0 && !chains_.empty()) heads_.push_back(runner_.start_draft_head(rows_.hidden, rules_of_chains()));
  for (int step = 1; step < round.depth && !chains_.empty(); ++step) continue_chains(round, step);
  is_followed_ = !heads_.empty() && chains_.size() == round.entries.size();
  words_on_host_ = runner_.fetch(words_);
}

CarriedRows EnqueuedDrafts::carry(const EnqueuedRound& round, const EnqueuedDrafts& before) {
  describe(round);
  carried_.chosen = before.heads_.back().chosen_there;
  carried_.chains = before.words_;
  const auto edit = [this](OpContext& ctx, const Step& step) {
    ops::CarryDrafts rows = carried_;
    rows.step = edited(step);
    rows.rules = rules_, rows.sequences = sequences_, rows.next = words_;
    ops::carry_drafts(ctx, rows);
  };
  return {.edit = edit, .rules = rules_};
}

// What the device is told of the sequences; and which of them have chains.
void EnqueuedDrafts::describe(const EnqueuedRound& round) {
  std::vector<VerifiedRows> sequences;
  std::vector<DraftChain> chains;
  std::vector<ChoiceRule> rules;  // of a round ahead: written there
  std::vector<int32_t> places_before;
  chains_.clear();
  int64_t n_rows = 0, n_chosen = 0;
  for (const EnqueuedEntry& entry : round.entries) {
    VerifiedRows& rows = sequences.emplace_back();
    rows = {.first_row = static_cast<int32_t>(n_rows),
            .n_rows = static_cast<int32_t>(entry.rows.size()),
            .n_known = static_cast<int32_t>(n_known(entry)),
            .first_chosen = static_cast<int32_t>(n_chosen)};
    n_rows += std::ssize(entry.rows);
    n_chosen += entry.n_chosen;
    places_before.push_back(entry.place_before);
    if (!has_chain(entry)) continue;
    rows.chain = static_cast<int32_t>(chains.size());
    chains.push_back(chain_of(entry, round.depth));
    chains_.push_back(entry);
  }
  if (round.ahead) rules.resize(static_cast<size_t>(n_chosen));
  RecordPack pack;
  const int64_t first_chain = pack.add(chains), first_rule = pack.add(rules), first_sequence = pack.add(sequences),
                first_place = pack.add(places_before);
  pack.send(runner_);
  words_ = pack.rows(first_chain, std::ssize(chains), kDraftChainWords);
  rules_ = pack.rows(first_rule, std::ssize(rules), kChoiceRuleWords);
  sequences_ = pack.rows(first_sequence, std::ssize(sequences), kVerifiedRowsWords);
  carried_ = {.which = pack.rows(first_place, std::ssize(sequences), 1).reshaped({std::ssize(sequences)}),
              .rows_each = static_cast<int32_t>(round.entries.front().n_chosen)};
}

void EnqueuedDrafts::extend(const EnqueuedRound& round) {
  std::vector<std::vector<int32_t>> tokens;
  std::vector<SequenceChunk> chunks;
  std::vector<int32_t> last_rows;  // of the sequences with chains, if all of their rows are right
  int64_t n_rows = 0;
  for (const EnqueuedEntry& entry : round.entries) {
    n_rows += std::ssize(entry.rows);
    tokens.push_back(next_tokens(entry));
    chunks.push_back(
        {.tokens = tokens.back(), .first_position = static_cast<int32_t>(entry.first_position), .pages = entry.pages});
    if (has_chain(entry)) last_rows.push_back(static_cast<int32_t>(n_rows - 1));
  }
  rows_ = runner_.edited_mtp(chunks, {.state = round.taps}, last_rows, [&](OpContext& ctx, const Step& step) {
    if (round.ahead) {
      ops::CarryDrafts rows = carried_;
      rows.step = edited(step);
      rows.shift = 1;
      ops::carry_drafts(ctx, rows);
    }
    ops::accept_drafts(ctx, {.chosen = round.chosen,
                             .faults = round.faults,
                             .sequences = sequences_,
                             .chains = words_,
                             .step = edited(step),
                             .wanted = *step.wanted});
  });
}

void EnqueuedDrafts::continue_chains(const EnqueuedRound& round, int step) {
  static constexpr int32_t kAnyToken = 0;
  std::vector<SequenceChunk> chunks;
  for (const EnqueuedEntry& entry : chains_) {
    chunks.push_back({.tokens = {&kAnyToken, 1},
                      .first_position = static_cast<int32_t>(chain_position(entry, step)),
                      .pages = entry.pages});
  }
  const bool share_topk = runner_.model().config().share_topk_across_drafts;
  const MtpRows from{.state = rows_.state, .topk = share_topk ? rows_.topk : View()};
  const auto edit = [&](OpContext& ctx, const Step& mtp_step) {
    ops::continue_drafts(ctx, {.chosen = heads_.back().chosen_there,
                               .chains = words_,
                               .step = edited(mtp_step),
                               .min_confidence = round.min_confidence});
  };
  DraftStep drafts = runner_.edited_draft_step(chunks, from, rules_of_chains(), edit);
  rows_ = drafts.rows;
  heads_.push_back(std::move(drafts.head));
}

ops::EditedStep EnqueuedDrafts::edited(const Step& step) const {
  return {.tokens = step.tokens,
          .positions = step.positions,
          .seq = step.seq,
          .slot = step.slot,
          .visible = step.visible,
          .window = step.window,
          .first_slot = step.first_slot,
          .n_window = runner_.pools().kinds().n_window};
}

std::optional<EnqueuedDrafts::Result> EnqueuedDrafts::result_of(const DraftState& state) const {
  const auto found =
      std::find_if(chains_.begin(), chains_.end(), [&](const EnqueuedEntry& entry) { return entry.state == &state; });
  if (found == chains_.end()) return std::nullopt;
  const int64_t n = found - chains_.begin();
  DraftChain chain;
  std::memcpy(static_cast<void*>(&chain), words_on_host_.row<int32_t>(n), sizeof(chain));
  Result result{.n_committed = chain.n_committed, .choices = {}};
  for (const HeadCall& head : heads_)
    std::memcpy(static_cast<void*>(&result.choices.emplace_back()), head.chosen.row<int32_t>(n), sizeof(ChosenToken));
  return result;
}

}  // namespace levin
