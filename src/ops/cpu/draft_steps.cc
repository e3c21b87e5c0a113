#include "ops/draft_steps.h"

#include <algorithm>
#include <cstring>

#include "base/draft_chain.h"
#include "ops/cpu_backend.h"

namespace levin {
namespace {

using ops::EditedStep;

template <class T>
T record_of(const View& rows, int64_t i) {
  T out;
  std::memcpy(static_cast<void*>(&out), rows.row<int32_t>(i), sizeof(out));
  return out;
}

template <class T>
void set_record(const View& rows, int64_t i, const T& value) {
  std::memcpy(rows.row<int32_t>(i), &value, sizeof(value));
}

int32_t& at(const View& values, int64_t row) { return values.data<int32_t>()[row]; }

void set_row(const EditedStep& step, int64_t row, int32_t token, int32_t position) {
  at(step.tokens, row) = token;
  at(step.positions, row) = position;
  at(step.slot, row) = position + step.first_slot;
  at(step.visible, row) = at(step.slot, row) + 1;
  if (!step.window.empty())
    at(step.window, row) =
        static_cast<int32_t>(std::max<int64_t>(step.first_slot, at(step.visible, row) - step.n_window));
}

void make_padding(const EditedStep& step, int64_t row) {
  at(step.tokens, row) = at(step.positions, row) = 0;
  at(step.seq, row) = at(step.slot, row) = -1;
  at(step.visible, row) = step.first_slot;
  if (!step.window.empty()) at(step.window, row) = step.first_slot;
}

// How many rows of a sequence are right; 0: one is at fault.
int32_t n_right_rows(const ops::AcceptDrafts& a, const VerifiedRows& rows) {
  const auto has_fault = [&](int32_t r) { return at(a.faults, rows.first_row + r) != 0; };
  for (int32_t r = 0; r < rows.n_known; ++r) {
    if (has_fault(r)) return 0;
  }
  for (int32_t r = rows.n_known; r < rows.n_rows; ++r) {
    const auto chosen = record_of<ChosenToken>(a.chosen, rows.first_chosen + r - rows.n_known);
    if (has_fault(r) || chosen.sound == 0) return 0;
    if (chosen.token != at(a.step.tokens, rows.first_row + r)) return r + 1;
  }
  return rows.n_rows;
}

void start(const ops::AcceptDrafts& a, const VerifiedRows& rows, int32_t n_right) {
  auto chain = record_of<DraftChain>(a.chains, rows.chain);
  const int32_t n_chosen = start_chain(chain, rows.n_known, n_right);
  if (n_chosen > 0) chain.next_token = record_of<ChosenToken>(a.chosen, rows.first_chosen + n_chosen - 1).token;
  set_record(a.chains, rows.chain, chain);
  at(a.wanted, rows.chain) = rows.first_row + std::max(n_right, 1) - 1;
}

// What the host of the next round does not know of sequence i.
void begin_round(const ops::CarryDrafts& a, int32_t i, int32_t n_rows, const DraftChain& known) {
  auto rows = record_of<VerifiedRows>(a.sequences, i);
  rows.n_rows = n_rows;
  set_record(a.sequences, i, rows);
  auto chain = record_of<DraftChain>(a.next, i);
  chain.rule = known.rule, chain.room = known.room, chain.position = known.position;
  set_record(a.next, i, chain);
}

}  // namespace

void CpuBackend::accept_drafts(const ops::AcceptDrafts& a) {
  for (int64_t b = 0; b < a.sequences.dim(0); ++b) {
    const auto rows = record_of<VerifiedRows>(a.sequences, b);
    const int32_t n_right = n_right_rows(a, rows);
    for (int32_t r = rows.n_known; r < n_right; ++r) {
      at(a.step.tokens, rows.first_row + r) =
          record_of<ChosenToken>(a.chosen, rows.first_chosen + r - rows.n_known).token;
    }
    for (int32_t r = n_right; r < rows.n_rows; ++r) make_padding(a.step, rows.first_row + r);
    if (rows.chain >= 0) start(a, rows, n_right);
  }
}

void CpuBackend::continue_drafts(const ops::ContinueDrafts& a) {
  for (int64_t n = 0; n < a.chains.dim(0); ++n) {
    auto chain = record_of<DraftChain>(a.chains, n);
    const auto chosen = record_of<ChosenToken>(a.chosen, n);
    if (take_draft(chosen, a.min_confidence, chain)) {
      ++chain.position, ++chain.rule.position;
      set_row(a.step, n, chosen.token, chain.position);
    } else {
      make_padding(a.step, n);
    }
    set_record(a.chains, n, chain);
  }
}

void CpuBackend::carry_drafts(const ops::CarryDrafts& a) {
  const auto n_sequences = static_cast<int32_t>(a.which.dim(0));
  for (int32_t i = 0; i < n_sequences; ++i) {
    const int32_t n = at(a.which, i);
    auto chain = record_of<DraftChain>(a.chains, n);
    take_draft(record_of<ChosenToken>(a.chosen, n), 0, chain);
    const int32_t n_rows = n_carried(chain);
    const ChoiceRule rule = first_rule(chain);
    for (int32_t j = 0; j < a.rows_each; ++j) {
      const int64_t row = int64_t{i} * a.rows_each + j;
      if (j < n_rows) {
        at(a.step.seq, row) = i;
        set_row(a.step, row, carried_token(chain, j + a.shift), chain.next_position + j);
      } else {
        make_padding(a.step, row);
      }
      if (a.rules.empty()) continue;
      ChoiceRule own = rule;
      own.position += static_cast<uint32_t>(j);
      set_record(a.rules, row, own);
    }
    if (!a.rules.empty())
      begin_round(a, i, n_rows, {.rule = rule, .room = chain.room, .position = chain.next_position - 1});
  }
}

}  // namespace levin
