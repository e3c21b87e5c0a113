// Which rows and columns a block works on next, when rows are sorted into groups whose sizes only the device knows.
//
// A group of r rows has ceil(r / kTileRows) row tiles, taken in bands of kBand; within a band, work items are numbered
// column tile by column tile, row tiles fastest, so that items in flight share both weights and rows. Item numbers run
// on through the groups. A dense product is one group of all rows; its tiles may share them evenly, by even_tile_rows().
#pragma once

#include <cstdint>

#include "kernels/cuda/prims/sync.cuh"

namespace levin::cuda {

struct TilePlace {
  int group = 0;
  int first_row = 0;
  int end_row = 0;  // of the tile
  int column_tile = 0;
};

// Rows of each tile of n_rows, of which a tile has `most`, when none has many fewer than the others; a multiple of `multiple`,
// which divides `most`. What a tile has no rows for need not be copied.
inline int even_tile_rows(int n_rows, int most, int multiple) {
  const int n_tiles = (n_rows + most - 1) / most, rows = (n_rows + n_tiles - 1) / n_tiles;
  return (rows + multiple - 1) / multiple * multiple;
}

template <int kTileRows, int kMaxGroups>
struct GroupWalk {
  // The groups that have rows, ascending, so that a walk does not pass the others: often there are eight of 256.
  int n_walked;
  int tile_rows;                       // from a tile to the next; kTileRows, or fewer in a dense product
  int32_t begin[kMaxGroups + 1];       // first row; of the group after the last, the end of its rows
  int32_t first_item[kMaxGroups + 1];  // number of the first work item; of the group after the last, of all items
  uint16_t id[kMaxGroups];

  // One warp fills it; then a block barrier. group_begin may be null: one group of n_tokens rows, in tiles of dense_tile_rows.
  __device__ __forceinline__ void fill(const int32_t* group_begin, int n_groups, int n_tokens, int n_column_tiles,
                                       int dense_tile_rows = kTileRows) {
    if (group_begin == nullptr)
      fill_with_one(n_tokens, n_column_tiles, dense_tile_rows);
    else
      fill_with_groups(group_begin, n_groups, n_column_tiles);
  }

  __device__ __forceinline__ int n_items() const { return first_item[n_walked]; }

  // The place of `item`, at or after the walked group where the last call ended.
  __device__ __forceinline__ TilePlace find(int item, int& walked) const {
    while (item >= first_item[walked + 1]) ++walked;
    const int row_tiles = tiles_of(begin[walked + 1] - begin[walked]), local = item - first_item[walked];
    if (row_tiles == 1) return {id[walked], begin[walked], begin[walked + 1], local};  // without divisions
    const int column_tiles = (first_item[walked + 1] - first_item[walked]) / row_tiles;
    const int band = local / (kBand * column_tiles);
    const int within = local - band * kBand * column_tiles;
    const int band_rows = min(kBand, row_tiles - band * kBand);
    const int first_row = begin[walked] + (band * kBand + within % band_rows) * tile_rows;
    return {id[walked], first_row, min(begin[walked + 1], first_row + tile_rows), within / band_rows};
  }

 private:
  static constexpr int kBand = 8;

  __device__ __forceinline__ static int tiles_of(int n_rows) { return (n_rows + kTileRows - 1) / kTileRows; }

  __device__ __forceinline__ void fill_with_one(int n_rows, int n_column_tiles, int dense_tile_rows) {
    if (threadIdx.x % 32 != 0) return;
    n_walked = 1;
    tile_rows = dense_tile_rows;
    begin[0] = first_item[0] = 0;
    begin[1] = n_rows;
    first_item[1] = tiles_of(n_rows) * n_column_tiles;
    id[0] = 0;
  }

  // A lane has neighbouring groups, whose loads are all on their way at once, so that one sum over the lanes is enough.
  __device__ __forceinline__ void fill_with_groups(const int32_t* group_begin, int n_groups, int n_column_tiles) {
    constexpr int kMost = (kMaxGroups + 31) / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32, n = (n_groups + 31) / 32, first = lane * n;
    int start[kMost + 1];
#pragma unroll
    for (int i = 0; i <= kMost; ++i) start[i] = i <= n ? group_begin[min(first + i, n_groups)] : 0;
    const int end = group_begin[n_groups];
    int n_own = 0, own_items = 0;
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      if (i >= n) continue;
      n_own += start[i + 1] > start[i];
      own_items += tiles_of(start[i + 1] - start[i]) * n_column_tiles;
    }
    int at = n_own, item = own_items;  // up to this lane's last
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int n_below = __shfl_up_sync(0xffffffff, at, step), items_below = __shfl_up_sync(0xffffffff, item, step);
      if (lane >= step) at += n_below, item += items_below;
    }
    if (lane == 31) {
      n_walked = at;
      tile_rows = kTileRows;
      begin[at] = end;
      first_item[at] = item;
    }
    at -= n_own, item -= own_items;
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      if (i >= n || start[i + 1] == start[i]) continue;
      begin[at] = start[i];
      first_item[at] = item;
      id[at] = static_cast<uint16_t>(first + i);
      ++at, item += tiles_of(start[i + 1] - start[i]) * n_column_tiles;
    }
  }
};

// Whether the kernel before may still write the groups of a product's Params.
template <class Params>
__device__ __forceinline__ bool waits_for_groups(const Params& p) {
  return p.group_begin != nullptr && !p.groups_settled;
}

// One warp; then a block barrier. The kernels after may start once the groups are there: here, or before, by the caller, where
// nothing waits for them.
template <class Walk, class Params>
__device__ __forceinline__ void fill_walk(Walk& walk, const Params& p, bool waits, int n_column_tiles,
                                          int dense_tile_rows) {
  if (waits) {
    grid_dependency_wait();
    launch_dependents();
  }
  walk.fill(p.group_begin, p.n_groups, p.n_tokens, n_column_tiles, dense_tile_rows);
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
