// Between index_scores.cc, which checks, and the score kernels, which trust.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/index/index_plan.cuh"
#include "kernels/cuda/index/index_rows.h"

namespace levin::cuda {

struct IndexScoreParams {
  const float* w;
  RowLengths lengths;
  int64_t max_length;
  PageTables tables;
  const std::byte* pages;
  int64_t page_bytes;
  PlanView plan;
  float* score;
  int64_t score_stride;
  uint32_t* histogram;  // null: none
  int64_t min_ranked;
  uint32_t* fault;
  int32_t first;
};

struct IndexScoreMaps {
  CUtensorMap query;  // [rows * n_heads, 128], box of one request's rows, up to 256
  CUtensorMap key;    // [n_pages, 64, 128], box of one page
};

// One number of heads to a file, so that they compile side by side.
void launch_index_scores_h16(const IndexScoreParams& p, const IndexScoreMaps& maps, int n_blocks, int n_tokens,
                             StreamHandle stream);
void launch_index_scores_h32(const IndexScoreParams& p, const IndexScoreMaps& maps, int n_blocks, int n_tokens,
                             StreamHandle stream);
void launch_index_scores_h64(const IndexScoreParams& p, const IndexScoreMaps& maps, int n_blocks, int n_tokens,
                             StreamHandle stream);

}  // namespace levin::cuda
