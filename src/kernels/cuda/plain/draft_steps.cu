// draft_steps.h: a block a sequence, which decides in one thread and edits its rows with all; a thread a chain, or a sequence of
// the next round.
#include "base/draft_chain.h"
#include "kernels/cuda/plain/draft_steps.h"
#include "kernels/cuda/plain/launch.cuh"

namespace levin::cuda::plain {
namespace {

__device__ void set_row(const EditedStep& step, int64_t row, int32_t token, int32_t position) {
  const int32_t slot = position + step.first_slot;
  step.tokens[row] = token;
  step.positions[row] = position;
  step.slot[row] = slot;
  step.visible[row] = slot + 1;
  if (step.window != nullptr) step.window[row] = max(step.first_slot, slot + 1 - static_cast<int32_t>(step.n_window));
}

__device__ void make_padding(const EditedStep& step, int64_t row) {
  step.tokens[row] = step.positions[row] = 0;
  step.seq[row] = step.slot[row] = -1;
  step.visible[row] = step.first_slot;
  if (step.window != nullptr) step.window[row] = step.first_slot;
}

// How many rows of a sequence are right, given that those with known tokens are; 0: one is at fault.
__device__ int32_t n_right_rows(const AcceptDrafts& a, const VerifiedRows& rows) {
  for (int32_t r = rows.n_known; r < rows.n_rows; ++r) {
    const ChosenToken chosen = a.chosen[rows.first_chosen + r - rows.n_known];
    if (a.faults[rows.first_row + r] != 0 || chosen.sound == 0) return 0;
    if (chosen.token != a.step.tokens[rows.first_row + r]) return r + 1;
  }
  return rows.n_rows;
}

__device__ void start(const AcceptDrafts& a, const VerifiedRows& rows, int32_t n_right) {
  DraftChain& chain = a.chains[rows.chain];
  const int32_t n_chosen = start_chain(chain, rows.n_known, n_right);
  if (n_chosen > 0) chain.next_token = a.chosen[rows.first_chosen + n_chosen - 1].token;
  a.wanted[rows.chain] = rows.first_row + max(n_right, 1) - 1;
}

__global__ void accept_kernel(AcceptDrafts a) {
  follow_earlier_kernels();
  __shared__ int32_t n_right;
  const VerifiedRows rows = a.sequences[blockIdx.x];
  bool has_fault = false;
  for (int32_t r = threadIdx.x; r < rows.n_known; r += blockDim.x) has_fault |= a.faults[rows.first_row + r] != 0;
  has_fault = __syncthreads_or(has_fault);
  if (threadIdx.x == 0) n_right = has_fault ? 0 : n_right_rows(a, rows);
  __syncthreads();
  for (int32_t r = threadIdx.x; r < rows.n_rows; r += blockDim.x) {
    const int64_t row = rows.first_row + r;
    if (r >= n_right)
      make_padding(a.step, row);
    else if (r >= rows.n_known)
      a.step.tokens[row] = a.chosen[rows.first_chosen + r - rows.n_known].token;
  }
  if (threadIdx.x == 0 && rows.chain >= 0) start(a, rows, n_right);
}

__global__ void continue_kernel(ContinueDrafts a) {
  follow_earlier_kernels();
  const int64_t n = flat_index();
  if (n >= a.n_chains) return;
  DraftChain& chain = a.chains[n];
  const ChosenToken chosen = a.chosen[n];
  if (!take_draft(chosen, a.min_confidence, chain)) return make_padding(a.step, n);
  ++chain.position, ++chain.rule.position;
  set_row(a.step, n, chosen.token, chain.position);
}

__global__ void carry_kernel(CarryDrafts a) {
  follow_earlier_kernels();
  const int64_t i = flat_index();
  if (i >= a.n_sequences) return;
  DraftChain chain = a.chains[a.which[i]];
  take_draft(a.chosen[a.which[i]], 0, chain);
  const int32_t n_rows = n_carried(chain);
  ChoiceRule rule = first_rule(chain);
  if (a.rules != nullptr) {
    a.sequences[i].n_rows = n_rows;
    a.next[i].rule = rule;
    a.next[i].room = chain.room;
    a.next[i].position = chain.next_position - 1;
  }
  for (int32_t j = 0; j < a.rows_each; ++j) {
    const int64_t row = i * a.rows_each + j;
    if (j < n_rows) {
      a.step.seq[row] = static_cast<int32_t>(i);
      set_row(a.step, row, carried_token(chain, j + a.shift), chain.next_position + j);
    } else {
      make_padding(a.step, row);
    }
    if (a.rules == nullptr) continue;
    a.rules[row] = rule;
    ++rule.position;
  }
}

}  // namespace

void accept_drafts(const AcceptDrafts& a, StreamHandle stream) {
  start(accept_kernel, {.x = a.n_sequences}, stream, a);
}
void continue_drafts(const ContinueDrafts& a, StreamHandle stream) {
  start(continue_kernel, {.x = div_up(a.n_chains, kThreads)}, stream, a);
}

void carry_drafts(const CarryDrafts& a, StreamHandle stream) {
  start(carry_kernel, {.x = div_up(a.n_sequences, kThreads)}, stream, a);
}

}  // namespace levin::cuda::plain
