// Which rows and columns a block works on next, when rows are sorted into groups whose sizes only the device knows.
//
// A group of r rows has ceil(r / kTileRows) row tiles, taken in bands of kBand; within a band, work items are numbered
// column tile by column tile, row tiles fastest, so that items in flight share both weights and rows. Item numbers run
// on through the groups. A dense product is one group of all rows.
#pragma once

#include <cstdint>

#include "kernels/cuda/prims/sync.cuh"

namespace levin::cuda {

struct TilePlace {
  int group = 0;
  int first_row = 0;
  int end_row = 0;  // of the group
  int column_tile = 0;
};

template <int kTileRows, int kMaxGroups>
struct GroupWalk {
  // The groups that have rows, ascending, so that a walk does not pass the others: often there are eight of 256.
  int n_walked;
  int32_t begin[kMaxGroups + 1];       // first row; of the group after the last, the end of its rows
  int32_t first_item[kMaxGroups + 1];  // number of the first work item; of the group after the last, of all items
  uint16_t id[kMaxGroups];

  // One warp fills it; then a block barrier. group_begin may be null: one group of n_tokens rows.
  __device__ __forceinline__ void fill(const int32_t* group_begin, int n_groups, int n_tokens, int n_column_tiles) {
    constexpr int kSteps = kMaxGroups / 32 + 1;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    int start[kSteps];  // of groups lane, lane + 32 ...: on their way all at once
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int g = 32 * i + lane;
      start[i] = g == 0 ? 0 : n_tokens;
      if (group_begin != nullptr && g <= n_groups) start[i] = group_begin[g];
    }
    int n_before = 0, items_before = 0, last_end = 0;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      if (32 * i >= n_groups) continue;
      const int of_next_step = i + 1 < kSteps ? __shfl_sync(0xffffffff, start[i + 1 < kSteps ? i + 1 : i], 0) : 0;
      int end = __shfl_down_sync(0xffffffff, start[i], 1);
      if (lane == 31) end = of_next_step;
      const int g = 32 * i + lane, n_rows = g < n_groups ? end - start[i] : 0;
      const int own = (n_rows + kTileRows - 1) / kTileRows * n_column_tiles;
      int upto = own;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int below = __shfl_up_sync(0xffffffff, upto, step);
        if (lane >= step) upto += below;
      }
      const uint32_t walked = __ballot_sync(0xffffffff, n_rows > 0);
      if (n_rows > 0) {
        const int at = n_before + __popc(walked & ((1u << lane) - 1));
        begin[at] = start[i];
        first_item[at] = items_before + upto - own;
        id[at] = static_cast<uint16_t>(g);
      }
      if (walked != 0) last_end = __shfl_sync(0xffffffff, end, 31 - __clz(static_cast<int>(walked)));
      n_before += __popc(walked);
      items_before += __shfl_sync(0xffffffff, upto, 31);
    }
    if (lane == 0) {
      n_walked = n_before;
      begin[n_before] = last_end;
      first_item[n_before] = items_before;
    }
  }

  __device__ __forceinline__ int n_items() const { return first_item[n_walked]; }

  // The place of `item`, at or after the walked group where the last call ended.
  __device__ __forceinline__ TilePlace find(int item, int& walked) const {
    while (item >= first_item[walked + 1]) ++walked;
    const int row_tiles = (begin[walked + 1] - begin[walked] + kTileRows - 1) / kTileRows;
    const int column_tiles = (first_item[walked + 1] - first_item[walked]) / row_tiles;
    const int local = item - first_item[walked];
    const int band = local / (kBand * column_tiles);
    const int within = local - band * kBand * column_tiles;
    const int band_rows = min(kBand, row_tiles - band * kBand);
    return {id[walked], begin[walked] + (band * kBand + within % band_rows) * kTileRows, begin[walked + 1],
            within / band_rows};
  }

 private:
  static constexpr int kBand = 8;
};

// Whether the kernel before may still write the groups of a product's Params.
template <class Params>
__device__ __forceinline__ bool waits_for_groups(const Params& p) {
  return p.group_begin != nullptr && !p.groups_settled;
}

// One warp; then a block barrier. The kernels after may start once the groups are there: here, or before, by the caller, where
// nothing waits for them.
template <class Walk, class Params>
__device__ __forceinline__ void fill_walk(Walk& walk, const Params& p, bool waits, int n_column_tiles) {
  if (waits) {
    grid_dependency_wait();
    launch_dependents();
  }
  walk.fill(p.group_begin, p.n_groups, p.n_tokens, n_column_tiles);
}

// Where a loader is: which stage of which work item of its block comes next.
struct StageCursor {
  int item = 0, stage_of_item = 0, group = 0;
  TilePlace place;
};

// The stages of a block's items, one item after another: those numbered blockIdx.x, blockIdx.x + gridDim.x ...
template <class Walk>
class ItemStages {
 public:
  __device__ explicit ItemStages(const Walk& walk) : walk_(walk), n_items_(walk.n_items()) {}

  __device__ StageCursor first() const {
    StageCursor c;
    c.item = static_cast<int>(blockIdx.x);
    if (valid(c)) c.place = walk_.find(c.item, c.group);
    return c;
  }
  __device__ bool valid(const StageCursor& c) const { return c.item < n_items_; }

  // An item has n_parts, of which a stage has kParts.
  template <int kParts>
  __device__ void advance(StageCursor& c, int n_parts) const {
    if ((++c.stage_of_item) * kParts < n_parts) return;
    c.stage_of_item = 0;
    c.item += static_cast<int>(gridDim.x);
    if (valid(c)) c.place = walk_.find(c.item, c.group);
  }

 private:
  const Walk& walk_;
  int n_items_;
};

}  // namespace levin::cuda
