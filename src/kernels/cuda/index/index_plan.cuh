// The plan in device memory, as its builder writes it and the score kernel reads it.
#pragma once

#include <cstdint>

#include "kernels/cuda/index/index_rows.h"

namespace levin::cuda {

// A request that has pages to score. Requests without are not listed.
struct alignas(16) PlanItem {
  int32_t first_row;
  int32_t n_rows;
  int32_t request;  // as block tables number them
  int32_t n_pages;
};

// The run of pages of one thread block: from page `page` of item `item` on, into the following items. What it needs of
// that item stands here too, so that a block begins with one read.
struct alignas(16) PlanBlock {
  int32_t item;
  int32_t page;
  int32_t n_pages;
  int32_t first_pages;  // of the run, in the item
  int32_t first_row;    // and what else the item says
  int32_t n_rows;
  int32_t request;
  int32_t unused;
};

struct PlanView {
  uint32_t* fault;      // set by the builder to 0, by launches that use the plan to 1
  PlanBlock* blocks;    // [n_blocks]
  PlanItem* items;      // [n_requests]
  int32_t* first_page;  // [n_requests] pages before each item; read by the builder alone
};

constexpr int64_t kPlanBlocksOffset = 16;
inline int64_t plan_items_offset(int n_blocks) { return kPlanBlocksOffset + int64_t{n_blocks} * sizeof(PlanBlock); }
inline int64_t plan_first_page_offset(int n_blocks, int n_requests) {
  return plan_items_offset(n_blocks) + int64_t{n_requests} * sizeof(PlanItem);
}

inline PlanView plan_view(std::byte* memory, int n_blocks, int n_requests) {
  return {reinterpret_cast<uint32_t*>(memory), reinterpret_cast<PlanBlock*>(memory + kPlanBlocksOffset),
          reinterpret_cast<PlanItem*>(memory + plan_items_offset(n_blocks)),
          reinterpret_cast<int32_t*>(memory + plan_first_page_offset(n_blocks, n_requests))};
}

#ifdef __CUDACC__
// A row's length, made safe: padding may carry any number.
__device__ __forceinline__ int32_t row_length(const RowLengths& lengths, int64_t max_length, int row, int n_tokens) {
  const int32_t length = lengths.data[row / n_tokens * lengths.request_stride + row % n_tokens * lengths.token_stride];
  return length < 0 ? 0 : length > max_length ? static_cast<int32_t>(max_length) : length;
}
#endif

}  // namespace levin::cuda
