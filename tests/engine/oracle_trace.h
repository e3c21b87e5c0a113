// A trace against the oracle of its fixture, for whatever device ran it.
//
// Tolerance: 2e-5 of a tensor's largest magnitude. Relative noise of 3e-7 on every product (f32 rounding in another
// order) moves no value of these fixtures by more than 6e-6 and changes no pick; a wrong formula moves them by 1e-2 and
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
                                              "glm-shared", "glm-pattern", "v4-flash",     "v4-fp4"};

// Of families that have no kernels for CUDA.
inline const char* const kCpuOracleFixtures[] = {"glm-next"};

inline TraceOptions oracle_options(const Oracle& oracle, int64_t n_chunk_tokens) {
  const std::vector<int64_t> ids = oracle.values<int64_t>("input_ids");
  return {.ids = std::vector<int32_t>(ids.begin(), ids.end()),
          .n_greedy = 16,
          .n_drafts = 3,
          .n_chunk_tokens = n_chunk_tokens};
}

inline void expect_reference(const TraceResult& result, const Oracle& oracle, const ModelConfig& config) {
  EXPECT_LE(relative_error(result.logits, oracle.values<float>("logits")), kOracleTolerance);
  EXPECT_LE(relative_error(result.hidden_tail, oracle.values<float>("hidden_tail")), kOracleTolerance);
  for (int layer = 0; layer < config.n_layers; ++layer) {
    const std::string name = fmt::format("topk.{}", layer);
    ASSERT_EQ(config.has_indexer(layer), oracle.has(name)) << layer;
    if (!oracle.has(name)) continue;
    EXPECT_EQ(shared_picks(result.topk[layer], oracle.values<int32_t>(name), config.n_picks), 1.0) << layer;
  }
  EXPECT_EQ(result.greedy_ids, oracle.values<int64_t>("greedy_ids"));
  EXPECT_LE(relative_error(result.draft1_logits, oracle.values<float>("draft1.logits")), kOracleTolerance);
  ASSERT_EQ(!result.draft1_topk.empty(), oracle.has("draft1.topk"));
  if (oracle.has("draft1.topk")) {
    EXPECT_EQ(shared_picks(result.draft1_topk, oracle.values<int32_t>("draft1.topk"), config.n_picks), 1.0);
  }
  EXPECT_EQ(result.draft_tokens, oracle.values<int64_t>("draft.tokens"));
  EXPECT_LE(relative_error(result.draft_logits, oracle.values<float>("draft.logits")), kOracleTolerance);
}

inline void expect_same_bits(const TraceResult& result, const TraceResult& base) {
  EXPECT_EQ(result.logits, base.logits);
  EXPECT_EQ(result.hidden_tail, base.hidden_tail);
  EXPECT_EQ(result.topk, base.topk);
  EXPECT_EQ(result.greedy_ids, base.greedy_ids);
  EXPECT_EQ(result.draft1_logits, base.draft1_logits);
  EXPECT_EQ(result.draft1_topk, base.draft1_topk);
  EXPECT_EQ(result.draft_logits, base.draft_logits);
}

}  // namespace levin::test
