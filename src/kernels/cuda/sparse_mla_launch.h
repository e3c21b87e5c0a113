// Between sparse_mla.cc, which checks, and the kernels, which trust.
#pragma once

#include "kernels/cuda/sparse_mla.h"

namespace levin::cuda {

constexpr int kMlaHeadGroup = 64;
constexpr int kMlaPartPicks = 512;  // a row's sums start afresh here

// n_parts blocks (pairs of blocks) share a row: 1, or as many as the row has parts.
void launch_sparse_mla_fp8(const SparseMla& a, int n_parts, StreamHandle stream);
void launch_sparse_mla_bf16(const SparseMla& a, int n_parts, StreamHandle stream);

}  // namespace levin::cuda
