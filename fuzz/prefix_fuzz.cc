// Any schedule of requests that begin alike: every answer is that of its request alone (tests/engine/prefix_trial.h).
//
// The first byte says which model: a fake one, with or without a window, or, of few inputs since they take a hundred times as
// long, a fixture with windows and entries or with recurrent state. The others decide the trial.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/check.h"
#include "engine/fake_model.h"
#include "engine/loaded_model.h"
#include "engine/prefix_trial.h"

using namespace levin;
using namespace levin::test;

namespace {

constexpr size_t kModels = 64;
constexpr size_t kMaxKeptAnswers = 4096;  // of requests alone

std::unique_ptr<Model> model_of(size_t i) {
  switch (i) {
    case 0:
      return load_fixture("v4-flash", {.numerics = NumericsMode::kFast});
    case 1:
      return load_fixture("glm-next", {.numerics = NumericsMode::kFast});
    default:
      return std::make_unique<FakeModel>(i % 2 == 0 ? 0 : 3, Device::kCpu, i % 4 < 2 ? 0 : 40);
  }
}

struct Tried {
  std::unique_ptr<Model> model;
  std::unique_ptr<PrefixTrials> trials;
};

PrefixTrials& trials_of(size_t i) {
  static std::array<Tried, kModels> tried;
  Tried& t = tried[i];
  if (!t.model) t.model = model_of(i);
  if (!t.trials || t.trials->n_kept_answers() > kMaxKeptAnswers)
    t.trials = std::make_unique<PrefixTrials>(*t.model, runner_options(0, 1));
  return *t.trials;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  Decisions decisions(std::span(data, size).subspan(1));
  const std::string wrong = trials_of(data[0] % kModels).run(decisions);
  LEVIN_CHECK(wrong.empty(), "{}", wrong);
  return 0;
}
