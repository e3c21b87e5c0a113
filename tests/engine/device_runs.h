// Answers and decode rows of a model on whatever runs it, for comparing their bits under all circumstances that must not show.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/runner.h"
#include "engine/step_loop.h"

namespace levin::test {

using Ids = std::vector<int32_t>;

Ids random_ids(uint32_t seed, size_t n, int64_t n_vocab);

// ---- answers ----

std::vector<Ids> prompts_for(const Model& model);

struct Circumstances {
  int n_spec_steps = 0;
  int64_t max_running = 1;
  int64_t chunk_tokens = 64;
  bool overlap = false;
};

constexpr int64_t kAnswerTokens = 24;
constexpr int64_t kContextTokens = 512;

std::vector<std::unique_ptr<Generation>> answer(Runner& runner, const std::vector<Ids>& prompts,
                                                const Circumstances& c);
std::vector<Ids> tokens_of(const std::vector<std::unique_ptr<Generation>>& answers);

// ---- decode rows ----

// After chunks that are cut as `chunk_tokens` says, in a batch with others, and drafts.
struct GraphRun {
  bool graphs = true;
  int64_t chunk_tokens = 64;
  size_t n_company = 0;
};

// Of a text of n_text_tokens: logits of the last three, which are verified together, then hidden rows and draft logits of
// three MTP steps after them, or of a block of drafts.
std::vector<float> bits_of(const Model& model, RunnerOptions options, const GraphRun& run, size_t n_text_tokens = 97);

}  // namespace levin::test
