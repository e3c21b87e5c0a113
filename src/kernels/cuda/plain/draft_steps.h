// Acceptance of drafts and the steps of the draft layer after it. Contracts: ops/draft_steps.h.
#pragma once

#include <cstdint>

#include "base/draft_chain.h"
#include "kernels/cuda/plain/sampling.h"

namespace levin::cuda::plain {

// As ops::EditedStep.
struct EditedStep {
  int32_t* tokens = nullptr;
  int32_t* positions = nullptr;
  int32_t* seq = nullptr;
  int32_t* slot = nullptr;
  int32_t* visible = nullptr;
  int32_t* window = nullptr;  // may be null
  int32_t first_slot = 0;
  int64_t n_window = 0;
};

struct AcceptDrafts {
  const ChosenToken* chosen = nullptr;
  const int32_t* faults = nullptr;
  const VerifiedRows* sequences = nullptr;  // [n_sequences]
  int64_t n_sequences = 0;
  DraftChain* chains = nullptr;
  EditedStep step;
  int32_t* wanted = nullptr;
};
void accept_drafts(const AcceptDrafts& a, StreamHandle stream);

struct ContinueDrafts {
  const ChosenToken* chosen = nullptr;  // [n_chains]
  DraftChain* chains = nullptr;         // [n_chains]
  int64_t n_chains = 0;
  EditedStep step;
  double min_confidence = 0;
};
void continue_drafts(const ContinueDrafts& a, StreamHandle stream);

struct CarryDrafts {
  const ChosenToken* chosen = nullptr;  // [n_chains]
  const DraftChain* chains = nullptr;   // [n_chains]
  const int32_t* which = nullptr;       // [n_sequences]
  int64_t n_sequences = 0;
  EditedStep step;
  int32_t rows_each = 1;
  int32_t shift = 0;
  ChoiceRule* rules = nullptr;  // these three may be null
  VerifiedRows* sequences = nullptr;
  DraftChain* next = nullptr;
};
void carry_drafts(const CarryDrafts& a, StreamHandle stream);

}  // namespace levin::cuda::plain
