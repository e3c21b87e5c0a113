// Trials of prefix hits: requests whose prompts begin alike, through one loop in circumstances drawn at random. Every answer must
// be that of its request alone, without prefix cache, drafts or company.
//
// Drawn     prompts that share beginnings and end at, just before or just after a block, a chunk or a step; chunk and step
//           sizes, 0 to 5 drafts, sequences at a time, pages (few: preemption), records in host memory, orders of the loop
// Decided   by random numbers, or by the input of a fuzzer
#pragma once

#include <cstdint>
#include <map>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/runner.h"
#include "engine/step_loop.h"

namespace levin::test {

class Decisions {
 public:
  explicit Decisions(uint64_t seed) : random_(seed) {}
  explicit Decisions(std::span<const uint8_t> bytes) : bytes_(bytes), from_bytes_(true) {}  // then zeros

  int64_t below(int64_t n);
  bool one_in(int64_t n) { return below(n) == n - 1; }
  template <class T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[below(static_cast<int64_t>(values.size()))];
  }

 private:
  std::mt19937_64 random_;
  std::span<const uint8_t> bytes_;
  bool from_bytes_ = false;
};

// What trials ran into, all together.
struct TrialCounts {
  int64_t n_answers = 0;
  int64_t n_hit_tokens = 0;  // in pages and in records
  int64_t n_preempted = 0;
  int64_t n_drafts_accepted = 0;
  int64_t n_drafted = 0;
};

class PrefixTrials {
 public:
  static constexpr int64_t kContext = 448;

  // `model` must outlive it. `options`: where and how it runs; what trials vary does not count.
  PrefixTrials(const Model& model, const RunnerOptions& options);

  // One trial. -> a line for each answer that is another, or an error; empty where all are right.
  std::string run(Decisions& decisions);

  const TrialCounts& counts() const { return counts_; }
  size_t n_kept_answers() const { return alone_.size(); }  // of requests alone, which are not computed again

 private:
  using Tokens = std::vector<int32_t>;
  struct Trial;

  Tokens draw_prompt(Decisions& decisions, int64_t chunk_tokens) const;
  GenerateRequest draw_request(Decisions& decisions, int64_t chunk_tokens) const;
  const Tokens& answer_alone(const GenerateRequest& request);
  std::string judge(const GenerateRequest& request, const Generation& done);

  const Model& model_;
  RunnerOptions options_;
  Runner roomy_;
  std::vector<Tokens> texts_;
  std::map<std::pair<Tokens, uint64_t>, Tokens> alone_;  // by prompt and seed; 0: greedy
  TrialCounts counts_;
};

}  // namespace levin::test
