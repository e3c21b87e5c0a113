// The promise "the same tokens, always", as data: the choices that must not show in an answer, and runs over
// combinations of them.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/loaded_model.h"

namespace levin::test {

constexpr std::array<double, 2> kTemperatures = {0, 0.8};
constexpr std::array<NumericsMode, 3> kAllNumerics = {NumericsMode::kReference, NumericsMode::kOfficial,
                                                      NumericsMode::kFast};
constexpr int kMaxDrafts = 5;

struct Circumstance {
  double temperature = 0;  // these two may show: answers are compared within one pair of them
  NumericsMode numerics = NumericsMode::kFast;
  int n_threads = 1;  // these may not
  int64_t chunk_tokens = 64;
  int n_spec_steps = 0;
  bool adapt_depth = false;  // of drafts; by the clock, so no two runs are alike
  bool in_company = false;   // with seven other requests

  std::string describe() const;
};

// Every combination of the choices, and a subset in which every pair of choices of two kinds occurs.
std::vector<Circumstance> all_circumstances();
std::vector<Circumstance> covering_circumstances();

// Token ids of the answers to `prompts`, each run as the circumstance says.
std::vector<std::vector<int32_t>> answers(const Model& model, const Circumstance& circumstance,
                                          const std::vector<std::vector<int32_t>>& prompts, int64_t max_tokens);

// Runs every circumstance and compares with the plainest one of its temperature and numerics (one thread, chunks of 64,
// no drafts, alone). -> a line per difference; empty when the promise holds.
std::vector<std::string> broken_promises(const std::vector<Circumstance>& circumstances,
                                         const std::filesystem::path& model_folder,
                                         const std::vector<std::vector<int32_t>>& prompts, int64_t max_tokens);

// Prompts for the demonstration model: some chats, and raw program text of about n_tokens.
std::vector<std::vector<int32_t>> chat_prompts(const std::filesystem::path& model_folder);
std::vector<int32_t> text_prompt(const std::filesystem::path& model_folder, uint64_t seed, size_t n_tokens);
// For models of random weights, whose answers are as random and so differ at once where anything does: one of each
// length.
std::vector<std::vector<int32_t>> random_prompts(const std::filesystem::path& model_folder, uint32_t seed,
                                                 const std::vector<size_t>& lengths);

}  // namespace levin::test
