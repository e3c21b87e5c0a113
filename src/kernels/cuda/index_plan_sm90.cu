// build_index_plan, sm_90a. Deals the pages of all requests to the thread blocks of the score kernel, in equal runs.
//
//   in    lengths of the rows      out  PlanBlock [n_blocks], PlanItem [requests with pages]
//   grid  one block of 1024 threads       smem  the warp sums of a scan
//   flow  requests in chunks of 1024: pages of each = its longest row, rounded up; scan; list those that have any. Then
//   one thread per
//         thread block of the score kernel finds its first item by bisection.
//   cost  once a step, for all layers; a few microseconds up to some thousand requests
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/index_plan.cuh"
#include "kernels/cuda/index_plan_launch.h"
#include "kernels/cuda/prims/launch.h"

namespace levin::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;

struct Counts {
  int items = 0;
  int pages = 0;

  __device__ Counts operator+(const Counts& o) const { return {items + o.items, pages + o.pages}; }
};

// Sum over the threads before this one; `total` gets the sum over all. Called by the whole block.
__device__ Counts exclusive_scan(Counts own, Counts& total) {
  __shared__ Counts warp_sum[kWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  Counts inclusive = own;
  for (int step = 1; step < 32; step *= 2) {
    const Counts other{__shfl_up_sync(0xffffffff, inclusive.items, step),
                       __shfl_up_sync(0xffffffff, inclusive.pages, step)};
    if (lane >= step) inclusive = inclusive + other;
  }
  if (lane == 31) warp_sum[warp] = inclusive;
  __syncthreads();
  Counts before;
  total = {};
  for (int i = 0; i < kWarps; ++i) {
    if (i < warp) before = before + warp_sum[i];
    total = total + warp_sum[i];
  }
  __syncthreads();
  return {before.items + inclusive.items - own.items, before.pages + inclusive.pages - own.pages};
}

__device__ int n_pages_of(const BuildPlanParams& p, int request) {
  int longest = 0;
  for (int token = 0; token < p.n_tokens; ++token) {
    if (int64_t{request} * p.n_tokens + token >= p.n_rows) break;
    longest = max(longest, row_length(p.lengths, p.max_length, request, token));
  }
  return longest <= p.skip_length ? 0 : (longest + kIndexPageTokens - 1) / kIndexPageTokens;
}

// The last item that begins at or before `page`.
__device__ int find_item(const int32_t* first_page, int n_items, int page) {
  int low = 0, high = n_items - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (first_page[middle] <= page) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

__global__ void __launch_bounds__(kThreads, 1) build_plan_kernel(const BuildPlanParams p) {
  Counts done;
  for (int base = 0; base < p.n_requests; base += kThreads) {
    const int request = base + static_cast<int>(threadIdx.x);
    const int pages = request < p.n_requests ? n_pages_of(p, request) : 0;
    Counts total;
    const Counts at = done + exclusive_scan({pages > 0, pages}, total);
    if (pages > 0) {
      p.plan.items[at.items] = {request, pages};
      p.plan.first_page[at.items] = at.pages;
    }
    done = done + total;
  }
  __syncthreads();
  for (int block = static_cast<int>(threadIdx.x); block < p.n_blocks; block += kThreads) {
    const int begin = static_cast<int>(int64_t{done.pages} * block / p.n_blocks);
    const int end = static_cast<int>(int64_t{done.pages} * (block + 1) / p.n_blocks);
    PlanBlock run{.n_pages = end - begin};
    if (end > begin) {
      run.item = find_item(p.plan.first_page, done.items, begin);
      run.page = begin - p.plan.first_page[run.item];
      const PlanItem item = p.plan.items[run.item];
      run.request = item.request;
      run.first_pages = min(run.n_pages, item.n_pages - run.page);
    }
    p.plan.blocks[block] = run;
  }
}

}  // namespace

void launch_build_plan(const BuildPlanParams& p, StreamHandle stream) {
  launch_kernel(build_plan_kernel, {.block = {kThreads}, .stream = stream}, p);
}

}  // namespace levin::cuda
