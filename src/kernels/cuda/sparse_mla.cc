#include "kernels/cuda/sparse_mla.h"

#include <fmt/format.h>

#include "base/check.h"
#include "kernels/cuda/prims/launch.h"
#include "kernels/cuda/sparse_mla_launch.h"

namespace levin::cuda {
namespace {

bool aligned_16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

void check(const SparseMla& a) {
  const std::string refusal = sparse_mla_support(a.n_heads, 512, 64, a.n_picks);
  LEVIN_CHECK(refusal.empty(), "{}", refusal);
  LEVIN_CHECK(aligned_16(a.q_latent) && aligned_16(a.q_rope) && aligned_16(a.cache) && aligned_16(a.out),
              "q, cache and out must be 16-byte aligned");
  LEVIN_CHECK(a.q_latent_row_stride % 8 == 0 && a.q_rope_row_stride % 8 == 0, "query row strides {} and {}",
              a.q_latent_row_stride, a.q_rope_row_stride);
  LEVIN_CHECK(a.scratch != nullptr && aligned_16(a.scratch), "sparse attention needs its scratch memory");
  LEVIN_CHECK(a.scale > 0, "a softmax scale of {}", a.scale);
  LEVIN_CHECK(a.page_bytes % 16 == 0, "latent pages of {} bytes", a.page_bytes);
  LEVIN_CHECK(a.tables.data == nullptr || a.table_row != nullptr, "positions need the table row of each query");
}

// Waves of blocks times the tiles of a block, plus what a block spends before and after its tiles, in tiles.
int64_t cost(int64_t n_blocks, int n_tiles) {
  constexpr int64_t kFixedTiles = 3;
  const int64_t n_waves = (n_blocks + n_multiprocessors() - 1) / n_multiprocessors();
  return n_waves * (n_tiles + kFixedTiles);
}

int choose_parts(const SparseMla& a, MlaSplit split) {
  const int n_parts = (a.n_picks + kMlaPartPicks - 1) / kMlaPartPicks;
  if (split == MlaSplit::kWholeRows || n_parts == 1) return 1;
  if (split == MlaSplit::kParts) return n_parts;
  const int64_t n_blocks = a.n_rows * ((a.n_heads + kMlaHeadGroup - 1) / kMlaHeadGroup) * 2;
  return cost(n_blocks * n_parts, kMlaPartPicks / 64) < cost(n_blocks, a.n_picks / 64) ? n_parts : 1;
}

}  // namespace

std::string sparse_mla_support(int n_heads, int d_latent, int d_rope, int n_picks) {
  if (d_latent != 512 || d_rope != 64)
    return fmt::format("sparse attention on CUDA has latent width 512 and rope width 64, not {} and {}", d_latent,
                       d_rope);
  if (n_heads < 1 || n_heads > 128) return fmt::format("sparse attention on CUDA has 1 to 128 heads, not {}", n_heads);
  if (n_picks < 64 || n_picks > 2048 || n_picks % 64 != 0)
    return fmt::format("sparse attention on CUDA takes a multiple of 64 picks up to 2048, not {}", n_picks);
  return {};
}

int64_t sparse_mla_scratch_bytes() {
  constexpr int64_t kMultiprocessorIds = 144;  // of the whole chip; those of a product need not be contiguous
  return kMultiprocessorIds * 64 * 1024;
}

void sparse_mla(const SparseMla& a, StreamHandle stream, MlaSplit split) {
  check(a);
  if (a.n_rows == 0) return;
  const int n_parts = choose_parts(a, split);
  switch (a.format) {
    case LatentRows::kFp8:
      return launch_sparse_mla_fp8(a, n_parts, stream);
    case LatentRows::kBF16:
      return launch_sparse_mla_bf16(a, n_parts, stream);
  }
}

}  // namespace levin::cuda
