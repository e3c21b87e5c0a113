// A trace against the oracle of its fixture, for whatever device ran it.
//
// Tolerance: 2e-5 of a tensor's largest magnitude. Relative noise of 3e-7 on every product (f32 rounding in another
// order) moves no value of these fixtures by more than 6e-6 and changes no index; a wrong formula moves them by 1e-2 and
// more.
#pragma once

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/oracle.h"
#include "engine/trace.h"

namespace levin::test {

constexpr double kOracleTolerance = 2e-5;

inline const char* const kOracleFixtures[] = {"v32-odd",    "v32-fp8",     "v32-official", "v32-shared",
                                              "glm-shared", "glm-pattern", "glm-nvfp4",    "glm-next",
                                              "v4-flash",   "v4-fp4",      "v4-dspark"};

// Of families that have no kernels for CUDA.
inline const char* const kCpuOracleFixtures[] = {"v41-flash"};

inline TraceOptions oracle_options(const Oracle& oracle, int64_t n_chunk_tokens) {
  const std::vector<int64_t> ids = oracle.values<int64_t>("input_ids");
  return {.ids = std::vector<int32_t>(ids.begin(), ids.end()),
          .n_greedy = static_cast<int>(oracle.values<int64_t>("greedy_ids").size()),
          .n_drafts = static_cast<int>(oracle.values<int64_t>("draft.tokens").size()),
          .n_chunk_tokens = n_chunk_tokens};
}

// What a block drafter takes of the trunk, and its rounds.
inline void expect_reference_blocks(const TraceResult& result, const Oracle& oracle) {
  const auto expect_close = [&oracle](const std::vector<float>& found, const std::string& name) {
    EXPECT_LE(relative_error(found, oracle.values<float>(name)), kOracleTolerance) << name;
  };
  expect_close(result.main_hidden, "dspark.main_hidden");
  expect_close(result.main_x, "dspark.main_x");
  for (size_t s = 0; s < result.context.size(); ++s)
    expect_close(result.context[s], fmt::format("dspark.context.{}", s));
  expect_close(result.draft_confidence, "draft.confidence");
  ASSERT_EQ(result.rounds.accepted, oracle.values<int64_t>("rounds.accepted"));
  EXPECT_EQ(result.rounds.tokens, oracle.values<int64_t>("rounds.tokens"));
  expect_close(result.rounds.logits, "rounds.logits");
  expect_close(result.rounds.confidence, "rounds.confidence");
}

inline void expect_reference(const TraceResult& result, const Oracle& oracle, const ModelConfig& config) {
  EXPECT_LE(relative_error(result.logits, oracle.values<float>("logits")), kOracleTolerance);
  EXPECT_LE(relative_error(result.hidden_tail, oracle.values<float>("hidden_tail")), kOracleTolerance);
  for (int layer = 0; layer < config.n_layers; ++layer) {
    const std::string name = fmt::format("topk.{}", layer);
    ASSERT_EQ(config.has_indexer(layer), oracle.has(name)) << layer;
    if (!oracle.has(name)) continue;
    EXPECT_EQ(shared_topk(result.topk[layer], oracle.values<int32_t>(name), config.n_topk), 1.0) << layer;
  }
  EXPECT_EQ(result.greedy_ids, oracle.values<int64_t>("greedy_ids"));
  ASSERT_EQ(!result.draft1_logits.empty(), oracle.has("draft1.logits"));
  if (oracle.has("draft1.logits")) {
    EXPECT_LE(relative_error(result.draft1_logits, oracle.values<float>("draft1.logits")), kOracleTolerance);
  }
  ASSERT_EQ(!result.draft1_topk.empty(), oracle.has("draft1.topk"));
  if (oracle.has("draft1.topk")) {
    EXPECT_EQ(shared_topk(result.draft1_topk, oracle.values<int32_t>("draft1.topk"), config.n_topk), 1.0);
  }
  EXPECT_EQ(result.draft_tokens, oracle.values<int64_t>("draft.tokens"));
  EXPECT_LE(relative_error(result.draft_logits, oracle.values<float>("draft.logits")), kOracleTolerance);
  ASSERT_EQ(!result.main_x.empty(), oracle.has("dspark.main_x"));
  if (oracle.has("dspark.main_x")) expect_reference_blocks(result, oracle);
}

inline void expect_same_bits(const TraceResult& result, const TraceResult& base) {
  EXPECT_EQ(result.logits, base.logits);
  EXPECT_EQ(result.hidden_tail, base.hidden_tail);
  EXPECT_EQ(result.topk, base.topk);
  EXPECT_EQ(result.greedy_ids, base.greedy_ids);
  EXPECT_EQ(result.draft1_logits, base.draft1_logits);
  EXPECT_EQ(result.draft1_topk, base.draft1_topk);
  EXPECT_EQ(result.draft_logits, base.draft_logits);
  EXPECT_EQ(result.main_hidden, base.main_hidden);
  EXPECT_EQ(result.main_x, base.main_x);
  EXPECT_EQ(result.context, base.context);
  EXPECT_EQ(result.rounds.tokens, base.rounds.tokens);
  EXPECT_EQ(result.rounds.logits, base.rounds.logits);
  EXPECT_EQ(result.rounds.confidence, base.rounds.confidence);
  EXPECT_EQ(result.rounds.accepted, base.rounds.accepted);
}

}  // namespace levin::test
