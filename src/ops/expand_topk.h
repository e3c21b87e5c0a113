// From selected entries to selected tokens, where an indexer's keys stand for several tokens each but attention reads the rows
// of the tokens.
//
//   topk[t,:] = first_token + e * ratio + i, i < ratio, for every entry e of row t; then the tokens after the last
//                complete entry, first_token + end[t] * ratio .. visible[t] - 1, which every row attends to; ascending,
//                unused tail = -1
//
// Misuse    wrong shape or dtype, or an incomplete entry of `ratio` tokens or more, stops the process
// Source    model_spec.md 10.4
#pragma once

#include "ops/context.h"
#include "tensor/view.h"

namespace levin::ops {

struct ExpandTopk {
  View entries;  // [T, Ke] i32, ascending, unused -1
  View end;      // [T] i32: the complete entries are those before end[t]
  View visible;  // [T] i32, tokens
  int64_t ratio = 1;
  int32_t first_token = 0;  // of entry 0
  View topk;                // [T, Ke * ratio + ratio - 1] i32, written in full
};
void expand_topk(OpContext& ctx, const ExpandTopk& a);

}  // namespace levin::ops
