// Tiles of the matrix unit (AMX), for *_amx.cc.
//
// A tile is a register of up to 16 rows of 64 bytes. In a product of tiles
//
//   a  [m, 32] bf16         rows of an operand, 32 k each
//   b  [16, 16] pairs       of k (2i, 2i + 1), 16 columns side by side, as a panel of bf16 weights has them
//   c  [m, 16] f32          += a b
//
// Tree      even = sum over i, ascending, of a[r, 2i] b[i, n][0], from zero; odd = the same of a[r, 2i + 1] b[i, n][1];
//           c[r, n] += even + odd. Each step is rounded to nearest even; subnormal values count as zero. It depends on row
//           r of a alone, so rows beyond those that are wanted may hold anything.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace levin::kernels {
namespace {

constexpr int64_t kTileRows = 16;
constexpr int64_t kTileK = 32;
constexpr int64_t kTileBytes = 1024;

// The shapes of tiles 0 to 7, in force as long as this lives on its thread.
class TileShapes {
 public:
  // Tiles 0 .. n_c-1 are accumulators of m rows, the n_a after them operands of as many; the rest are b.
  TileShapes(int n_c, int n_a, int64_t m) {
    struct alignas(64) {
      uint8_t palette = 1;
      uint8_t start_row = 0;
      uint8_t reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } shapes;
    for (int i = 0; i < 8; ++i) {
      shapes.row_bytes[i] = 64;
      shapes.rows[i] = static_cast<uint8_t>(i < n_c + n_a ? m : kTileRows);
    }
    asm volatile("ldtilecfg %0" : : "m"(shapes) : "memory");
  }
  ~TileShapes() { asm volatile("tilerelease"); }
  TileShapes(const TileShapes&) = delete;
  TileShapes& operator=(const TileShapes&) = delete;
};

// The intrinsics of GCC 12 do not say that they read and write memory; these do. Tiles are named by template argument.
template <int kTile>
[[gnu::always_inline]] inline void zero_tile() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}
template <int kTile>
[[gnu::always_inline]] inline void load_tile(const void* p, int64_t row_bytes) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(row_bytes), "i"(kTile) : "memory");
}
template <int kTile>
[[gnu::always_inline]] inline void store_tile(void* p, int64_t row_bytes) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(p), "r"(row_bytes), "i"(kTile) : "memory");
}
template <int kC, int kA, int kB>
[[gnu::always_inline]] inline void multiply_tiles() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
}

}  // namespace
}  // namespace levin::kernels
