// Between gemm_f32.cc, which plans and checks, and the instances of the kernel, which trust.
#pragma once

#include "kernels/cuda/gemm/gemm_f32.h"

namespace levin::cuda {

// An instance: who has what of a product, and how it comes. gemm_f32_sm90.cuh explains the terms.
struct GemmF32Tile {
  int outputs;        // of a lane
  int rows;           // of a lane
  int row_groups;     // warps of a group, each with rows of its own
  int stages;         // of a group's ring
  int row_bytes;      // of a weight row in a stage
  int row_lanes = 1;  // parts of a warp with rows of their own

  static constexpr int kWarps = 8;
  static constexpr int kMostTotals = 32;  // that a thread has registers for in addition to its sums

  constexpr int strip() const { return 32 / row_lanes * outputs; }
  constexpr int tile_rows() const { return rows * row_groups * row_lanes; }
  constexpr int groups() const { return kWarps / row_groups; }
  // Whether so many slots may share a strip: where there are several, all threads share the totals.
  constexpr bool takes_slots(int n) const { return n == 1 || outputs * rows <= kMostTotals * n; }
};

// An instance of the kernel for tens of rows (gemm_f32_warp_tiles_sm90.cu): what a block's eight warps share out.
struct GemmF32WarpTiles {
  int rows;         // of a lane
  int row_warps;    // with rows of their own
  int strip_warps;  // with 128 outputs of their own
  int slots;        // with every so many block of k
  int stages;       // of a slot's ring
  int row_bytes;    // of a weight row in a stage

  static constexpr int kOutputs = 8;  // of a lane; sixteen lanes have 128

  constexpr int warp_rows() const { return 2 * rows; }
  constexpr int tile_rows() const { return row_warps * warp_rows(); }
  constexpr int strip() const { return strip_warps * 128; }
};

// What a block of the kernel for many rows has at a time.
struct GemmF32ManyRows {
  static constexpr int kRows = 256, kOutputs = 128;
};

// Ascending by rows, for choose_tile().
inline constexpr GemmF32Tile kBf16Tiles[] = {{1, 1, 1, 2, 128},    {2, 1, 1, 3, 128}, {2, 4, 1, 2, 128},
                                             {4, 2, 1, 2, 128, 4}, {2, 8, 1, 2, 128}, {4, 4, 1, 2, 128, 4},
                                             {8, 8, 2, 2, 64},     {4, 8, 2, 2, 128}, {4, 8, 1, 2, 128, 4},
                                             {4, 16, 2, 3, 64},    {8, 8, 8, 3, 128}};
inline constexpr GemmF32Tile kE4m3Tiles[] = {{1, 1, 1, 2, 128}, {2, 1, 1, 2, 128}, {1, 8, 1, 2, 64}, {4, 4, 2, 2, 128},
                                             {4, 8, 2, 2, 64},  {4, 16, 2, 2, 64}, {8, 8, 8, 3, 64}};
inline constexpr GemmF32Tile kF32Tiles[] = {
    {1, 1, 1, 2, 128}, {2, 1, 1, 3, 128}, {1, 8, 1, 2, 128}, {2, 8, 1, 2, 128}, {4, 8, 8, 3, 128}};

inline constexpr GemmF32WarpTiles kBf16WarpTiles[] = {
    {8, 1, 8, 1, 2, 64}, {8, 2, 1, 4, 2, 128}, {8, 2, 2, 2, 2, 128}, {8, 4, 2, 1, 2, 128}};
inline constexpr GemmF32WarpTiles kE4m3WarpTiles[] = {
    {4, 2, 4, 1, 2, 64}, {4, 2, 1, 4, 2, 64}, {8, 2, 4, 1, 2, 64}, {8, 2, 1, 4, 2, 64}};

void gemm_f32_bf16(const GemmF32& a, const GemmF32Plan& plan, CUstream_st* stream);
void gemm_f32_e4m3(const GemmF32& a, const GemmF32Plan& plan, CUstream_st* stream);
void gemm_f32_f32(const GemmF32& a, const GemmF32Plan& plan, CUstream_st* stream);
void gemm_f32_warp_tiles(const GemmF32& a, const GemmF32Plan& plan, CUstream_st* stream);
void gemm_f32_many_rows(const GemmF32& a, CUstream_st* stream);

}  // namespace levin::cuda
