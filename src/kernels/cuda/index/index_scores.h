// Index scores of paged FP8 keys: what the lightning indexer computes, for 1 to 8 query tokens of a request at a time.
//
//   score[t,s] = key_scale[s] * sum_h w[t,h] * max(0, dot(q[t,h,:], k[s,:]))      first <= s < length[t]
//
// Rows      A request is up to n_tokens neighbouring rows of one sequence, and every key page is read once for all of them:
//           every n_tokens rows, or as the plan cuts rows whose sequences it is told. A row of length 0 or less is padding:
//           nothing of it is read or written. Scores before `first` and from a row's length on are left as they were.
// Tree      dot: four wgmma e4m3 steps of k = 32, ascending. Heads of a row: four partial sums, partial p over the
// heads with
//           (head / 2) % 4 == p ascending, each by fused multiply-adds from zero; then (p0 + p1) + (p2 + p3), times the
//           key's scale. It depends on the row and the key alone, so the number of tokens, the batch and the schedule
//           change no bit.
// Shapes    n_heads 16, 32 or 64; width 128; pages of 64 keys (tensor/formats.h, index keys fp8). Others are refused by
//           index_support().
// Schedule  An IndexPlan is built on the device from the lengths, once a step, and serves every layer. It belongs to
// one shape of
//           step; index_scores() refuses it for another. Its addresses are fixed, so a captured graph may rebuild it
//           with other lengths.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/cuda/index/index_rows.h"

namespace levin::cuda {

struct IndexForm {
  int n_heads = 0;
  int d_index = kIndexWidth;
  int n_tokens = 1;  // of a request
};

// Empty if the kernels have this form, otherwise one line that names what they lack.
std::string index_support(const IndexForm& form);

// What a plan was built for, and what a launch must agree with.
struct IndexShape {
  int n_requests = 0;      // or more
  int n_tokens = 1;        // query tokens of a request, 1 to 8; of some requests fewer
  int n_blocks = 0;        // thread blocks that share the work
  int64_t max_length = 0;  // no row is longer; longer lengths are cut

  bool operator==(const IndexShape&) const = default;
};

struct IndexPlan {
  IndexShape shape;
  int64_t skip_length = 0;  // requests whose rows are all this short were left out: they need no scores
  std::byte* memory = nullptr;

  // A word that is 0 when the plan has been built, for those who use it to report NaN in: of all layers of a step together.
  uint32_t* fault() const { return reinterpret_cast<uint32_t*>(memory); }
};

int64_t index_plan_bytes(const IndexShape& shape);

struct BuildIndexPlan {
  RowLengths lengths;
  // [n_rows], may be null. Rows of one number are of one sequence, the one that has this row of the block tables. Neighbours
  // of them are requests, wherever they begin and as many as they are, n_tokens at a time; n_requests is then n_rows.
  const int32_t* sequence = nullptr;
  int64_t n_rows = 0;  // rows that exist; the last request may have fewer than n_tokens
  IndexShape shape;
  int64_t skip_length = 0;
  std::byte* memory = nullptr;  // device, index_plan_bytes(), 16-byte aligned; stays with the plan
};
// Enqueues the building of the plan; what it returns may be used in the same stream at once.
IndexPlan build_index_plan(const BuildIndexPlan& a, StreamHandle stream);

// Empty if `plan` was built for `shape`, otherwise what differs.
std::string plan_mismatch(const IndexPlan& plan, const IndexShape& shape);

struct IndexScoreInputs {
  const void* q = nullptr;   // [rows, n_heads, 128] e4m3, 16-byte aligned
  const float* w = nullptr;  // [rows, n_heads], query and key-independent scales folded in, 16-byte aligned
  int64_t n_rows = 0;        // rows that exist, those of the plan
  int n_heads = 0;
  RowLengths lengths;
  PageTables tables;
  const std::byte* pages = nullptr;  // page p starts at pages + p * page_bytes; 16-byte aligned
  int64_t n_pages = 0;
  int64_t page_bytes = 0;  // at least 8448, a multiple of 16
  int32_t first = 0;       // the first slot that holds a key
};

struct IndexScores {
  IndexScoreInputs in;
  float* score = nullptr;         // row r starts at score + r * score_stride
  int64_t score_stride = 0;       // elements, at least shape.max_length
  uint32_t* histogram = nullptr;  // [rows, 2048], may be null: the scores of each row are counted in bins (topk.h)
  int64_t min_ranked = 0;         // only rows with more candidates than this are counted
  uint32_t* fault = nullptr;      // set to 1 if a score is NaN; may be null without histogram
};
void index_scores(const IndexScores& a, const IndexPlan& plan, const IndexShape& shape, StreamHandle stream);

}  // namespace levin::cuda
