// Time to choose the tokens of a step on the host: 16 rows of a vocabulary of 129280, as a trained model gives them (most
// tokens far below a few likely ones) and flat ones.
#include <benchmark/benchmark.h>

#include <random>
#include <string>
#include <vector>

#include "decode/sampling.h"

namespace {

using namespace levin;

constexpr size_t kVocab = 129280, kRows = 16;

std::vector<std::vector<float>> rows(bool flat) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> out(kRows, std::vector<float>(kVocab));
  for (std::vector<float>& row : out) {
    for (float& logit : row) logit = flat ? 0.1f * normal(random) : 2.5f * normal(random);
    for (int i = 0; i < 30 && !flat; ++i) row[random() % kVocab] = 16.0f + 2.0f * normal(random);
  }
  return out;
}

void choose(benchmark::State& state, const SamplingParams& params, bool flat) {
  const std::vector<std::vector<float>> logits = rows(flat);
  const SamplingPlan plan = *SamplingPlan::make(params, kVocab);
  TokenHistory history;
  uint32_t position = 0;
  for (auto _ : state) {
    for (const std::vector<float>& row : logits) {
      benchmark::DoNotOptimize(choose_token(row, plan, {.history = &history, .position = position, .mask = {}}));
    }
    ++position;
  }
}

void add(const std::string& name, const SamplingParams& params) {
  for (const bool flat : {false, true}) {
    benchmark::RegisterBenchmark((name + (flat ? ", flat" : "")).c_str(), choose, params, flat)
        ->Unit(benchmark::kMicrosecond);
  }
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  add("greedy", {.temperature = 0});
  add("T 1", {.temperature = 1});
  add("T 0.6, top-p 0.95", {.temperature = 0.6, .top_p = 0.95});
  add("T 1, top-p 0.95", {.temperature = 1, .top_p = 0.95});
  add("T 1, top-k 50", {.temperature = 1, .top_k = 50});
  add("T 1, min-p 0.05", {.temperature = 1, .min_p = 0.05});
  add("T 1, top-p 0.95, presence penalty", {.temperature = 1, .top_p = 0.95, .presence_penalty = 0.5});
  benchmark::RunSpecifiedBenchmarks();
}
