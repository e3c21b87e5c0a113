// What all plain kernels share: their contract, and the pages of a cache.
//
// The set cuda-plain has a short kernel for every op, for any shape and any GPU from compute capability 8.0. It is the oracle on
// the device, and the fallback for what the tuned kernels do not take.
//
// Bits      those of the CPU's plain kernels (kernels/cpu/*_plain.cc): the tree that the op's header in ops/ states, by one
//           thread for each output. Fused multiply-adds are written out, everything else is compiled with -fmad=false
// Calls     launch on the stream and return. They allocate nothing, never wait, and their launches depend on host-side sizes
//           alone, which are capacities: lengths, positions, tables and selects are read on the device, so that a call may be
//           captured in a graph
// Pointers  are device pointers, aligned to their type; a stride (`ld`) is in elements. Inputs are trusted: the op has checked
//           shapes and types
// Padding   a row with slot < 0 writes no cache row; one that sees nothing selects nothing and attends to nothing
// Faults    a NaN that cannot be ranked sets a bit in the row's fault word (faults.h) and gives defined results; other rows
//           keep their bits
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/host_device.h"
#include "tensor/row_formats.h"

struct CUstream_st;

namespace levin::cuda::plain {

using StreamHandle = CUstream_st*;  // a cudaStream_t

struct PagedCache {
  std::byte* pages = nullptr;  // page id p starts at pages + p * page_bytes
  int64_t page_bytes = 0;
  const int32_t* tables = nullptr;  // [B, max pages]: page id of each sequence's page number
  int64_t tables_ld = 0;

  LEVIN_HOST_DEVICE std::byte* page(int64_t seq, int64_t slot) const {
    return pages + int64_t{tables[seq * tables_ld + slot / kPageTokens]} * page_bytes;
  }
};

}  // namespace levin::cuda::plain
