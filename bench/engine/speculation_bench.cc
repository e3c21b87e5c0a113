// bench_speculation [MODEL] [SET] [ROUNDS]: decode speed on a set of prompts (tests/engine/prompts.jsonl) by depth of
// drafts, greedy. Every prompt is answered with every depth in turn, so that all depths see the same machine, also one
// whose speed changes from second to second; a prompt counts with the median of its rounds. Each depth has a model of its
// own, which the others drive from the caches, so it answers twice and the second answer counts. The last row adapts the
// depth by itself.
#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>

#include "base/check.h"
#include "engine/engine.h"
#include "engine/prompt_sets.h"
#include "support/must.h"

namespace levin {
namespace {

constexpr int64_t kMostTokens = 96;

struct Depth {
  int n_drafts = 0;
  bool adapts = false;
  std::unique_ptr<Engine> engine;
  std::vector<std::vector<double>> seconds;  // of each prompt's answer, a round each
  std::vector<int64_t> n_tokens;             // of each answer, without the first
  SpeculationStats total;

  Depth(const EngineOptions& options, size_t n_prompts)
      : n_drafts(options.n_spec_steps),
        adapts(options.adapt_spec_depth),
        engine(test::must(Engine::load(options, {}))),
        seconds(n_prompts),
        n_tokens(n_prompts) {}
};

Generation answer(Depth& depth, const std::vector<int32_t>& prompt) {
  GenerateRequest request{.prompt = prompt, .max_tokens = kMostTokens};
  request.sampling = {.temperature = 0, .stop_tokens = depth.engine->config().eos_tokens};
  return test::must(depth.engine->generate(std::move(request)));
}

void time_answer(Depth& depth, size_t i, const std::vector<int32_t>& prompt) {
  answer(depth, prompt);
  const Generation done = answer(depth, prompt);
  depth.seconds[i].push_back(done.decode_s);
  depth.n_tokens[i] = std::ssize(done.tokens) - 1;
  depth.total.n_kept += done.speculation.n_kept;
  depth.total.n_verify_passes += done.speculation.n_verify_passes;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + std::ssize(values) / 2, values.end());
  return values[values.size() / 2];
}

double tokens_per_s(const Depth& depth) {
  double seconds = 0;
  for (const std::vector<double>& of_prompt : depth.seconds) seconds += median(of_prompt);
  return static_cast<double>(std::reduce(depth.n_tokens.begin(), depth.n_tokens.end())) / seconds;
}

void run(const std::string& folder, const std::string& set, int n_rounds) {
  const std::vector<std::vector<int32_t>> prompts = test::prompt_set(set, folder);
  LEVIN_CHECK(!prompts.empty(), "there is no set '{}' of prompts", set);
  std::vector<Depth> depths;
  for (const int n_drafts : {0, 1, 2, 3, 4, 3}) {
    EngineOptions options{.model_folder = folder, .n_threads = cpu_info().n_cores, .max_model_len_tokens = 2048};
    options.n_spec_steps = n_drafts;
    options.adapt_spec_depth = n_drafts == 3 && !depths.empty() && depths.back().n_drafts == 4;
    depths.emplace_back(options, prompts.size());
  }
  for (int round = 0; round < n_rounds; ++round) {
    for (size_t i = 0; i < prompts.size(); ++i) {
      for (Depth& depth : depths) time_answer(depth, i, prompts[i]);
    }
  }
  fmt::print("{}, set {}, {} prompts, median of {} rounds\n{:>8} {:>10} {:>10} {:>10}\n", folder, set, prompts.size(),
             n_rounds, "drafts", "tokens/s", "of plain", "kept/pass");
  const double plain = tokens_per_s(depths.front());
  for (const Depth& depth : depths) {
    const double speed = tokens_per_s(depth);
    fmt::print("{:>8} {:>10.1f} {:>10.2f} {:>10.2f}\n", depth.adapts ? "adapts" : std::to_string(depth.n_drafts), speed,
               speed / plain, depth.total.mean_accept_length());
  }
}

}  // namespace
}  // namespace levin

int main(int argc, char** argv) {
  levin::run(argc > 1 ? argv[1] : LEVIN_SOURCE_DIR "/models/demo-v32", argc > 2 ? argv[2] : "eighty",
             argc > 3 ? std::atoi(argv[3]) : 5);
  return 0;
}
