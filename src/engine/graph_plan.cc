#include "engine/graph_plan.h"

#include <algorithm>

namespace levin {
namespace {

// Upper estimates: 792 graphs of 4, 12 and 61 layers took 178, 280 and 1054 MiB on an H200, of 12 layers on the plain kernels 462.
// A layer of DeepSeek-V3.2 is 18 tuned kernels.
constexpr int64_t kGraphBytes = int64_t{112} << 10;  // by itself
constexpr int64_t kTunedLayerBytes = int64_t{64} << 10;
constexpr int64_t kPlainLayerBytes = int64_t{128} << 10;

std::vector<PassForm> pass_forms(const GraphLimits& limits) {
  std::vector<PassForm> forms = {PassForm::kTrunk};
  if (limits.drafts_blocks) return forms;
  if (limits.n_drafts > 0) forms.insert(forms.end(), {PassForm::kMtpWanted, PassForm::kMtpAppend});
  if (limits.n_drafts > 1) {
    forms.push_back(limits.shares_topk ? PassForm::kMtpWithPicks : PassForm::kMtp);
    forms.push_back(limits.shares_topk ? PassForm::kDraftsWithPicks : PassForm::kDrafts);
  }
  return forms;
}

// All that a form's rows and pages allow.
void add_passes(PassForm form, StepShape shape, std::vector<PassKey>& passes) {
  const auto add = [&] { passes.push_back({form, shape}); };
  if (gives_drafts(form) && shape.n_rows > kDeviceHeadRows) return;
  if (form != PassForm::kMtpWanted) return add();
  int64_t last = 0;  // few rows have fewer counts
  for (const int64_t n_wanted : wanted_counts(shape.n_rows)) {
    if (n_wanted == last) continue;
    last = shape.n_wanted = n_wanted;
    add();
  }
}

// Of one sequence several rows see the caches in the trunk alone.
void add_passes_of_chunks(StepShape shape, std::vector<PassKey>& passes) {
  const int64_t longest = std::min<int64_t>(shape.n_rows, kMostRowsTogether);
  for (int64_t chunk = 2; chunk <= longest; chunk = rows_together(chunk) + 1) {
    shape.rows_together = rows_together(chunk);
    passes.push_back({PassForm::kTrunk, shape});
  }
}

}  // namespace

GraphPlan plan_graphs(const GraphLimits& limits) {
  GraphPlan plan;
  const std::vector<PassForm> forms = pass_forms(limits);
  const int64_t last_pages = padded_pages((limits.n_tokens + kPageTokens - 1) / kPageTokens);
  for (int64_t n_rows = 1; n_rows <= kMostGraphRows; n_rows = padded_rows(n_rows + 1)) {
    const int64_t n_sequences = std::min(n_rows, limits.n_sequences);
    for (int64_t n_pages = padded_pages(1); n_pages <= last_pages; n_pages = padded_pages(n_pages + 1)) {
      const StepShape shape{.n_rows = n_rows, .n_sequences = n_sequences, .n_pages = n_pages};
      for (const PassForm form : forms) add_passes(form, shape, plan.passes);
      add_passes_of_chunks(shape, plan.passes);
    }
    if (n_rows > kDeviceHeadRows) continue;
    plan.heads.push_back({.of_drafts = false, .n_rows = n_rows});
    if (limits.n_drafts > 0) plan.heads.push_back({.of_drafts = true, .n_rows = n_rows});
  }
  return plan;
}

int64_t graphs_bytes(const GraphPlan& plan, int64_t n_layers, bool tuned) {
  const int64_t layer_bytes = tuned ? kTunedLayerBytes : kPlainLayerBytes;
  int64_t n_bytes = kGraphBytes * std::ssize(plan.heads);
  for (const PassKey& key : plan.passes)
    n_bytes += kGraphBytes + layer_bytes * (key.form == PassForm::kTrunk ? n_layers : 1);
  return n_bytes;
}

}  // namespace levin
