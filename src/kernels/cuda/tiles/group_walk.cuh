// Which rows and columns a block works on next, when rows are sorted into groups whose sizes only the device knows.
//
// A group of r rows has ceil(r / kTileRows) row tiles, taken in bands of kBand; within a band, work items are numbered
// column tile by column tile, row tiles fastest, so that items in flight share both weights and rows. Item numbers run
// on through the groups. A dense product is one group of all rows.
#pragma once

#include <cstdint>

namespace levin::cuda {

struct TilePlace {
  int group = 0;
  int first_row = 0;
  int end_row = 0;  // of the group
  int column_tile = 0;
};

template <int kTileRows, int kMaxGroups>
struct GroupWalk {
  int32_t begin[kMaxGroups + 1];       // first row of a group
  int32_t first_item[kMaxGroups + 1];  // number of a group's first work item; the last entry is the number of items

  // One warp fills it; then a block barrier. group_begin may be null: one group of n_tokens rows.
  __device__ __forceinline__ void fill(const int32_t* group_begin, int n_groups, int n_tokens, int n_column_tiles) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    int carried = 0;
    for (int base = 0; base < n_groups; base += 32) {
      const int g = base + lane;
      const bool used = g < n_groups;
      const int from = used && group_begin ? group_begin[g] : 0;
      const int to = used ? (group_begin ? group_begin[g + 1] : n_tokens) : 0;
      int sum = (to - from + kTileRows - 1) / kTileRows * n_column_tiles;
      const int own = sum;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int below = __shfl_up_sync(0xffffffff, sum, step);
        if (lane >= step) sum += below;
      }
      if (used) {
        begin[g] = from;
        first_item[g] = carried + sum - own;
        if (g + 1 == n_groups) begin[n_groups] = to;
      }
      carried += __shfl_sync(0xffffffff, sum, 31);
    }
    if (lane == 0) first_item[n_groups] = carried;
  }

  __device__ __forceinline__ int n_items(int n_groups) const { return first_item[n_groups]; }

  // The place of `item`, at or after the group where the last call ended.
  __device__ __forceinline__ TilePlace find(int item, int& group) const {
    while (item >= first_item[group + 1]) ++group;
    const int row_tiles = (begin[group + 1] - begin[group] + kTileRows - 1) / kTileRows;
    const int column_tiles = (first_item[group + 1] - first_item[group]) / row_tiles;
    const int local = item - first_item[group];
    const int band = local / (kBand * column_tiles);
    const int within = local - band * kBand * column_tiles;
    const int band_rows = min(kBand, row_tiles - band * kBand);
    return {group, begin[group] + (band * kBand + within % band_rows) * kTileRows, begin[group + 1],
            within / band_rows};
  }

 private:
  static constexpr int kBand = 8;
};

}  // namespace levin::cuda
