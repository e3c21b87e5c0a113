// The 128-byte swizzle of the copy engine and the matrix unit.
//
// A tile has rows of 128 bytes, in groups of 8 rows (1024 bytes, aligned to 1024). Inside a row the eight 16-byte
// pieces are exchanged: piece c of row r lies at piece c ^ (r % 8). Reads of one piece from 8 rows then touch all 32
// banks.
#pragma once

#include <cstdint>

namespace levin::cuda {

constexpr int kSwizzleAlignment = 1024;
constexpr int kSwizzleRowBytes = 128;

// Byte offset in the tile of byte `column` (0..127) of `row`.
__device__ __forceinline__ constexpr uint32_t swizzle_128(uint32_t row, uint32_t column) {
  return row * kSwizzleRowBytes + (column ^ ((row & 7) << 4));
}

}  // namespace levin::cuda
