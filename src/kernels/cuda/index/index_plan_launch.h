// Between index_scores.cc, which checks, and the kernels, which trust.
#pragma once

#include <cstdint>

#include "kernels/cuda/index/index_plan.cuh"
#include "kernels/cuda/index/index_rows.h"

namespace levin::cuda {

struct BuildPlanParams {
  RowLengths lengths;
  const int32_t* sequence;  // [n_rows], or null: every n_tokens rows are a request
  int64_t max_length;
  int64_t skip_length;
  int n_rows;
  int n_tokens;
  int n_blocks;
  PlanView plan;
};
void launch_build_plan(const BuildPlanParams& p, StreamHandle stream);

}  // namespace levin::cuda
