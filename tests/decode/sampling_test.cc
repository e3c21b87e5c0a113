#include "decode/sampling.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <random>

#include "base/math.h"
#include "decode/candidates.h"
#include "decode/noise.h"
#include "ops/cpu_backend.h"
#include "ops/logits.h"
#include "support/must.h"

namespace levin {
namespace {

SamplingPlan plan_of(const SamplingParams& params, size_t n_vocab) {
  return test::must(SamplingPlan::make(params, static_cast<int64_t>(n_vocab)));
}

int32_t choose(const std::vector<float>& logits, const SamplingParams& params, const ChoiceContext& context) {
  const Choice choice = choose_token(logits, plan_of(params, logits.size()), context);
  EXPECT_TRUE(choice.ok());
  return choice.token;
}

std::map<int32_t, int> sample(const std::vector<float>& logits, SamplingParams params, int n_draws) {
  std::map<int32_t, int> counts;
  for (int i = 0; i < n_draws; ++i) {
    ++counts[choose(logits, params, {.history = nullptr, .position = static_cast<uint32_t>(i), .mask = {}})];
  }
  return counts;
}

std::vector<double> softmax(const std::vector<float>& logits, double temperature) {
  std::vector<double> p;
  double total = 0;
  for (const float l : logits) total += p.emplace_back(std::exp(l / temperature));
  for (double& v : p) v /= total;
  return p;
}

// Five standard deviations of each count: one in a million false alarms per token.
TEST(ChooseToken, SamplesTheSoftmaxAtItsTemperature) {
  const std::vector<float> logits = {0.3f, -1.0f, 2.0f, 1.5f, -3.0f, 0.0f};
  constexpr int kDraws = 40000;
  for (const double temperature : {0.5, 1.0, 1.7}) {
    std::map<int32_t, int> counts = sample(logits, {.temperature = temperature, .seed = 11}, kDraws);
    const std::vector<double> p = softmax(logits, temperature);
    for (size_t v = 0; v < p.size(); ++v) {
      EXPECT_NEAR(counts[static_cast<int32_t>(v)], kDraws * p[v], 5 * std::sqrt(kDraws * p[v] * (1 - p[v])) + 1) << v;
    }
  }
}

TEST(ChooseToken, GreedyTakesTheLowestOfEquals) {
  EXPECT_EQ(choose(std::vector<float>{1, 3, 3, -0.0f}, {.temperature = 0}, {}), 1);
  EXPECT_EQ(choose(std::vector<float>{-0.0f, 0.0f}, {.temperature = 0}, {}), 0);
  EXPECT_EQ(choose(std::vector<float>{-1, 3, 2}, {.temperature = 0.9e-5}, {}), 1);
}

TEST(ChooseToken, TopKKeepsTheBestWithTiesToLowIds) {
  const std::vector<float> logits = {1, 2, 2, 2, 0};
  for (const auto& [token, count] : sample(logits, {.top_k = 2, .seed = 3}, 500)) EXPECT_TRUE(token == 1 || token == 2);
}

TEST(ChooseToken, TopPKeepsTheShortestPrefixThatHoldsTheMass) {
  // Probabilities 0.5, 0.3, 0.2.
  const std::vector<float> logits = {std::log(0.2f), std::log(0.5f), std::log(0.3f)};
  EXPECT_EQ(sample(logits, {.top_p = 0.4, .seed = 3}, 300).size(), 1u);
  EXPECT_EQ(sample(logits, {.top_p = 0.6, .seed = 3}, 300).size(), 2u);
  EXPECT_EQ(sample(logits, {.top_p = 0.81, .seed = 3}, 300).size(), 3u);
}

TEST(ChooseToken, MinPIsRelativeToTheMaxProb) {
  const std::vector<float> logits = {0, std::log(0.5f), std::log(0.09f)};
  EXPECT_EQ(sample(logits, {.min_p = 0.1, .seed = 3}, 2000).count(2), 0u);
  EXPECT_EQ(sample(logits, {.min_p = 0.08, .seed = 3}, 2000).count(2), 1u);
}

TEST(ChooseToken, PenaltiesCountPromptAndAnswerAsTheyShould) {
  TokenHistory history;
  history.add_prompt(std::vector<int32_t>{0});
  history.push(1);
  history.push(1);
  const ChoiceContext context{.history = &history, .position = 0, .mask = {}};
  // Repetition: prompt and answer, dividing what is positive and multiplying what is negative.
  EXPECT_EQ(choose(std::vector<float>{4, 4, 2.1f}, {.temperature = 0, .repetition_penalty = 2}, context), 2);
  EXPECT_EQ(choose(std::vector<float>{-1, -1, -1.9f}, {.temperature = 0, .repetition_penalty = 2}, context), 2);
  // Presence and frequency: the answer alone; frequency by the count.
  EXPECT_EQ(choose(std::vector<float>{1, 2, 0}, {.temperature = 0, .presence_penalty = 1.5}, context), 0);
  EXPECT_EQ(choose(std::vector<float>{1, 2, 0}, {.temperature = 0, .frequency_penalty = 0.6}, context), 0);
  history.pop(1);
  EXPECT_EQ(choose(std::vector<float>{1, 2, 0}, {.temperature = 0, .frequency_penalty = 0.6}, context), 1);
}

TEST(ChooseToken, BansMasksAndMinimumLengthForbid) {
  const std::vector<float> logits = {3, 2, 1};
  EXPECT_EQ(choose(logits, {.temperature = 0, .banned_tokens = {0}}, {}), 1);
  EXPECT_EQ(choose(logits, {.temperature = 0, .allowed_tokens = {2}}, {}), 2);
  const std::vector<uint64_t> mask = {0b100};
  EXPECT_EQ(choose(logits, {.temperature = 0}, {.history = nullptr, .position = 0, .mask = mask}), 2);
  TokenHistory history;
  const SamplingParams params{.temperature = 0, .stop_tokens = {0}, .min_tokens = 1};
  EXPECT_EQ(choose(logits, params, {.history = &history, .position = 0, .mask = {}}), 1);
  history.push(1);
  EXPECT_EQ(choose(logits, params, {.history = &history, .position = 1, .mask = {}}), 0);
}

// The rule written out without its shortcuts.
int32_t choose_by_the_book(const std::vector<float>& logits, const SamplingParams& params, uint32_t position) {
  std::vector<std::pair<double, int32_t>> ranked;  // (-l/T, id): ascending is the ranking
  for (size_t v = 0; v < logits.size(); ++v)
    ranked.emplace_back(-(logits[v] / params.temperature), static_cast<int32_t>(v));
  std::sort(ranked.begin(), ranked.end());
  const double largest = -ranked.front().first;
  if (params.top_k > 0) ranked.resize(std::min(ranked.size(), static_cast<size_t>(params.top_k)));
  if (params.top_p < 1) {
    double total = 0, held = 0;
    for (const auto& [negative, id] : ranked) total += exp_exact(-negative - largest);
    size_t kept = 0;
    while (kept < ranked.size() && held < params.top_p * total) held += exp_exact(-ranked[kept++].first - largest);
    ranked.resize(std::max<size_t>(kept, 1));
  }
  double best = -std::numeric_limits<double>::infinity();
  int32_t token = -1;
  for (const auto& [negative, id] : ranked) {
    if (params.min_p > 0 && -negative < largest + std::log(params.min_p)) continue;
    const NoisePlace place{.seed = params.seed, .position = position, .choice = params.choice};
    const uint32_t x = noise_bits(place, static_cast<uint32_t>(id))[static_cast<size_t>(id % 4)];
    const double noisy = -negative + gumbel_of(x);
    if (noisy > best || (noisy == best && id < token)) {
      best = noisy;
      token = id;
    }
  }
  return token;
}

RC_GTEST_PROP(ChooseToken, EqualsTheRuleWithoutShortcuts, (uint64_t seed, uint32_t position)) {
  const auto values =
      *rc::gen::resize(60, rc::gen::nonEmpty(rc::gen::container<std::vector<int>>(rc::gen::inRange(-40, 40))));
  std::vector<float> logits;
  for (const int v : values) logits.push_back(static_cast<float>(v) * 0.5f);
  const SamplingParams params{.temperature = *rc::gen::element(0.1, 0.8, 1.0, 3.0),
                              .top_k = *rc::gen::element(0, 0, 1, 3, 70),
                              .top_p = *rc::gen::element(1.0, 0.999, 0.9, 0.5, 0.01),
                              .min_p = *rc::gen::element(0.0, 0.05, 0.5),
                              .seed = seed};
  RC_ASSERT(choose(logits, params, {.history = nullptr, .position = position, .mask = {}}) ==
            choose_by_the_book(logits, params, position));
}

// Long rows, where what is left out of the ranking counts: peaked and flat ones, with ties, with forbidden tokens.
TEST(ChooseToken, EqualsTheRuleWithoutShortcutsOnLongRows) {
  constexpr size_t kVocab = 3001;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (int round = 0; round < 60; ++round) {
    std::vector<float> logits(kVocab);
    const float spread = std::array{0.0f, 0.01f, 1.0f, 3.0f, 12.0f}[static_cast<size_t>(round % 5)];
    const float grain = round % 2 == 0 ? 0.0f : 0.25f;
    for (float& l : logits) {
      l = spread * normal(random);
      if (grain > 0) l = grain * std::round(l / grain);
    }
    for (int i = 0; i < round % 7; ++i) logits[random() % kVocab] += 9;
    if (round % 3 == 0) logits[random() % kVocab] = -std::numeric_limits<float>::infinity();
    for (const double temperature : {0.6, 1.0, 1.5}) {
      for (const auto& [k, p] : std::initializer_list<std::pair<int64_t, double>>{
               {0, 1.0}, {0, 0.95}, {0, 0.3}, {0, 0.999999}, {40, 1.0}, {40, 0.9}, {2000, 1.0}}) {
        const SamplingParams params{.temperature = temperature, .top_k = k, .top_p = p, .seed = 7};
        const uint32_t position = static_cast<uint32_t>(round);
        EXPECT_EQ(choose(logits, params, {.history = nullptr, .position = position, .mask = {}}),
                  choose_by_the_book(logits, params, position))
            << round << ", T " << temperature << ", k " << k << ", p " << p;
      }
    }
  }
}

// The whole set that is kept, not only the token chosen from it, where a sum all but meets its share.
TEST(LogitRow, KeepsTheShortestPrefixThatHoldsTheShare) {
  for (const size_t n : {4u, 64u, 1000u, 4096u}) {
    const std::vector<float> equal(n, 1.5f);
    for (const double p : {0.25, 0.5, 0.75}) {
      for (const double more : {-1e-12, 0.0, 1e-12}) {
        const std::vector<Candidate> kept = LogitRow<float>(equal).survivors(0.7, 0, p + more, 0);
        ASSERT_EQ(kept.size(), static_cast<size_t>(static_cast<double>(n) * p) + (more > 0 ? 1 : 0)) << n << " " << p;
        for (size_t i = 0; i < kept.size(); ++i) EXPECT_EQ(kept[i].token, static_cast<int32_t>(i));
      }
    }
  }
}

TEST(GumbelBound, IsNeverBelowTheNoise) {
  std::mt19937 random(2);
  for (int i = 0; i < 100000; ++i) {
    const uint32_t x =
        i < 40 ? ~0u - static_cast<uint32_t>(i) : static_cast<uint32_t>(random()) | ~(~0u >> (i % 33 % 32));
    ASSERT_LE(gumbel_of(x), gumbel_bound(x)) << x;
  }
}

TEST(SamplingPlan, RefusesWhatIsOutOfRangeByNameAndValue) {
  const auto message = [](const SamplingParams& params) {
    const Result<SamplingPlan> plan = SamplingPlan::make(params, 10);
    return plan.ok() ? std::string() : plan.error().message;
  };
  EXPECT_EQ(message({}), "");
  EXPECT_NE(message({.temperature = -1}).find("temperature is -1"), std::string::npos);
  EXPECT_NE(message({.temperature = 1e308}).find("temperature is 1e+308, expected a number from 0 to 100"),
            std::string::npos);
  EXPECT_NE(message({.temperature = std::nan("")}).find("temperature"), std::string::npos);
  EXPECT_NE(message({.top_k = -2}).find("top_k is -2"), std::string::npos);
  EXPECT_NE(message({.top_p = 0}).find("top_p is 0"), std::string::npos);
  EXPECT_NE(message({.top_p = 1.1}).find("top_p is 1.1"), std::string::npos);
  EXPECT_NE(message({.min_p = 2}).find("min_p is 2"), std::string::npos);
  EXPECT_NE(message({.repetition_penalty = 0}).find("repetition_penalty is 0"), std::string::npos);
  EXPECT_NE(message({.repetition_penalty = 1e-308}).find("repetition_penalty is 1e-308"), std::string::npos);
  EXPECT_NE(message({.presence_penalty = 1e308}).find("presence_penalty is 1e+308"), std::string::npos);
  EXPECT_NE(message({.frequency_penalty = -101}).find("frequency_penalty is -101"), std::string::npos);
  EXPECT_NE(message({.logit_bias = {{1, std::numeric_limits<double>::infinity()}}}).find("a logit_bias is inf"),
            std::string::npos);
  EXPECT_NE(message({.logit_bias = {{10, 1.0}}}).find("token 10"), std::string::npos);
  EXPECT_NE(message({.stop_tokens = {-1}}).find("token -1"), std::string::npos);
}

TEST(SamplingPlan, RefusesListsThatLeaveNoToken) {
  std::vector<int32_t> all(10);
  std::iota(all.begin(), all.end(), 0);
  struct Row {
    SamplingParams params;
    const char* says;  // null: it is taken
  };
  for (const Row& row : std::initializer_list<Row>{
           {{.banned_tokens = all}, "all tokens of 10 are banned"},
           {{.banned_tokens = {5, 6, 5}, .allowed_tokens = {6, 5, 6}},
            "all tokens of allowed_token_ids of 2 are banned"},
           {{.allowed_tokens = {5}, .stop_tokens = {5}, .min_tokens = 1}, "min_tokens is 1, but every token"},
           {{.stop_tokens = all, .min_tokens = 3}, "min_tokens is 3, but every token"},
           {{.banned_tokens = {0, 1, 2, 3}, .stop_tokens = {3, 4, 5, 6, 7, 8, 9}, .min_tokens = 1}, "min_tokens is 1"},
           {{.allowed_tokens = {5}, .stop_tokens = {5}}, nullptr},
           {{.banned_tokens = {0, 1, 2}, .stop_tokens = {4, 5, 6, 7, 8, 9}, .min_tokens = 1}, nullptr},
           {{.allowed_tokens = {5, 6}, .stop_tokens = {5}, .min_tokens = 1}, nullptr}}) {
    const Result<SamplingPlan> plan = SamplingPlan::make(row.params, 10);
    EXPECT_EQ(plan.ok(), row.says == nullptr);
    if (!plan.ok()) {
      EXPECT_NE(plan.error().message.find(row.says), std::string::npos) << plan.error().message;
    }
  }
}

TEST(ChooseToken, ARowThatIsNoNumbersOrHasNothingLeftSaysSo) {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  const auto fault = [](const std::vector<float>& logits, const SamplingParams& params, TokenMask mask = {}) {
    const Choice choice = choose_token(logits, plan_of(params, logits.size()), {.mask = mask});
    EXPECT_EQ(choice.ok(), choice.token >= 0);
    return choice.fault;
  };
  for (const double temperature : {0.0, 0.7}) {
    const SamplingParams plain{.temperature = temperature}, banning{.temperature = temperature, .banned_tokens = {1}};
    for (const SamplingParams& params : {plain, banning}) {
      EXPECT_EQ(fault({1, kNan, 2}, params), RowFault::kNotNumbers);  // also where the ban would hide it
      EXPECT_EQ(fault({1, kInf, 2}, params), RowFault::kNotNumbers);
      EXPECT_EQ(fault({-kInf, -kInf, -kInf}, params), RowFault::kNotNumbers);
      EXPECT_EQ(fault({1, -kInf, 2}, params), RowFault::kNone);
    }
    const std::vector<uint64_t> only_banned = {0b010}, nothing = {0};
    EXPECT_EQ(fault({1, 2, 3}, banning, only_banned), RowFault::kNothingLeft);
    EXPECT_EQ(fault({1, 2, 3}, plain, nothing), RowFault::kNothingLeft);
  }
  EXPECT_EQ(max_prob(std::vector<float>{1, kNan}, 0), 0);
}

// Every field of sampling with values at and beyond its limits, alone and against each other, over answers of several
// tokens with rows of extreme logits: refused by name, or a token at every position that the lists allow.
TEST(SamplingPlan, AHundredThousandRequestsAreRefusedOrAnswered) {
  constexpr int64_t kVocab = 70;
  std::mt19937_64 random(2026);
  const auto below = [&](uint64_t n) { return static_cast<int64_t>(random() % n); };
  const auto number = [&](std::initializer_list<double> usual) {
    constexpr double kOdd[] = {0,    -0.0, 1,    1e-308, 1e308, -1e308, 5e-324, 1e-5, 9.9e-6, 100,
                               -100, 1000, 1e-3, 101,    -101,  1e300,  1e-300, 0.5,  3,      -2};
    const int64_t what = below(20);
    if (what == 0) return std::numeric_limits<double>::quiet_NaN();
    if (what == 1) return std::numeric_limits<double>::infinity();
    return what < 6 ? kOdd[below(std::size(kOdd))] : *(usual.begin() + below(usual.size()));
  };
  const auto tokens = [&](int64_t most) {
    std::vector<int32_t> out(below(3) == 0 ? static_cast<size_t>(below(static_cast<uint64_t>(most))) : 0);
    for (int32_t& token : out) token = static_cast<int32_t>(below(200) == 0 ? kVocab + below(3) - 1 : below(kVocab));
    return out;
  };
  const auto logit = [&]() -> float {
    constexpr float kOdd[] = {0.0f, -0.0f, 3.4e38f, -3.4e38f, 1e-45f, -std::numeric_limits<float>::infinity()};
    return below(30) == 0 ? kOdd[below(std::size(kOdd))] : static_cast<float>(below(2000)) / 100 - 10;
  };
  int64_t n_answered = 0, n_refused = 0, n_tokens = 0;
  for (int request = 0; request < 100'000; ++request) {
    SamplingParams params{.temperature = number({0, 0.7, 1, 2}),
                          .top_k = below(4) == 0 ? below(80) - 1 : 0,
                          .top_p = number({1, 1, 0.9, 1e-9}),
                          .min_p = number({0, 0, 0.1, 1}),
                          .repetition_penalty = number({1, 1.1, 1e-3, 1e3}),
                          .presence_penalty = number({0, 0, 100, -100}),
                          .frequency_penalty = number({0, 0, 100, -100}),
                          .banned_tokens = tokens(80),
                          .allowed_tokens = tokens(8),
                          .stop_tokens = tokens(80),
                          .min_tokens = below(3) == 0 ? below(5) : 0,
                          .seed = random(),
                          .choice = static_cast<uint32_t>(below(3))};
    for (const int32_t token : tokens(10)) params.logit_bias.emplace_back(token, number({1, -1, 100, -100}));
    const Result<SamplingPlan> plan = SamplingPlan::make(params, kVocab);
    if (!plan.ok()) {
      EXPECT_EQ(plan.error().kind, ErrorKind::kUsage);
      ++n_refused;
      continue;
    }
    ++n_answered;
    TokenHistory history;
    history.add_prompt(std::vector<int32_t>{1, 2, 3, static_cast<int32_t>(below(kVocab))});
    for (uint32_t position = 0; position < 4; ++position) {
      std::vector<float> logits(kVocab);
      for (float& l : logits) l = logit();
      std::vector<uint64_t> mask;  // of a structure, which may leave few tokens or none
      if (below(3) == 0) mask = {random() & random(), below(2) == 0 ? random() : 0};
      const auto in_mask = [&](int64_t token) { return mask.empty() || (mask[token / 64] >> (token % 64) & 1) != 0; };
      const ChoiceContext context{.history = &history, .position = position, .mask = mask};
      const Choice choice = choose_token(logits, *plan, context), again = choose_token(logits, *plan, context);
      ASSERT_EQ(choice.token, again.token);
      const auto in = [](const std::vector<int32_t>& list, int32_t token) {
        return std::find(list.begin(), list.end(), token) != list.end();
      };
      const auto is_left = [&](int32_t token) {
        const bool stops_too_soon = in(params.stop_tokens, token) && position < params.min_tokens;
        const bool allowed = params.allowed_tokens.empty() || in(params.allowed_tokens, token);
        return in_mask(token) && allowed && !in(params.banned_tokens, token) && !stops_too_soon;
      };
      if (!choice.ok()) {  // only where every token that is left has minus infinity
        ASSERT_EQ(choice.fault, RowFault::kNothingLeft);
        for (int32_t token = 0; token < kVocab; ++token) ASSERT_FALSE(is_left(token) && std::isfinite(logits[token]));
        break;
      }
      ASSERT_TRUE(is_left(choice.token));
      const bool stops = in(params.stop_tokens, choice.token);
      history.push(choice.token);
      ++n_tokens;
      if (stops) break;
    }
  }
  EXPECT_GT(n_answered, 10'000);
  EXPECT_GT(n_refused, 10'000);
  EXPECT_GT(n_tokens, 2 * n_answered);
}

// Blocks far below the largest are skipped, and a flat row ends early.
TEST(MaxProb, IsThatOfTheSoftmax) {
  std::mt19937 random(3);
  for (const float spread : {0.0f, 0.5f, 3.0f, 20.0f}) {
    for (const size_t n_vocab : {1u, 63u, 64u, 1000u, 5000u}) {
      std::normal_distribution<float> logit(-3, spread);
      std::vector<float> logits(n_vocab);
      for (float& l : logits) l = spread > 0 ? logit(random) : 1;
      if (n_vocab > 64) logits[70] = -std::numeric_limits<float>::infinity();
      const std::vector<double> p = softmax(logits, 1);
      const double share = *std::max_element(p.begin(), p.end());
      EXPECT_NEAR(max_prob(logits, 0), share, 1e-3 * share);
      EXPECT_NEAR(max_prob(logits, 0.99 * share), share, 1e-3 * share);
      EXPECT_EQ(max_prob(logits, 1.01 * share), 0);
    }
  }
}

// ---- rows that a device may choose from ----

ChosenToken chosen_by_op(const std::vector<float>& logits, const ChoiceRule& rule) {
  ThreadPool pool(1);
  Arena arena;
  CpuBackend cpu(pool, arena, Isa::kPlain);
  OpContext ctx = op_context(cpu);
  const auto n_vocab = static_cast<int64_t>(logits.size());
  const View rules = arena.allocate(DType::kI32, {1, kChoiceRuleWords});
  const View out = arena.allocate(DType::kI32, {1, kChosenTokenWords});
  std::memcpy(rules.bytes(), &rule, sizeof(rule));
  ops::choose_tokens(ctx, {.x = View::of(logits.data(), {1, n_vocab}), .rules = rules, .out = out});
  ChosenToken chosen;
  std::memcpy(&chosen, out.bytes(), sizeof(chosen));
  return chosen;
}

TEST(ChooseTokensOp, ChoosesAsTheRuleDoes) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, 3);
  for (int i = 0; i < 2000; ++i) {
    std::vector<float> logits(1 + random() % 200);
    for (float& l : logits) l = random() % 8 == 0 ? -std::numeric_limits<float>::infinity() : normal(random);
    if (i % 50 == 1) logits[random() % logits.size()] = std::numeric_limits<float>::quiet_NaN();
    if (i % 50 == 2) logits[random() % logits.size()] = std::numeric_limits<float>::infinity();
    if (i % 3 == 0) logits.push_back(*std::max_element(logits.begin(), logits.end()));
    const SamplingParams params{.temperature = i % 4 == 0 ? 0 : 0.1 * (1 + i % 20),
                                .seed = random(),
                                .choice = static_cast<uint32_t>(random() % 4)};
    const auto position = static_cast<uint32_t>(random());
    const SamplingPlan plan = plan_of(params, logits.size());
    ASSERT_TRUE(plan.by_logits_alone(0));
    const Choice expected = choose_token(logits, plan, {.history = nullptr, .position = position, .mask = {}});
    const ChosenToken found = chosen_by_op(
        logits,
        {.seed = params.seed, .temperature = params.temperature, .position = position, .choice = params.choice});
    EXPECT_EQ(found.sound != 0, expected.ok()) << i;
    EXPECT_EQ(found.token, expected.ok() ? expected.token : 0) << i;
    EXPECT_NEAR(found.probability, max_prob(logits, 0), 1e-3) << i;
  }
}

TEST(SamplingPlan, SaysWhereLogitsAndPlaceAreAll) {
  const auto alone = [](const SamplingParams& params, int64_t n_answer_tokens = 0) {
    return plan_of(params, 10).by_logits_alone(n_answer_tokens);
  };
  EXPECT_TRUE(alone({.temperature = 0.7, .seed = 3}));
  EXPECT_TRUE(alone({.temperature = 0, .top_k = 4, .top_p = 0.5, .min_p = 0.1})) << "no cut takes the largest away";
  EXPECT_FALSE(alone({.top_k = 4}));
  EXPECT_FALSE(alone({.top_p = 0.9}));
  EXPECT_FALSE(alone({.min_p = 0.1}));
  EXPECT_FALSE(alone({.temperature = 0, .repetition_penalty = 1.1}));
  EXPECT_FALSE(alone({.temperature = 0, .presence_penalty = 0.1}));
  EXPECT_FALSE(alone({.temperature = 0, .frequency_penalty = 0.1}));
  EXPECT_FALSE(alone({.temperature = 0, .logit_bias = {{3, 1.0}}}));
  EXPECT_FALSE(alone({.temperature = 0, .banned_tokens = {3}}));
  EXPECT_FALSE(alone({.temperature = 0, .allowed_tokens = {3}}));
  const SamplingParams long_enough{.temperature = 0, .stop_tokens = {3}, .min_tokens = 5};
  EXPECT_FALSE(alone(long_enough, 4));
  EXPECT_TRUE(alone(long_enough, 5));
}

TEST(RowLogprobs, AreTheLogSoftmaxInRank) {
  const std::vector<float> logits = {0.5f, 2.0f, 2.0f, -1.0f};
  const RowLogprobs row = row_logprobs(logits, 3, 3);
  const std::vector<double> p = softmax(logits, 1);
  EXPECT_NEAR(row.chosen.logprob, std::log(p[3]), 1e-14);
  ASSERT_EQ(row.top.size(), 3u);
  EXPECT_EQ(row.top[0].token, 1);
  EXPECT_EQ(row.top[1].token, 2);
  EXPECT_EQ(row.top[2].token, 0);
  EXPECT_NEAR(row.top[2].logprob, std::log(p[0]), 1e-14);
}

}  // namespace
}  // namespace levin
