// Acceptance and the draft layer's steps against what a host makes of the same tokens, sequence by sequence.
#include "ops/draft_steps.h"

#include <cstring>
#include <optional>

#include "ops/paged_cache.h"
#include "ops/support.h"

namespace levin::testing {
namespace {

using Values = std::vector<int32_t>;

constexpr int32_t kFirstSlot = 1;
constexpr int64_t kWindow = 6;

template <class T>
Tensor records(const std::vector<T>& values) {
  const int64_t n = std::ssize(values), n_words = sizeof(T) / 4;
  Tensor out(DType::kI32, {n, n_words});
  if (n > 0) std::memcpy(out.view().bytes(), values.data(), values.size() * sizeof(T));
  return out;
}

template <class T>
std::vector<T> values_of(const Tensor& rows) {
  std::vector<T> out(static_cast<size_t>(rows.view().dim(0)));
  if (!out.empty()) std::memcpy(out.data(), rows.view().bytes(), out.size() * sizeof(T));
  return out;
}

// A step of the draft layer as a host makes it.
struct Rows {
  Values tokens, positions, seq, slot, visible, window;

  void add(int32_t token, int32_t position, int32_t sequence) {
    tokens.push_back(token), positions.push_back(position), seq.push_back(sequence);
    slot.push_back(sequence < 0 ? -1 : position + kFirstSlot);
    visible.push_back(sequence < 0 ? kFirstSlot : position + kFirstSlot + 1);
    window.push_back(std::max<int32_t>(kFirstSlot, visible.back() - static_cast<int32_t>(kWindow)));
  }
  void add_padding() { add(0, 0, -1); }
  bool operator==(const Rows&) const = default;
};

struct StepTensors {
  explicit StepTensors(const Rows& rows)
      : tokens(i32_tensor(rows.tokens)),
        positions(i32_tensor(rows.positions)),
        seq(i32_tensor(rows.seq)),
        slot(i32_tensor(rows.slot)),
        visible(i32_tensor(rows.visible)),
        window(i32_tensor(rows.window)) {}
  ops::EditedStep out(Args& args, bool has_window) {
    return {.tokens = args.out(tokens),
            .positions = args.out(positions),
            .seq = args.out(seq),
            .slot = args.out(slot),
            .visible = args.out(visible),
            .window = has_window ? args.out(window) : View(),
            .first_slot = kFirstSlot,
            .n_window = has_window ? kWindow : 0};
  }
  Rows rows() const {
    return {.tokens = values_of<int32_t>(tokens),
            .positions = values_of<int32_t>(positions),
            .seq = values_of<int32_t>(seq),
            .slot = values_of<int32_t>(slot),
            .visible = values_of<int32_t>(visible),
            .window = values_of<int32_t>(window)};
  }
  Tensor tokens, positions, seq, slot, visible, window;
};

// ---- accept_drafts ----

// What is known of one sequence, and what is to come of it.
struct Verified {
  int32_t first_position = 0;
  Values known;                     // next tokens of a prompt's rows
  Values drafts;                    // of the rows after the first that chooses
  std::vector<ChosenToken> chosen;  // of those rows; none inside a prompt
  Values faults;                    // of all rows
  std::optional<DraftChain> chain;

