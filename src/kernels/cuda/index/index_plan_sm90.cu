// build_index_plan, sm_90a. Cuts rows into requests, and deals the pages of all requests to the thread blocks of the score
// kernel in equal runs.
//
//   in    lengths of the rows, their sequences      out  PlanBlock [n_blocks], PlanItem [requests with pages], fault word 0
//   grid  one block of 1024 threads       smem  the warp sums of the scans
//   flow  rows in chunks of 1024: a scan finds where the sequence of each begins, so which rows begin a request; pages of
//         each = its longest row, rounded up; a second scan lists the requests that have any. Then one thread per thread
//         block of the score kernel finds its first item by bisection.
//   cost  once a step, for all layers; a few microseconds up to some thousand rows
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/index/index_plan.cuh"
#include "kernels/cuda/index/index_plan_launch.h"
#include "kernels/cuda/prims/launch.h"
#include "kernels/cuda/prims/sync.cuh"

namespace levin::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;

struct Counts {
  int items = 0;
  int pages = 0;

  __device__ Counts operator+(const Counts& o) const { return {items + o.items, pages + o.pages}; }
  __device__ Counts of_lane_before(int step) const {
    return {__shfl_up_sync(0xffffffff, items, step), __shfl_up_sync(0xffffffff, pages, step)};
  }
};

// The last row so far that begins a sequence.
struct LastBegin {
  int row = 0;

  __device__ LastBegin operator+(const LastBegin& o) const { return {max(row, o.row)}; }
  __device__ LastBegin of_lane_before(int step) const { return {__shfl_up_sync(0xffffffff, row, step)}; }
};

// Sum over the threads up to this one; `total` gets the sum over all. Called by the whole block.
template <class T>
__device__ T inclusive_scan(T own, T& total) {
  __shared__ T warp_sum[kWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  T inclusive = own;
  for (int step = 1; step < 32; step *= 2) {
    const T other = inclusive.of_lane_before(step);
    if (lane >= step) inclusive = inclusive + other;
  }
  if (lane == 31) warp_sum[warp] = inclusive;
  __syncthreads();
  T before;
  total = {};
  for (int i = 0; i < kWarps; ++i) {
    if (i < warp) before = before + warp_sum[i];
    total = total + warp_sum[i];
  }
  __syncthreads();
  return before + inclusive;
}

__device__ bool are_of_one_sequence(const BuildPlanParams& p, int a, int b) {
  return p.sequence == nullptr || p.sequence[a] == p.sequence[b];
}

// The request that begins at a row.
__device__ PlanItem request_at(const BuildPlanParams& p, int row) {
  PlanItem item{.first_row = row, .request = p.sequence != nullptr ? p.sequence[row] : row / p.n_tokens};
  int longest = 0;
  while (item.n_rows < p.n_tokens && row + item.n_rows < p.n_rows && are_of_one_sequence(p, row, row + item.n_rows)) {
    longest = max(longest, row_length(p.lengths, p.max_length, row + item.n_rows, p.n_tokens));
    ++item.n_rows;
  }
  item.n_pages = longest <= p.skip_length ? 0 : (longest + kIndexPageTokens - 1) / kIndexPageTokens;
  return item;
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

// Lists the requests that have pages; returns how many there are.
__device__ Counts list_requests(const BuildPlanParams& p) {
  Counts done;
  LastBegin begin;  // of the sequence that rows before this chunk end with
  for (int base = 0; base < p.n_rows; base += kThreads) {
    const int row = base + static_cast<int>(threadIdx.x);
    const bool exists = row < p.n_rows;
    const bool begins_sequence = exists && row > 0 && !are_of_one_sequence(p, row - 1, row);
    LastBegin last;
    const LastBegin own = begin + inclusive_scan(LastBegin{begins_sequence ? row : 0}, last);
    begin = begin + last;
    PlanItem item{};
    if (exists && (row - own.row) % p.n_tokens == 0) item = request_at(p, row);
    Counts total;
    const Counts upto = done + inclusive_scan(Counts{item.n_pages > 0, item.n_pages}, total);
    if (item.n_pages > 0) {
      p.plan.items[upto.items - 1] = item;
      p.plan.first_page[upto.items - 1] = upto.pages - item.n_pages;
    }
    done = done + total;
  }
  return done;
}

__global__ void __launch_bounds__(kThreads, 1) build_plan_kernel(const BuildPlanParams p) {
  launch_dependents();
  grid_dependency_wait();
  if (threadIdx.x == 0) *p.plan.fault = 0;
  const Counts done = list_requests(p);
  __syncthreads();
  for (int block = static_cast<int>(threadIdx.x); block < p.n_blocks; block += kThreads) {
    const int begin = static_cast<int>(int64_t{done.pages} * block / p.n_blocks);
    const int end = static_cast<int>(int64_t{done.pages} * (block + 1) / p.n_blocks);
    PlanBlock run{.n_pages = end - begin};
    if (end > begin) {
      run.item = find_item(p.plan.first_page, done.items, begin);
      run.page = begin - p.plan.first_page[run.item];
      const PlanItem item = p.plan.items[run.item];
      run.first_pages = min(run.n_pages, item.n_pages - run.page);
      run.first_row = item.first_row;
      run.n_rows = item.n_rows;
      run.request = item.request;
    }
    p.plan.blocks[block] = run;
  }
}

}  // namespace

void launch_build_plan(const BuildPlanParams& p, StreamHandle stream) {
  launch_kernel(build_plan_kernel, {.block = {kThreads}, .pdl = true, .stream = stream}, p);
}

}  // namespace levin::cuda
