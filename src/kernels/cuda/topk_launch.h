// Between topk.cc, which checks, and the selection kernel, which trusts.
#pragma once

#include <cstdint>

#include "kernels/cuda/topk.h"

namespace levin::cuda {

// n_split blocks share a row: 1, 2, 4 or 8.
void launch_select_topk(const SelectTopk& a, int n_split, StreamHandle stream);

}  // namespace levin::cuda
