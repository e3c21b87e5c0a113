// The lightning indexer. Contracts and trees: ops/index_topk.h.
//
// Faults    a row with a score that is NaN selects its lowest candidates and has kNanIndexScore set
#pragma once

#include <cstdint>

#include "kernels/cuda/plain/faults.h"
#include "kernels/cuda/plain/paged_cache.h"
#include "tensor/dtype.h"

namespace levin::cuda::plain {

struct IndexQuery {
  const void* q = nullptr;  // [T, Hi, Di] f32, bf16 or e4m3, rows q_ld apart, heads q_head_ld apart
  DType q_dtype = DType::kF32;
  int64_t q_ld = 0;
  int64_t q_head_ld = 0;
  const float* w = nullptr;  // [T, Hi], rows w_ld apart
  int64_t w_ld = 0;
  const int32_t* seq = nullptr;      // [T], row of cache.tables
  const int32_t* visible = nullptr;  // [T]
  int32_t first = 0;
  IndexKeyFormat format;
  PagedCache cache;
  int64_t n_rows = 0;
  int64_t n_heads = 0;
};

// score[t, s] for first <= s < min(visible[t], n_slots); others stay as they are.
struct IndexScores {
  IndexQuery query;
  float* score = nullptr;  // [T, n_slots], rows score_ld apart
  int64_t score_ld = 0;
  int64_t n_slots = 0;     // capacity
  int64_t n_unscored = 0;  // rows with at most so many candidates are left out
};
void index_scores(const IndexScores& a, StreamHandle stream);

struct SelectTopk {
  const float* score = nullptr;  // [T, S], rows score_ld apart
  int64_t score_ld = 0;
  const int32_t* begin = nullptr;  // [T]; null: first
  int32_t first = 0;
  const int32_t* end = nullptr;        // [T]
  bool short_rows_have_scores = true;  // false: of rows with at most K candidates none is read
  int32_t* topk = nullptr;             // [T, K], dense
  int64_t n_topk = 0;                  // K
  int64_t n_rows = 0;
  int32_t* fault = nullptr;  // [T], may be null
};
void select_topk(const SelectTopk& a, StreamHandle stream);

struct IndexTopk {
  IndexQuery query;
  float* score = nullptr;   // scratch [T, n_slots], dense
  int64_t n_slots = 0;      // capacity: visible[t] is at most this
  int32_t* topk = nullptr;  // [T, K], dense
  int64_t n_topk = 0;
  int32_t* fault = nullptr;  // [T], may be null
};
void index_topk(const IndexTopk& a, StreamHandle stream);

// The top-k indices of rows that see at most K candidates each; a row that sees more takes the first K.
struct TakeAll {
  const int32_t* visible = nullptr;  // [T]
  int32_t first = 0;
  int32_t* topk = nullptr;  // [T, K], dense
  int64_t n_topk = 0;
  int64_t n_rows = 0;
};
void take_all(const TakeAll& a, StreamHandle stream);

// The last K candidates of each row, ascending: a selection without an indexer.
void take_most_recent(const TakeAll& a, StreamHandle stream);

// Contract: ops/expand_topk.h. The tokens after a row's entries are fewer than `ratio`; a row of padding has none of either.
struct ExpandTopk {
  const int32_t* entries = nullptr;  // [T, Ke], dense
  int64_t n_entries = 0;             // Ke
  const int32_t* end = nullptr;      // [T]
  const int32_t* visible = nullptr;  // [T]
  int64_t ratio = 1;
  int32_t first_token = 0;
  int32_t* topk = nullptr;  // [T, Ke * ratio + ratio - 1], dense
  int64_t n_rows = 0;
};
void expand_topk(const ExpandTopk& a, StreamHandle stream);

}  // namespace levin::cuda::plain
