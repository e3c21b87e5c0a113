// How answers are chosen and how far ahead the MTP layer drafts: the options that run, bench, eval and serve share.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/levin/options.h"
#include "decode/sampling.h"
#include "engine/options.h"

namespace levin::app {

struct GenerationOptions {
  SamplingParams sampling;                // stop tokens: the model's ends of an answer, none with --ignore-eos
  std::vector<int32_t> eos_tokens;        // the model's ends of an answer
  std::optional<int64_t> n_top_logprobs;  // besides the chosen token's; empty: no logprobs
  bool random_seed = true;                // no --seed: a random one for every request
  int64_t max_tokens = 0;                 // 0: as the context holds
  std::vector<std::string> stop_strings;  // in the answer's text; reasoning and calls are not looked at
};

// Adds the sampling options. What is not given comes from the model's generation_config.json, then from the defaults of
// SamplingParams. Complete when the command's action runs; `engine` must be complete before, so call
// add_engine_options() first.
std::shared_ptr<GenerationOptions> add_generation_options(Command& command, std::shared_ptr<EngineOptions> engine);

// Adds --spec, --spec-steps, --spec-p-min, --spec-width; they set engine->n_spec_steps, adapt_spec_depth and
// min_confidence. A number of steps that is given is the depth of every round; without one the depth adapts.
void add_speculation_options(Command& command, std::shared_ptr<EngineOptions> engine);

uint64_t fresh_seed();

}  // namespace levin::app
