// From rows to tokens, for all sequences of a step together: the only place where logits become tokens, the target's own and
// drafts alike.
//
// Verification of the target's tokens comes in two halves. start() enqueues the head for every row; finish() chooses once its
// results are there. So the host can work while a device computes; on the CPU start() computes.
//
// A device chooses the tokens that logits and position alone decide (ops/logits.h); the host chooses those that depend on the
// tokens before them, by penalties or a structure, and those whose logits somebody reads. The tokens are the same.
//
// Drafts    a row's token is compared with the draft that its next row computed from: while they are equal the next row is
//           right as well, so j accepted drafts give j + 1 tokens
// Failure   a row that gives no token ends its own sequence and no other
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/runner.h"
#include "engine/token_chooser.h"

namespace levin {

// The rows of one sequence that give tokens: that of its last token, and one for each draft after it.
struct SampleRows {
  TokenChooser* chooser = nullptr;  // the sampled tokens are pushed to it
  int64_t first_row = 0;            // of the hidden states
  std::span<const int32_t> drafts;  // [S]; the next S + 1 rows
  View faults;                      // [S + 1] i32 on the host, there with the head's results: row status; or empty
  int64_t first_result = 0;         // of theirs among the head's results
};

struct SampledToken {
  int32_t token = -1;
  std::span<const float> logits;  // [V], until the next step; empty where a device chose
};

struct RowFailure {
  RowFault fault = RowFault::kNone;
  int64_t position = 0;  // of the row, if its numbers are at fault; otherwise of the token that it should have given
};

struct Sampled {
  std::vector<SampledToken> tokens;
  int n_accepted = 0;                 // of the drafts
  std::optional<RowFailure> failure;  // of the row after these tokens
};

// A row that one draft is chosen from.
struct DraftRow {
  DraftChooser* chooser = nullptr;
  std::span<const int32_t> drafts;  // of the sequence so far
};

struct SampledDraft {
  std::optional<int32_t> token;  // nullopt: the row gives none. The target will say what is wrong, if anything is
  HeadResult row;

  // How likely the most likely token is, in [0, 1]; may be 0 where it is below `least`.
  double confidence(double least) const;
};

class Sampler {
 public:
  explicit Sampler(Runner& runner) : runner_(runner) {}

  // hidden [T, D]; the results are in the order of the rows. nullopt: there is no row.
  std::optional<HeadCall> start(View hidden, std::span<const SampleRows> rows);
  static std::vector<Sampled> finish(const HeadCall& head, std::span<const SampleRows> rows);

  // hidden [N, D], row i to rows[i]; by the head for drafts.
  std::vector<SampledDraft> choose_drafts(View hidden, std::span<const DraftRow> rows);
  // The same of a row's logits [V] on the host.
  static SampledDraft choose_draft(std::span<const float> logits, const DraftRow& row);
  static SampledDraft draft_of(const ChosenToken& chosen);  // that a device chose

 private:
  Runner& runner_;
};

}  // namespace levin
