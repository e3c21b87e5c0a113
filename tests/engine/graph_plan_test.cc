#include "engine/graph_plan.h"

#include <gtest/gtest.h>

#include <set>

namespace levin::test {
namespace {

GraphLimits limits(int n_drafts) { return {.n_sequences = 8, .n_tokens = 163'840, .n_drafts = n_drafts}; }

int64_t n_graphs(const GraphPlan& plan) { return std::ssize(plan.passes) + std::ssize(plan.heads); }

TEST(PlanGraphs, NamesEachOnce) {
  for (const int n_drafts : {0, 1, 3}) {
    for (const bool shares_topk : {false, true}) {
      GraphLimits some = limits(n_drafts);
      some.shares_topk = shares_topk;
      const GraphPlan plan = plan_graphs(some);
      EXPECT_EQ(std::set<PassKey>(plan.passes.begin(), plan.passes.end()).size(), plan.passes.size());
      EXPECT_EQ(std::set<HeadKey>(plan.heads.begin(), plan.heads.end()).size(), plan.heads.size());
      for (const PassKey& key : plan.passes) EXPECT_LE(key.shape.n_sequences, 8);
    }
  }
}

TEST(PlanGraphs, OfModelsWithoutDraftsAreTheTrunk) {
  for (const PassKey& key : plan_graphs(limits(0)).passes) EXPECT_EQ(key.form, PassForm::kTrunk);
  for (const HeadKey& key : plan_graphs(limits(0)).heads) EXPECT_FALSE(key.of_drafts);
}

// A block drafter's own pass is never recorded; its drafts come from the head for them.
TEST(PlanGraphs, OfABlockDrafterHaveNoPassOfAnMtpLayer) {
  GraphLimits some = limits(3);
  some.drafts_blocks = true;
  const GraphPlan plan = plan_graphs(some);
  EXPECT_EQ(plan.passes, plan_graphs(limits(0)).passes);
  EXPECT_EQ(plan.heads, plan_graphs(limits(3)).heads);
}

// DeepSeek-V3.2 on an H200, 2026-11-27: layers, drafts, tuned kernels, and the MiB by which free memory fell.
TEST(PlanGraphs, TakeAtLeastWhatACardGave) {
  struct Row {
    int64_t n_layers;
    int n_drafts;
    bool tuned;
    int64_t n_graphs;
    double mib;
  };
  for (const Row& row : {Row{61, 3, true, 792, 1054}, Row{61, 0, true, 306, 980}, Row{12, 3, true, 792, 280},
                         Row{4, 3, true, 792, 178}, Row{4, 0, true, 306, 80}, Row{12, 3, false, 792, 462}}) {
    const GraphPlan plan = plan_graphs(limits(row.n_drafts));
    EXPECT_EQ(n_graphs(plan), row.n_graphs);
    const double planned_mib = static_cast<double>(graphs_bytes(plan, row.n_layers, row.tuned)) / (1 << 20);
    EXPECT_GE(planned_mib, row.mib) << row.n_layers << " layers";
    EXPECT_LE(planned_mib, 1.5 * row.mib) << row.n_layers << " layers";
  }
}

}  // namespace
}  // namespace levin::test
