// Exact selection of the K best scored keys of each row, and its fusion with the scores.
//
//   topk[r,:] = the K best s in begin[r] <= s < length[r] by (score descending, s ascending), -0 counting as +0;
//   ascending in s, tail -1
//
// Output    logical positions s, or with page tables the physical slots table[s / 64] * 64 + s % 64
// Exact     the order is total, so the result is one set, written in one order: no batch, split or repetition changes
// it. A row with
//           at most K candidates takes them all and its scores are not read.
// Limits    K a multiple of 64 up to 2048 (topk_support()); rows of any length
// NaN       sets *fault; where it would rank is not specified, but the row's indices are candidates all the same. Rows with
//           a NaN get the first K of them by settle_nan_rows(), or, where scores came counted, at once
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cuda/index/index_rows.h"
#include "kernels/cuda/index/index_scores.h"

namespace levin::cuda {

// Empty if the kernels select this many, otherwise one line that says what they can.
std::string topk_support(int n_topk);

struct SelectTopk {
  const float* score =
      nullptr;  // row r starts at score + r * score_stride; cells outside [begin, length) are never used
  int64_t score_stride = 0;
  const int32_t* begin = nullptr;  // [rows], may be null: `first` for every row
  int32_t first = 0;
  RowLengths lengths;  // ends of the rows
  int n_tokens = 1;    // rows of a request
  int64_t n_rows = 0;
  int64_t max_length = 0;         // longer lengths are cut
  PageTables tables;              // data null: logical positions
  uint32_t* histogram = nullptr;  // [rows, 2048] of index_scores(), 16-byte aligned; left all zero. Null: counted here
  int32_t* topk = nullptr;        // [rows, n_topk], written in full
  int n_topk = 0;
  uint32_t* fault = nullptr;  // set to 1 if a candidate is NaN
  // With counts, whose kernel has set *fault: rows with a NaN take their first K candidates and are marked, as
  // settle_nan_rows() would have them.
  bool settles_nan_rows = false;
  int32_t* row_fault = nullptr;  // [rows], may be null: `row_fault_bit` is set in those with a NaN
  int32_t row_fault_bit = 1;
};
void select_topk(const SelectTopk& a, StreamHandle stream);

// What a selection of logical positions without counts is followed by where rows with a NaN must have a defined one: they take
// their first K candidates and are marked. Costs a launch that reads one word where no score is NaN.
struct NanRows {
  const uint32_t* any = nullptr;  // the selection's fault word: 0, nothing is done
  const float* score = nullptr;   // as in SelectTopk, and so on
  int64_t score_stride = 0;
  const int32_t* begin = nullptr;
  int32_t first = 0;
  RowLengths lengths;
  int n_tokens = 1;
  int64_t n_rows = 0;
  int64_t max_length = 0;
  int32_t* topk = nullptr;
  int n_topk = 0;
  int32_t* fault = nullptr;  // [rows], may be null: `fault_bit` is set in those with a NaN
  int32_t fault_bit = 1;
};
void settle_nan_rows(const NanRows& a, StreamHandle stream);

// plan_thresholds() of how many blocks share a row, on the calling thread's device, for tests.
std::vector<int64_t> select_topk_thresholds(int64_t max_length, int64_t most_rows);

// Scores and selection of a step: the score kernel counts its scores in bins, so that selection begins with the bin
// that holds the K-th.
struct IndexTopk {
  IndexScoreInputs in;
  bool physical = false;   // selects are slots, not positions
  float* score = nullptr;  // scratch [rows, score_stride]
  int64_t score_stride = 0;
  uint32_t* histogram = nullptr;  // scratch [rows, 2048], 16-byte aligned, zeroed once by its owner; left all zero
  int32_t* topk = nullptr;        // [rows, n_topk], written in full, all -1 for padding rows
  int n_topk = 0;
  uint32_t* fault = nullptr;
  bool settles_nan_rows = false;  // as in SelectTopk
  int32_t* row_fault = nullptr;
  int32_t row_fault_bit = 1;
};
// The plan must have been built with skip_length at most first + n_topk.
void index_topk(const IndexTopk& a, const IndexPlan& plan, const IndexShape& shape, StreamHandle stream);

}  // namespace levin::cuda
