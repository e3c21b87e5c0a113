// Where codes and scales stand in packed MXFP4 weights, for the packer and the kernel.
//
// A strip is kMxStripRows = 64 outputs; along K it is cut into tiles of 128 columns. Tiles of a strip follow each other,
// strips follow strips; what lies beyond N or K is zero. A tile:
//
//   codes   [2][128 threads][4 words]: word i of half j is what a thread of the warpgroup multiplies in step s = 4j + i,
//           columns 16s .. 16s+15: rows and columns as the matrix unit wants its operand in registers, register r
//           row 16 * (thread / 32) + thread % 32 / 4 + 8 * (r % 2), columns 8 * (r / 2) + 2 * (thread % 4) + {0, 1}
//   scales  [64 rows][4 groups of 32 columns] e8m0
//
// A word has the first column of its four registers in its lower half, the second in its upper half. A half holds sign s
// and magnitude eem of a code so that shifting left by 3r brings them to bits 15 and 8..6, where a bf16 has sign, lowest
// exponent bits and highest mantissa bit. The last code uses the bits that the others leave:
//
//   bit   15  14  13  12  11  10   9  8 7 6   5 4 3   2 1 0
//         s0  s3  e3  s1  e3  m3  s2  e e m0  e e m1  e e m2
#pragma once

#include <cstdint>

namespace levin::cuda {

constexpr int kMxStripRows = 64;
constexpr int kMxTileColumns = 128;
constexpr int kMxCodeBytes = kMxStripRows * kMxTileColumns / 2;
constexpr int kMxTileBytes = kMxCodeBytes + kMxStripRows * 4;

// A code (sign and eem, four bits) of register r at its place in a half word.
constexpr uint32_t mx_half_bits(uint32_t code, int r) {
  const uint32_t sign = code >> 3 & 1, magnitude = code & 7;
  if (r < 3) return sign << (15 - 3 * r) | magnitude << (6 - 3 * r);
  return sign << 14 | (magnitude >> 2) << 13 | (magnitude & 3) << 10;
}

constexpr int64_t mx_tiles_of_strip(int k) { return (k + kMxTileColumns - 1) / kMxTileColumns; }

constexpr int mx_strips(int n) { return (n + kMxStripRows - 1) / kMxStripRows; }

}  // namespace levin::cuda
