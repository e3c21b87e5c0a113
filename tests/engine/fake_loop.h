// The loop over a fake model (fake_model.h), on the host and on a fake device, in order and with a round ahead: what tests of it share.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/fake_model.h"
#include "engine/step_loop.h"
#include "support/must.h"

namespace levin::test {

using Tokens = std::vector<int32_t>;

constexpr int64_t kContext = 1024;

inline Tokens made_up(int64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  Tokens out;
  for (int64_t i = 0; i < n; ++i) out.push_back(static_cast<int32_t>(random() % (kFakeVocab - 1)));
  return out;
}

inline Tokens joined(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline GenerateRequest greedy(Tokens prompt, int64_t max_tokens) {
  GenerateRequest request{.prompt = std::move(prompt), .max_tokens = max_tokens};
  request.sampling.temperature = 0;
  return request;
}

inline Tokens answer_of(const Generation& g) {
  Tokens out;
  for (const TokenEvent& event : g.tokens) out.push_back(event.token);
  return out;
}

// On the host, or on a fake device (fake_cuda.h) with passes recorded or not.
enum class Where : uint8_t { kHost, kEager, kGraphs };

inline RunnerOptions runner_options(Where where, FakeCuda& device, int64_t n_cache_tokens) {
  return {.cuda = where == Where::kHost ? nullptr : &device,
          .graphs = where == Where::kGraphs,
          .n_cache_tokens = n_cache_tokens};
}

// Where the model runs, and in which order the loop does its work.
using Kind = std::tuple<Where, bool>;

class StepLoopTest : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override { std::tie(where, overlap) = GetParam(); }

 public:
  static inline Where where = Where::kHost;  // of the test that runs
  static inline bool overlap = false;
};

inline auto all_kinds() {
  return ::testing::Combine(::testing::Values(Where::kHost, Where::kEager, Where::kGraphs), ::testing::Bool());
}
inline std::string kind_name(const ::testing::TestParamInfo<Kind>& kind) {
  const Where where = std::get<0>(kind.param);
  const std::string place = where == Where::kHost ? "host" : where == Where::kEager ? "device" : "device_with_graphs";
  return place + (std::get<1>(kind.param) ? "_overlapped" : "_in_order");
}

inline LoopOptions in_its_order(LoopOptions options) {
  options.overlap = StepLoopTest::overlap;
  return options;
}

inline Device tested_place() { return StepLoopTest::where == Where::kHost ? Device::kCpu : Device::kCuda; }

struct Fake {
  explicit Fake(const LoopOptions& options, uint32_t wrong_every = 0, int64_t n_cache_tokens = 64 * kPageTokens)
      : model(wrong_every, tested_place()),
        runner(model, runner_options(StepLoopTest::where, device, n_cache_tokens)),
        loop(runner, in_its_order(options)) {}

  std::unique_ptr<Generation> answer(GenerateRequest request) {
    const RequestId id = must(loop.submit(std::move(request)));
    while (loop.step()) continue;
    return loop.take(id);
  }
  // All of them side by side; each must be what its prompt says.
  void expect_answers(const std::vector<GenerateRequest>& requests) {
    std::vector<RequestId> ids;
    for (const GenerateRequest& request : requests) ids.push_back(must(loop.submit(request)));
    while (loop.step()) continue;
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(answer_of(*loop.take(ids[i])), fake_answer(requests[i].prompt, requests[i].max_tokens)) << i;
    }
    EXPECT_EQ(model.n_stale_rows, 0);
  }

  FakeCuda device;
  FakeModel model;
  Runner runner;
  StepLoop loop;
};

}  // namespace levin::test
