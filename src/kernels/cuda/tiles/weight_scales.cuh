// The weights' scales of one tile, one for each block of 128 k: loaded by the warp 32 at a time, ahead of their use.
#pragma once

#include <cstdint>

namespace levin::cuda {

// kRows: rows of weight scales a tile may touch, 1 or 2.
template <int kRows>
class WeightScales {
 public:
  // Starts loading for a tile; values of the tile before stay readable until turn(0). `first` points at block 0 of the
  // tile's first row of scales; n_valid of its kRows rows exist.
  __device__ __forceinline__ void prefetch(const float* first, int n_blocks, int n_valid) {
    source_ = first;
    n_blocks_ = n_blocks;
    n_valid_ = n_valid;
    load(0);
  }

  // Before get(block) for every block that is a multiple of 32.
  __device__ __forceinline__ void turn(int block) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) held_[r] = next_[r];
    if (block + 32 < n_blocks_) load(block + 32);
  }

  __device__ __forceinline__ float get(int row, int block) const {
    return __shfl_sync(0xffffffff, held_[row], block % 32);
  }

 private:
  __device__ __forceinline__ void load(int first_block) {
    const int block = first_block + static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      next_[r] = block < n_blocks_ && r < n_valid_ ? __ldg(source_ + int64_t{r} * n_blocks_ + block) : 0.0f;
  }

  const float* source_ = nullptr;
  int n_blocks_ = 0, n_valid_ = 0;
  float held_[kRows] = {}, next_[kRows] = {};
};

}  // namespace levin::cuda
