#include "engine/request.h"

#include <fmt/core.h>

#include <new>

namespace levin {

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kError:
      return "error";
  }
  return "unknown";
}

std::string_view step_phase_name(StepPhase phase) {
  switch (phase) {
    case StepPhase::kIdle:
      return "between steps";
    case StepPhase::kPlanning:
      return "planning and reading stored pages";
    case StepPhase::kTrunk:
      return "computing the trunk";
    case StepPhase::kChoosing:
      return "choosing tokens";
    case StepPhase::kDrafting:
      return "drafting";
    case StepPhase::kSettling:
      return "settling pages";
  }
  return "unknown";
}

Error internal_error(std::string_view what) {
  return {ErrorKind::kRuntime, fmt::format("an error of levin's ends this request, others continue: {}", what)};
}

Error failure_of(const std::exception& thrown) {
  if (dynamic_cast<const std::bad_alloc*>(&thrown) == nullptr) return internal_error(thrown.what());
  return {ErrorKind::kOutOfMemory,
          "memory ran out for this request; ask for fewer tokens, or start with a smaller --max-model-len, --chunk or "
          "--cache-tokens"};
}

}  // namespace levin
