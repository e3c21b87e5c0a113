// Between index_scores.cc, which checks, and the kernels, which trust.
#pragma once

#include <cstdint>

#include "kernels/cuda/index_plan.cuh"
#include "kernels/cuda/index_rows.h"

namespace levin::cuda {

struct BuildPlanParams {
  RowLengths lengths;
  int64_t max_length;
  int64_t skip_length;
  int64_t n_rows;  // rows with lengths; the last request may have fewer than n_tokens
  int n_requests;
  int n_tokens;
  int n_blocks;
  PlanView plan;
};
void launch_build_plan(const BuildPlanParams& p, StreamHandle stream);

}  // namespace levin::cuda
