// Between topk.cc, which checks, and the selection kernel, which trusts.
#pragma once

#include <cstdint>

#include "kernels/cuda/index/topk.h"

namespace levin::cuda {

constexpr int kSelectMinKeys = 4096;    // of a row for each block: with fewer, another block costs more than it saves
constexpr int kSelectHeldKeys = 16384;  // a block reads so many once; more it reads again and again

// Up to n_split blocks share a row: 1, 2, 4 or 8.
void launch_select_topk(const SelectTopk& a, int n_split, StreamHandle stream);

}  // namespace levin::cuda
