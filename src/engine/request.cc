#include "engine/request.h"

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

}  // namespace levin
