// For each query token, the K cached tokens the lightning indexer scores highest.
//
//   score[t,s] = scale[s] * sum_i w[t,i] * max(0, dot(q[t,i,:], k[s,:]))     for first <= s < visible[t]
//   topk[t,:] = the K best s in ascending order, chosen by (score descending, s ascending), -0 counting as +0;
//                unused tail = -1
//
// Layout    keys are paged (tensor/formats.h); q and k arrive rotated; scale[s] is the fp8 key's scale, else 1
// Tree      dot: blocks of 128 columns, in a block one f32 fused multiply-add per column, ascending from zero; blocks
//           added ascending; on the values as f32, whatever their type, without the key's and query's scales. Heads
//           ascending: total = fma(w, max(0, dot), total) from zero, then total * scale[s]. So scores are the same bits
//           on every kernel set, but for two with bf16 keys.
//             avx512-bf16, even Di   the columns of a block in pairs, ascending, by the bf16 dot instruction
//             amx-bf16, Di a multiple of 32
//                                    dot: TDPBF16PS over 32 columns at a time, ascending from zero, whose even columns
//                                    and whose odd ones are summed from zero, ascending, and then added: dot += even +
//                                    odd (kernels/cpu/tiles_amx.h). Head i goes into total i mod 16, ascending, then
//                                    the 16 are folded 8, 4, 2, 1
// Speed     bound by arithmetic
// Numerics  a row with a score that is NaN, which cannot be ranked, takes its first K candidates and is marked in faults
// Skipping  a row with at most K candidates takes them all without scoring
// Memory    scores of as many query rows at a time as fit kIndexScoreBytes; at least one row
// CUDA      fp8 keys of width 128, 16, 32 or 64 heads; K a multiple of 64 up to 2048; q and w dense. The tree is that of
//           kernels/cuda/index/index_scores.h; scores within the rounding of both trees, the same bits in any batch. Lengths are
//           read on the device: one beyond the table or the score row is cut there
// Misuse    wrong shape or dtype stops the process and names the argument
// Source    DeepSeek-V3.2 report, sparse attention, indexer equation; model_spec.md 4.4, 4.5
#pragma once

#include "ops/context.h"
#include "tensor/formats.h"

namespace levin::ops {

constexpr int64_t kIndexScoreBytes = int64_t{32} << 20;

struct IndexQuery {
  View q;             // [T, Hi, Di] f32 with f32 keys, bf16 with bf16 keys, f8_e4m3 with fp8 keys
  View w;             // [T, Hi] f32: learned weight * Hi^-1/2 * Di^-1/2, and for fp8 * the query's scale
  View seq;           // [T] i32, row of cache.tables; -1: padding, which sees nothing
  View visible;       // [T] i32: keys first <= s < visible[t] may be selected; none if visible[t] <= first
  int32_t first = 0;  // the first slot that holds a key (1 in the MTP layer, whose slot 0 is unused)
  IndexKeyFormat format;
  PagedRows cache;
  // Neighbouring rows of one sequence, up to so many, 1 to 8, are scored together: on CUDA each page is then read once for all
  // of them. The CPU knows by itself. It changes speed alone.
  int tokens_together = 1;
  View plan = {};  // of plan_index() for these rows, and K and tables as there; empty: the op makes its own
};

// How the work of scoring is dealt out, which follows from what the rows see alone: made once a step, it serves all layers
// that select as many. It changes speed alone, and backends that have no use for it make none.
struct PlanIndex {
  View seq;      // [T] i32, as in IndexQuery, and so on
  View visible;  // [T] i32
  int32_t first = 0;
  int64_t n_pages = 0;  // of a row of cache.tables
  int64_t n_topk = 0;   // K
  int tokens_together = 1;
  View plan = {};  // [index_plan_words()] i32, written
};
int64_t index_plan_words(OpContext& ctx, const PlanIndex& a);  // 0: none is made
void plan_index(OpContext& ctx, const PlanIndex& a);

struct IndexTopk {
  IndexQuery query;
  View topk;         // [T, K] i32, written in full
  View faults = {};  // [T] i32, row status (ops/context.h); may be empty
};
void index_topk(OpContext& ctx, const IndexTopk& a);

// The indices of rows that see at most K candidates each, and so take them all: index_topk() without its query. A row must not see
// more, which stops the process only where the host can read `visible`: on the CPU.
struct TakeAll {
  View visible;  // [T] i32
  int32_t first = 0;
  View topk;  // [T, K] i32, written in full
};
void take_all(OpContext& ctx, const TakeAll& a);

// The last K visible slots of each row, ascending: a selection without an indexer.
void take_most_recent(OpContext& ctx, const TakeAll& a);

// The scores alone: score[t, s] for first <= s < visible[t]; other elements are left as they are.
struct IndexScores {
  IndexQuery query;
  View score;  // [T, S] f32, S >= every visible[t]
};
void index_scores(OpContext& ctx, const IndexScores& a);

// The selection alone, over begin[t] <= s < end[t].
struct SelectTopk {
  View score;        // [T, S] f32
  View begin;        // [T] i32; on the CPU it may be empty: 0
  View end;          // [T] i32
  View topk;         // [T, K] i32, written in full: ascending, unused tail = -1
  View faults = {};  // [T] i32, row status (ops/context.h); may be empty
};
void select_topk(OpContext& ctx, const SelectTopk& a);

// A selection in two levels (DeepSeek-V4.1): the indexer of one layer chooses blocks of neighbouring slots, those of later
// layers select inside them.
//
//   select_blocks  blocks[t,:] = the Kb best b in ascending order, chosen as in index_topk() by the largest score of the slots
//                  b * block .. b * block + block - 1 below end[t]; the block of slot end[t] - 1 is always one of them. Unused
//                  tail = -1. Which blocks a row with NaN takes is not said: select_topk() marks it
//   keep_blocks    score[t,s] = -inf for every s < end[t] outside the blocks
//
// CUDA      none
struct SelectBlocks {
  View score;  // [T, S] f32
  View end;    // [T] i32
  int64_t block = 1;
  View blocks;  // [T, Kb] i32, written in full
};
void select_blocks(OpContext& ctx, const SelectBlocks& a);

struct KeepBlocks {
  View blocks;  // [T, Kb] i32
  int64_t block = 1;
  View end;    // [T] i32
  View score;  // [T, S] f32, updated
};
void keep_blocks(OpContext& ctx, const KeepBlocks& a);

}  // namespace levin::ops