  int64_t n_rows() const { return std::ssize(known) + std::ssize(chosen); }
};

// Tokens that the host would commit; nullopt: it ends the sequence.
std::optional<Values> committed(const Verified& v) {
  Values out = v.known;
  for (size_t r = 0; r < v.known.size(); ++r) {
    if (v.faults[r] != 0) return std::nullopt;
  }
  for (size_t j = 0; j < v.chosen.size(); ++j) {
    if (v.faults[v.known.size() + j] != 0 || v.chosen[j].sound == 0) return std::nullopt;
    out.push_back(v.chosen[j].token);
    if (j < v.drafts.size() && v.drafts[j] != v.chosen[j].token) break;
  }
  return out;
}

struct Accepted {
  Rows rows;
  std::vector<DraftChain> chains;
  Values wanted;
};

Accepted accept(TestDevice& device, const std::vector<Verified>& all, bool has_window) {
  std::vector<VerifiedRows> sequences;
  std::vector<DraftChain> chains;
  std::vector<ChosenToken> chosen;
  Values faults, wanted;
  Rows rows;
  for (size_t b = 0; b < all.size(); ++b) {
    const Verified& v = all[b];
    sequences.push_back({.first_row = static_cast<int32_t>(rows.tokens.size()),
                         .n_rows = static_cast<int32_t>(v.n_rows()),
                         .n_known = static_cast<int32_t>(v.known.size()),
                         .first_chosen = static_cast<int32_t>(chosen.size()),
                         .chain = v.chain ? static_cast<int32_t>(chains.size()) : -1});
    Values next = v.known;
    next.insert(next.end(), v.drafts.begin(), v.drafts.end());
    next.resize(static_cast<size_t>(v.n_rows()), 0);
    for (int32_t r = 0; r < v.n_rows(); ++r)
      rows.add(next[static_cast<size_t>(r)], v.first_position + r, static_cast<int32_t>(b));
    chosen.insert(chosen.end(), v.chosen.begin(), v.chosen.end());
    faults.insert(faults.end(), v.faults.begin(), v.faults.end());
    if (v.chain) chains.push_back(*v.chain), wanted.push_back(-7);
  }
  rows.add_padding();  // of the step's shape
  wanted.push_back(static_cast<int32_t>(rows.tokens.size()) - 1);
  StepTensors step(rows);
  Tensor chain_rows = records(chains), wanted_rows = i32_tensor(wanted);
  Args args(device);
  ops::accept_drafts(device.ctx(), {.chosen = args.in(records(chosen)),
                                    .faults = args.in(i32_tensor(faults)),
                                    .sequences = args.in(records(sequences)),
                                    .chains = chains.empty() ? View() : args.out(chain_rows),
                                    .step = step.out(args, has_window),
                                    .wanted = args.out(wanted_rows)});
  args.fetch();
  return {step.rows(), values_of<DraftChain>(chain_rows), values_of<int32_t>(wanted_rows)};
}

Verified random_sequence(Random& random) {
  Verified v{.first_position = static_cast<int32_t>(random.below(300))};
  const bool of_prompt = random.below(3) == 0;
  for (int64_t n = of_prompt ? random.below(200) : 0; n > 0; --n)
    v.known.push_back(static_cast<int32_t>(random.below(50)));
  const bool inside = of_prompt && !v.known.empty() && random.below(2) == 0;
  if (!inside) {
    const int64_t n_drafts = of_prompt ? 0 : random.below(6);
    for (int64_t i = 0; i < n_drafts; ++i) v.drafts.push_back(static_cast<int32_t>(random.below(50)));
    for (int64_t i = 0; i <= n_drafts; ++i) {
      const bool right = i < n_drafts && random.below(4) != 0;
      v.chosen.push_back({.token = right ? v.drafts[static_cast<size_t>(i)] : 60,
                          .sound = random.below(12) == 0 ? 0 : 1,
                          .probability = 0.5f});
    }
    if (random.below(5) != 0) {
      v.chain = {.rule = {.seed = random.bits(), .temperature = 0.5, .position = 70, .choice = 2},
                 .n_wanted = static_cast<int32_t>(1 + random.below(5)),
                 .room = static_cast<int32_t>(2 + random.below(9)),
                 .position = v.first_position - 1};
    }
  }
  for (int64_t r = 0; r < v.n_rows(); ++r) v.faults.push_back(random.below(40) == 0 ? 8 : 0);
  return v;
}

void expect_accepted(const Accepted& found, const std::vector<Verified>& all, bool has_window) {
  Rows expected;
  size_t chain = 0;
  for (size_t b = 0; b < all.size(); ++b) {
    const Verified& v = all[b];
    SCOPED_TRACE(::testing::Message() << "sequence " << b);
    const auto first = static_cast<int32_t>(expected.tokens.size());
    const Values right = committed(v).value_or(Values());
    for (size_t r = 0; r < right.size(); ++r)
      expected.add(right[r], v.first_position + static_cast<int32_t>(r), static_cast<int32_t>(b));
    for (int64_t r = std::ssize(right); r < v.n_rows(); ++r) expected.add_padding();
    if (!v.chain) continue;
    const DraftChain& before = *v.chain;
    const DraftChain& after = found.chains[chain];
    const auto n_right = static_cast<int32_t>(right.size());
    const int32_t n_chosen = n_right == 0 ? 0 : n_right - static_cast<int32_t>(v.known.size());
    EXPECT_EQ(after.n_committed, n_right);
    EXPECT_EQ(after.n_wanted, n_right == 0 ? 0 : std::max(0, std::min(before.n_wanted, before.room - n_chosen)));
    if (n_right > 0) {
      EXPECT_EQ(found.wanted[chain], first + n_right - 1);
      EXPECT_EQ(after.position, expected.positions[static_cast<size_t>(first + n_right - 1)]);
      EXPECT_EQ(after.rule.position, before.rule.position + static_cast<uint32_t>(n_chosen));
      EXPECT_EQ(after.next_position, v.first_position + n_right);
      EXPECT_EQ(after.next_token, n_chosen > 0 ? right.back() : before.next_token);
    } else {
      EXPECT_TRUE(found.wanted[chain] >= first && found.wanted[chain] < first + v.n_rows());
    }
    EXPECT_EQ(after.rule.seed, before.rule.seed);
    EXPECT_EQ(after.rule.temperature, before.rule.temperature);
    EXPECT_EQ(after.rule.choice, before.rule.choice);
    EXPECT_EQ(after.confidence, 1);
    EXPECT_EQ(after.n_drafts, 0);
    ++chain;
  }
  expected.add_padding();
  if (!has_window) expected.window = found.rows.window;
  EXPECT_EQ(found.rows.tokens, expected.tokens);
  EXPECT_TRUE(found.rows == expected);
  EXPECT_EQ(found.wanted.back(), std::ssize(expected.tokens) - 1) << "not of a chain";
}

TEST(AcceptDraftsTest, RowsAreThoseThatTheHostWouldCommit) {
  for (TestDevice* device : backends_under_test()) {
    SCOPED_TRACE(device->name());
    Random random(1);
    for (int round = 0; round < 40; ++round) {
      std::vector<Verified> all;
      for (int64_t n = 1 + random.below(9); n > 0; --n) all.push_back(random_sequence(random));
      const bool has_window = round % 2 == 0;
      expect_accepted(accept(*device, all, has_window), all, has_window);
    }
  }
}

TEST(AcceptDraftsTest, ASequenceIsTheSameInAnyCompany) {
  for (TestDevice* device : backends_under_test()) {
    SCOPED_TRACE(device->name());
    Random random(2);
    std::vector<Verified> all;
    for (int i = 0; i < 12; ++i) all.push_back(random_sequence(random));
    const Accepted together = accept(*device, all, true);
    size_t row = 0, chain = 0;
    for (const Verified& v : all) {
      const Accepted alone = accept(*device, {v}, true);
      for (int64_t r = 0; r < v.n_rows(); ++r, ++row) {
        EXPECT_EQ(together.rows.tokens[row], alone.rows.tokens[static_cast<size_t>(r)]);
        EXPECT_EQ(together.rows.slot[row], alone.rows.slot[static_cast<size_t>(r)]);
        EXPECT_EQ(together.rows.window[row], alone.rows.window[static_cast<size_t>(r)]);
      }
      if (!v.chain) continue;
      EXPECT_EQ(std::memcmp(&together.chains[chain++], alone.chains.data(), sizeof(DraftChain)), 0);
    }
  }
}

// ---- continue_drafts ----

struct Continued {
  Rows rows;
  std::vector<DraftChain> chains;
};

Continued continue_chains(TestDevice& device, const std::vector<DraftChain>& chains,
                          const std::vector<ChosenToken>& chosen, double min_confidence) {
  Rows rows;
  for (size_t n = 0; n < chains.size(); ++n) rows.add(0, 500, static_cast<int32_t>(n));
  rows.add_padding();
  StepTensors step(rows);
  Tensor chain_rows = records(chains);
  Args args(device);
  ops::continue_drafts(device.ctx(), {.chosen = args.in(records(chosen)),
                                      .chains = args.out(chain_rows),
                                      .step = step.out(args, true),
                                      .min_confidence = min_confidence});
  args.fetch();
  return {step.rows(), values_of<DraftChain>(chain_rows)};
}

TEST(ContinueDraftsTest, AChainContinuesWhileItsDraftsAreWantedAndLikely) {
  const auto chain = [](int32_t n_drafts, int32_t n_wanted, double confidence) {
    return DraftChain{
        .rule = {.position = 40}, .confidence = confidence, .n_wanted = n_wanted, .n_drafts = n_drafts, .position = 30};
  };
  const std::vector<DraftChain> chains = {
      chain(0, 3, 1),    // continues
      chain(1, 3, 0.9),  // is doubted: 0.9 * 0.75 < 0.7
      chain(2, 3, 1),    // has its last draft, however unlikely
      chain(0, 3, 1),    // a row that is not sound
      chain(2, 2, 1),    // had ended
      chain(0, 0, 1),    // was never wanted
      chain(1, 5, 0.875),
  };
  const auto chosen = [](int32_t token, float probability, int32_t sound = 1) {
    return ChosenToken{.token = token, .sound = sound, .probability = probability};
  };
  const std::vector<ChosenToken> choices = {chosen(11, 0.75f), chosen(12, 0.75f), chosen(13, 0.01f), chosen(0, 0, 0),
                                            chosen(15, 1),     chosen(16, 1),     chosen(17, 0.875f)};
  for (TestDevice* device : backends_under_test()) {
    SCOPED_TRACE(device->name());
    const Continued found = continue_chains(*device, chains, choices, 0.7);
    Rows expected;
    expected.add(11, 31, 0);
    for (int i = 0; i < 5; ++i) expected.add_padding();
    expected.add(17, 31, 6);
    expected.add_padding();
    EXPECT_EQ(found.rows.tokens, expected.tokens);
    EXPECT_TRUE(found.rows == expected);
    Values n_drafts, n_wanted, positions, rule_positions;
    for (const DraftChain& c : found.chains) {
      n_drafts.push_back(c.n_drafts), n_wanted.push_back(c.n_wanted), positions.push_back(c.position);
      rule_positions.push_back(static_cast<int32_t>(c.rule.position));
    }
    EXPECT_EQ(n_drafts, (Values{1, 2, 3, 0, 2, 0, 2}));
    EXPECT_EQ(n_wanted, (Values{3, 2, 3, 0, 2, 0, 5}));
    EXPECT_EQ(positions, (Values{31, 30, 30, 30, 30, 30, 31}));
    EXPECT_EQ(rule_positions, (Values{41, 40, 40, 40, 40, 40, 41}));
    EXPECT_EQ(found.chains[0].drafts[0], 11);
    EXPECT_EQ(found.chains[2].drafts[2], 13);
    EXPECT_EQ(found.chains[6].drafts[1], 17);
    EXPECT_EQ(found.chains[0].confidence, 0.75);
    EXPECT_EQ(found.chains[6].confidence, 0.875 * 0.875);
    // One that ends stays so, and a chain is the same alone.
    const Continued again = continue_chains(*device, found.chains, choices, 0);
    EXPECT_EQ(again.rows.seq, (Values{0, -1, -1, -1, -1, -1, 6, -1}));
    for (size_t n = 0; n < chains.size(); ++n) {
      const Continued alone = continue_chains(*device, {chains[n]}, {choices[n]}, 0.7);
      EXPECT_EQ(std::memcmp(&alone.chains[0], &found.chains[n], sizeof(DraftChain)), 0) << n;
      EXPECT_EQ(alone.rows.slot[0], found.rows.slot[n]) << n;
    }
  }
}

// ---- carry_drafts ----

constexpr int32_t kRowsEach = 6;

// A chain as continue_drafts leaves it, its last choice, and what is to come of it.
struct Carried {
  DraftChain chain;
  ChosenToken last;
  Values tokens;               // of the next round's rows
  uint32_t rule_position = 0;  // of the token that the first of them gives
};

Carried random_chain(Random& random) {
  Carried c{.chain = {.rule = {.seed = random.bits(), .temperature = 0.5, .choice = 3}}};
  DraftChain& chain = c.chain;
  chain.next_token = static_cast<int32_t>(random.below(50));
  chain.next_position = static_cast<int32_t>(20 + random.below(300));
  chain.n_committed = random.below(9) == 0 ? 0 : 2;
  chain.room = static_cast<int32_t>(random.below(7)) - 1;
  chain.n_drafts = static_cast<int32_t>(random.below(kRowsEach - 1));
  for (int32_t i = 0; i < chain.n_drafts; ++i) chain.drafts[i] = static_cast<int32_t>(random.below(50));
  c.last = {.token = 70, .sound = random.below(5) == 0 ? 0 : 1, .probability = 0.5f};
  const bool is_open = random.below(2) == 0, was_doubted = !is_open && chain.n_drafts > 0 && random.below(2) == 0;
  chain.n_wanted = chain.n_drafts + (is_open ? 1 : 0);
  const int32_t n_continued = chain.n_drafts - (was_doubted ? 1 : 0);
  c.rule_position = static_cast<uint32_t>(40 + random.below(300));
  chain.rule.position = c.rule_position + static_cast<uint32_t>(n_continued);
  chain.position = chain.next_position - 1 + n_continued;
  if (chain.n_committed == 0 || chain.room < 0) return c;
  c.tokens = {chain.next_token};
  c.tokens.insert(c.tokens.end(), chain.drafts, chain.drafts + chain.n_drafts);
  if (is_open && c.last.sound != 0) c.tokens.push_back(c.last.token);
  return c;
}

struct NextRound {
  Rows rows;
  std::vector<ChoiceRule> rules;
  std::vector<VerifiedRows> sequences;
  std::vector<DraftChain> chains;
};

NextRound carry(TestDevice& device, const std::vector<Carried>& all, const Values& which, int32_t shift) {
  std::vector<DraftChain> chains;
  std::vector<ChosenToken> chosen;
  for (const Carried& c : all) chains.push_back(c.chain), chosen.push_back(c.last);
  Rows rows;
  for (size_t r = 0; r < which.size() * kRowsEach + 1; ++r) rows.add(5, 900, 7);  // of which the last is nobody's
  StepTensors step(rows);
  Tensor rules = records(std::vector<ChoiceRule>(which.size() * kRowsEach)),
         sequences = records(std::vector<VerifiedRows>(which.size(), {.first_row = 3, .chain = 1})),
         next = records(std::vector<DraftChain>(which.size(), {.n_wanted = 4}));
  const Tensor chosen_rows = records(chosen), chain_rows = records(chains), which_rows = i32_tensor(which);
  Args args(device);
  ops::CarryDrafts call{.chosen = args.in(chosen_rows),
                        .chains = args.in(chain_rows),
                        .which = args.in(which_rows),
                        .step = step.out(args, true),
                        .rows_each = kRowsEach,
                        .shift = shift};
  if (shift == 0) call.rules = args.out(rules), call.sequences = args.out(sequences), call.next = args.out(next);
  ops::carry_drafts(device.ctx(), call);
  args.fetch();
  return {step.rows(), values_of<ChoiceRule>(rules), values_of<VerifiedRows>(sequences), values_of<DraftChain>(next)};
}

Rows expected_rows(const std::vector<Carried>& all, const Values& which, int32_t shift) {
  Rows out;
  for (size_t i = 0; i < which.size(); ++i) {
    const Carried& c = all[static_cast<size_t>(which[i])];
    Values tokens = c.tokens;
    tokens.push_back(0);
    const auto n = static_cast<int32_t>(c.tokens.size());
    for (int32_t j = 0; j < n; ++j)
      out.add(tokens[static_cast<size_t>(j + shift)], c.chain.next_position + j, static_cast<int32_t>(i));
    for (int32_t j = n; j < kRowsEach; ++j) out.add_padding();
  }
  out.add(5, 900, 7);
  return out;
}

TEST(CarryDraftsTest, TheNextRoundVerifiesWhatTheChainsHold) {
  for (TestDevice* device : backends_under_test()) {
    SCOPED_TRACE(device->name());
    Random random(3);
    for (int round = 0; round < 40; ++round) {
      std::vector<Carried> all;
      for (int i = 0; i < 9; ++i) all.push_back(random_chain(random));
      Values which;  // some sequences have ended
      for (int32_t i = 0; i < 9; ++i) {
        if (random.below(4) != 0) which.push_back(i);
      }
      if (which.empty()) continue;
      const NextRound found = carry(*device, all, which, 0);
      EXPECT_EQ(found.rows.tokens, expected_rows(all, which, 0).tokens);
      EXPECT_TRUE(found.rows == expected_rows(all, which, 0));
      EXPECT_TRUE(carry(*device, all, which, 1).rows == expected_rows(all, which, 1));
      for (size_t i = 0; i < which.size(); ++i) {
        const Carried& c = all[static_cast<size_t>(which[i])];
        EXPECT_EQ(found.sequences[i].n_rows, std::ssize(c.tokens));
        EXPECT_EQ(found.sequences[i].first_row, 3);
        EXPECT_EQ(found.sequences[i].chain, 1);
        const DraftChain& next = found.chains[i];
        EXPECT_EQ(next.room, c.chain.room);
        EXPECT_EQ(next.position, c.chain.next_position - 1);
        EXPECT_EQ(next.n_wanted, 4);
        EXPECT_EQ(next.n_drafts, 0);
        ChoiceRule rule = c.chain.rule;
        rule.position = c.rule_position;
        EXPECT_EQ(std::memcmp(&next.rule, &rule, sizeof(rule)), 0);
        for (size_t j = 0; j < kRowsEach; ++j, ++rule.position)
          EXPECT_EQ(std::memcmp(&found.rules[i * kRowsEach + j], &rule, sizeof(rule)), 0) << j;
      }
    }
  }
}

TEST(CarryDraftsTest, ASequenceIsTheSameInAnyCompany) {
  for (TestDevice* device : backends_under_test()) {
    SCOPED_TRACE(device->name());
    Random random(4);
    std::vector<Carried> all;
    for (int i = 0; i < 12; ++i) all.push_back(random_chain(random));
    const NextRound together = carry(*device, all, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, 0);
    for (size_t i = 0; i < all.size(); ++i) {
      const NextRound alone = carry(*device, {all[i]}, {0}, 0);
      for (size_t j = 0; j < kRowsEach; ++j) {
        EXPECT_EQ(together.rows.tokens[i * kRowsEach + j], alone.rows.tokens[j]);
        EXPECT_EQ(together.rows.slot[i * kRowsEach + j], alone.rows.slot[j]);
        EXPECT_EQ(together.rows.window[i * kRowsEach + j], alone.rows.window[j]);
      }
      EXPECT_EQ(std::memcmp(&together.chains[i], alone.chains.data(), sizeof(DraftChain)), 0);
    }
  }
}

}  // namespace
}  // namespace levin::testing
