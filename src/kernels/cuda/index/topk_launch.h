// Between topk.cc, which checks, and the selection kernel, which trusts.
#pragma once

#include <cstdint>

#include "kernels/cuda/index/topk.h"

namespace levin::cuda {

constexpr int kSelectMinKeys = 4096;    // of a row for each block: with fewer, another block costs more than it saves
constexpr int kSelectHeldKeys = 16384;  // a block reads so many once; more it reads again and again
constexpr int kSelectMaxSplit = 16;

// Rows that kSelectMaxSplit blocks each may share at the same time; none on a device without room for such a cluster.
int select_rows_at_once();

// Up to n_split blocks share a row: a power of two up to kSelectMaxSplit.
void launch_select_topk(const SelectTopk& a, int n_split, StreamHandle stream);

}  // namespace levin::cuda
