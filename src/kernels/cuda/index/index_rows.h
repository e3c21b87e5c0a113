// What the indexer's kernels share about the rows of a step. Plain data, for host and device.
#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace levin::cuda {

using StreamHandle = CUstream_st*;  // a cudaStream_t

constexpr int kIndexPageTokens = 64;
constexpr int kIndexWidth = 128;
constexpr int kMaxQueryTokens = 8;

// Lengths of the rows in device memory. 1-D [N], (N, 1), (B, next_n) and strided arrays are all described by two
// strides in elements.
struct RowLengths {
  const int32_t* data = nullptr;
  int64_t request_stride = 1;
  int64_t token_stride = 1;
};

// Block tables: entry p of a request's row is the id of its page p. Entries after its length are never read.
struct PageTables {
  const int32_t* data = nullptr;
  int64_t stride = 0;                       // elements between rows
  const int32_t* row_of_request = nullptr;  // [n_requests], may be null: request i has row i
};

}  // namespace levin::cuda
