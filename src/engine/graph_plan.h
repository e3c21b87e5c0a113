// Which passes a runner records as CUDA graphs, and the device memory that these take.
//
// A graph serves all steps of a padded shape. How long contexts get and how many sequences run are the only things that the
// number of graphs depends on, so it is known before anything is loaded.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/build_step.h"

namespace levin {

constexpr int64_t kMostGraphRows = 128;  // of a recorded pass
constexpr int64_t kDeviceHeadRows = 64;  // of one call of the head on a device

// A pass through trunk or MTP layer: which of its rows come out, and what goes in. Drafts: with the head for them.
enum class PassForm : uint8_t { kTrunk, kMtp, kMtpWithPicks, kMtpWanted, kMtpAppend, kDrafts, kDraftsWithPicks };
constexpr bool gives_drafts(PassForm form) { return form == PassForm::kDrafts || form == PassForm::kDraftsWithPicks; }
constexpr bool takes_picks(PassForm form) {
  return form == PassForm::kMtpWithPicks || form == PassForm::kDraftsWithPicks;
}

struct PassKey {
  PassForm form = PassForm::kTrunk;
  StepShape shape;
  auto operator<=>(const PassKey&) const = default;
};

struct HeadKey {
  bool of_drafts = false;
  int64_t n_rows = 0;
  auto operator<=>(const HeadKey&) const = default;
};

struct GraphLimits {
  int64_t n_sequences = 1;     // at a time
  int64_t n_tokens = 1;        // of all caches
  int n_drafts = 0;            // of a round; 0 of a model without layers that draft
  bool drafts_blocks = false;  // by a block drafter: no pass of an MTP layer
  bool shares_topk = false;    // ModelConfig::share_topk_across_drafts
};

struct GraphPlan {
  std::vector<PassKey> passes;
  std::vector<HeadKey> heads;
};

// All that steps within these limits may ask for.
GraphPlan plan_graphs(const GraphLimits& limits);

// The device memory of the graphs: an upper estimate by the number of layers that each runs through, of tuned kernels or plain ones.
int64_t graphs_bytes(const GraphPlan& plan, int64_t n_layers, bool tuned);

}  // namespace levin
