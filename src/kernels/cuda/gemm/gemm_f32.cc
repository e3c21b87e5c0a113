#include "kernels/cuda/gemm/gemm_f32.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <span>
#include <tuple>

#include "base/check.h"
#include "kernels/cuda/gemm/gemm_f32_launch.h"
#include "kernels/cuda/plan_thresholds.h"
#include "tensor/row_formats.h"

namespace levin::cuda {
namespace {

constexpr int kBlockK = 128;
constexpr int kClusters[] = {1, 2, 4, 6, 7, 8};  // sizes; K is 48 blocks in GLM-5, 56 in DeepSeek-V3.2
constexpr int kFewOutputs = 1024, kManyRows = 64, kFewestTileRows = 9;

int ceil_div(int64_t a, int64_t b) { return static_cast<int>((a + b - 1) / b); }

std::span<const GemmF32Tile> tiles_of(DType w_type) {
  if (w_type == DType::kBF16) return kBf16Tiles;
  if (w_type == DType::kF32) return kF32Tiles;
  return kE4m3Tiles;
}

GemmF32Plan strips_plan(size_t index, const GemmF32Tile& tile, int split, int cluster) {
  return {GemmF32Kernel::kStrips, static_cast<int>(index), tile.strip(), tile.tile_rows(), split, cluster};
}
// Of weights that have none, an empty span.
std::span<const GemmF32WarpTiles> warp_tiles_of(DType w_type) {
  if (w_type == DType::kBF16) return kBf16WarpTiles;
  if (w_type == DType::kF8E4M3) return kE4m3WarpTiles;
  return {};
}
GemmF32Plan warp_tiles_plan(size_t index, const GemmF32WarpTiles& tiles) {
  return {GemmF32Kernel::kWarpTiles, static_cast<int>(index), tiles.strip(), tiles.tile_rows(), tiles.slots, 1};
}
bool takes(const GemmF32WarpTiles& tiles, const GemmF32Shape& s) {
  return s.n >= 4 && tiles.slots <= ceil_div(s.k, kBlockK);
}
GemmF32Plan many_rows_plan() {
  return {.kernel = GemmF32Kernel::kManyRows, .strip = GemmF32ManyRows::kOutputs, .rows = GemmF32ManyRows::kRows};
}

// Calls use(plan) for each plan of a shape.
template <class Use>
void for_each_plan(const GemmF32Shape& s, const Use& use) {
  const std::span<const GemmF32Tile> tiles = tiles_of(s.w_type);
  for (size_t i = 0; i < tiles.size(); ++i) {
    for (int split = 1; split <= tiles[i].groups(); split *= 2) {
      for (const int cluster : kClusters) {
        const int n_slots = split * cluster;
        if (n_slots > ceil_div(s.k, kBlockK) || !tiles[i].takes_slots(n_slots)) continue;
        use(strips_plan(i, tiles[i], split, cluster));
      }
    }
  }
  const std::span<const GemmF32WarpTiles> warp_tiles = warp_tiles_of(s.w_type);
  for (size_t i = 0; i < warp_tiles.size(); ++i)
    if (takes(warp_tiles[i], s)) use(warp_tiles_plan(i, warp_tiles[i]));
  use(many_rows_plan());
}

int n_items(const GemmF32Shape& s, const GemmF32Tile& tile, int split) {
  const int n_strips = s.n_heads * ceil_div(s.n, tile.strip());
  return ceil_div(s.n_rows, tile.tile_rows()) * ceil_div(n_strips, tile.groups() / split);
}

// Whether whole strips keep the SMs busy: above kManyRows rows one round is enough, below rounds must be at least four fifths full.
// Groups always share the strips of one row.
bool are_strips_enough(const GemmF32Shape& s, const GemmF32Tile& tile) {
  const int items = n_items(s, tile, 1), n_rounds = ceil_div(items, s.n_sms);
  if (s.n_rows > kManyRows) return items >= s.n_sms;
  return s.n_rows > 1 && items * 5 >= n_rounds * s.n_sms * 4;
}

// Whether several slots may share the blocks of k at all: adding the sums of two or three takes longer than they save.
bool has_blocks_to_share(const GemmF32Shape& s) { return ceil_div(s.k, kBlockK) > 3; }

// Groups that share a strip: none if strips are enough, since adding partial sums takes longer than the idle rest of a round;
// otherwise all of a block's that have a block of k then.
int split_of(const GemmF32Shape& s, const GemmF32Tile& tile) {
  if (!has_blocks_to_share(s) || are_strips_enough(s, tile)) return 1;
  return std::min(tile.groups(), static_cast<int>(std::bit_floor(static_cast<unsigned>(ceil_div(s.k, kBlockK)))));
}

// Up to kFewOutputs outputs are in strips of 32, so that many SMs share them, until rows make enough of them busy.
bool is_few_outputs(const GemmF32Shape& s) { return s.n_heads * s.n <= kFewOutputs && s.n_rows <= kManyRows; }

// The instance with the fewest rows in a tile that are enough, or with the most, whose strip fits the outputs; the one for
// many rows only where it keeps all SMs busy.
int choose_tile(const GemmF32Shape& s) {
  const std::span<const GemmF32Tile> tiles = tiles_of(s.w_type);
  int best = -1;
  for (size_t i = 0; i < tiles.size(); ++i) {
    const GemmF32Tile& tile = tiles[i];
    if ((tile.strip() == 32) != is_few_outputs(s) || tile.strip() > std::max(ceil_div(s.n, 128) * 128, 128)) continue;
    if (tile.groups() == 1 && best >= 0 && n_items(s, tile, 1) < s.n_sms) continue;
    const int rows = tile.tile_rows(), before = best < 0 ? 0 : tiles[static_cast<size_t>(best)].tile_rows();
    if (before < s.n_rows && rows > before) best = static_cast<int>(i);
  }
  return best;
}

// Thread blocks that share a strip where there are SMs for them: the fewest that make the fewest rounds. Large clusters need SMs near
// each other, and find these only while half of all are free.
int choose_cluster(const GemmF32Shape& s, const GemmF32Tile& tile, int split) {
  const int n_blocks = ceil_div(s.k, kBlockK), items = n_items(s, tile, split);
  int best = 1, fewest = ceil_div(n_blocks, split);
  if (!has_blocks_to_share(s)) return best;
  for (const int cluster : kClusters) {
    const int n_slots = split * cluster, n_rounds = ceil_div(n_blocks, n_slots);
    if (items * cluster > (cluster > 4 ? s.n_sms / 2 : s.n_sms) || n_slots > n_blocks || !tile.takes_slots(n_slots))
      continue;
    if (n_rounds < fewest) fewest = n_rounds, best = cluster;
  }
  return best;
}

// Multiply-adds of a thread of the busiest SM for each k of a block.
int64_t cost(int n_rounds, int rows, int outputs, int n_blocks) {
  return int64_t{n_rounds} * rows * outputs * n_blocks;
}
int64_t cost(const GemmF32Shape& s, const GemmF32WarpTiles& tiles) {
  const int items = ceil_div(s.n_rows, tiles.tile_rows()) * s.n_heads * ceil_div(s.n, tiles.strip());
  return cost(ceil_div(items, s.n_sms), tiles.rows, tiles.kOutputs, ceil_div(ceil_div(s.k, kBlockK), tiles.slots));
}
int64_t cost_of_strips(const GemmF32Shape& s, const GemmF32Plan& plan) {
  const GemmF32Tile& tile = tiles_of(s.w_type)[static_cast<size_t>(plan.tile)];
  const int n_rounds = ceil_div(n_items(s, tile, plan.split), std::max(1, s.n_sms / plan.cluster));
  return cost(n_rounds, tile.rows, tile.outputs, ceil_div(ceil_div(s.k, kBlockK), plan.split * plan.cluster));
}
// The instance with the least cost, of several the one whose threads have the most rows, which need the fewest loads for each, and of
// these the one that reads weights for the most rows.
int choose_warp_tiles(const GemmF32Shape& s) {
  const std::span<const GemmF32WarpTiles> all = warp_tiles_of(s.w_type);
  const auto rank = [&](const GemmF32WarpTiles& tiles) {
    return std::tuple(cost(s, tiles), -tiles.rows, -tiles.tile_rows());
  };
  int best = -1;
  for (int i = 0; i < static_cast<int>(all.size()); ++i) {
    const GemmF32WarpTiles& tiles = all[static_cast<size_t>(i)];
    if (takes(tiles, s) && (best < 0 || rank(tiles) < rank(all[static_cast<size_t>(best)]))) best = i;
  }
  return best;
}

// Tiles of 256 rows where they keep all SMs busy; fewer rows would leave most of one empty.
bool has_many_rows(const GemmF32Shape& s) {
  constexpr int kFewestRows = 192;
  const int n_strips = s.n_heads * ceil_div(s.n, GemmF32ManyRows::kOutputs);
  return s.n_rows >= kFewestRows && ceil_div(s.n_rows, GemmF32ManyRows::kRows) * n_strips >= s.n_sms;
}

}  // namespace

std::string GemmF32Plan::describe() const {
  if (kernel == GemmF32Kernel::kWarpTiles)
    return fmt::format("warp tiles of {} by {} rows, {} blocks of K at a time", strip, rows, split);
  if (kernel == GemmF32Kernel::kManyRows) return fmt::format("tiles of {} by {} rows", strip, rows);
  return fmt::format("strips of {} by {} rows, K in {} x {}", strip, rows, split, cluster);
}

GemmF32Plan plan_gemm_f32(const GemmF32Shape& shape) {
  if (has_many_rows(shape)) return many_rows_plan();
  const int i = choose_tile(shape);
  const GemmF32Tile& tile = tiles_of(shape.w_type)[static_cast<size_t>(i)];
  const int split = split_of(shape, tile);
  const GemmF32Plan strips = strips_plan(static_cast<size_t>(i), tile, split, choose_cluster(shape, tile, split));
  const int j = shape.n_rows >= kFewestTileRows && !is_few_outputs(shape) ? choose_warp_tiles(shape) : -1;
  if (j < 0) return strips;
  const GemmF32WarpTiles& tiles = warp_tiles_of(shape.w_type)[static_cast<size_t>(j)];
  if (cost(shape, tiles) > cost_of_strips(shape, strips)) return strips;  // too few strips for all SMs
  return warp_tiles_plan(static_cast<size_t>(j), tiles);
}

bool rounds_rows(const GemmF32Plan& plan, const GemmF32Shape& shape) {
  if (shape.n % kQuantBlock != 0) return false;
  if (plan.kernel != GemmF32Kernel::kStrips) return true;
  const GemmF32Tile& tile = tiles_of(shape.w_type)[static_cast<size_t>(plan.tile)];
  return plan.cluster == 1 && plan.split > 1 && tile.groups() / plan.split * plan.strip % kQuantBlock == 0;
}

std::vector<GemmF32Plan> gemm_f32_plans(const GemmF32Shape& shape) {
  std::vector<GemmF32Plan> plans;
  for_each_plan(shape, [&](const GemmF32Plan& plan) { plans.push_back(plan); });
  return plans;
}

std::vector<int64_t> gemm_f32_thresholds(const GemmF32Shape& shape, int64_t most_rows) {
  return plan_thresholds(most_rows, [&](int64_t n_rows) {
    GemmF32Shape s = shape;
    s.n_rows = static_cast<int>(n_rows);
    return plan_gemm_f32(s);
  });
}

std::string gemm_f32_support(DType w_type, int64_t k) {
  if (w_type != DType::kF32 && w_type != DType::kBF16 && w_type != DType::kF8E4M3)
    return fmt::format("products of f32 rows on CUDA have weights in f32, bf16 or f8_e4m3, not {}", dtype_name(w_type));
  const int64_t multiple = 16 / dtype_bytes(w_type);
  if (k > 0 && k % multiple == 0) return {};
  return fmt::format("products of f32 rows with {} weights on CUDA need K a multiple of {}, not {}", dtype_name(w_type),
                     multiple, k);
}

void gemm_f32(const GemmF32& a, const GemmF32Plan& plan, CUstream_st* stream) {
  if (a.n_tokens == 0) return;
  const std::string refused = gemm_f32_support(a.w_type, a.k);
  LEVIN_CHECK(refused.empty(), "{}", refused);
  LEVIN_CHECK(a.x_ld % 4 == 0 && (a.n_heads == 1 || a.x_head_ld % 4 == 0), "gemm_f32: rows {} and heads {} apart",
              a.x_ld, a.x_head_ld);
  LEVIN_CHECK(plan.split * plan.cluster <= ceil_div(a.k, kBlockK), "gemm_f32: {} slots for a K of {}",
              plan.split * plan.cluster, a.k);
  const bool rounds = a.rounded.codes != nullptr;
  LEVIN_CHECK(rounds == (a.out == nullptr), "gemm_f32: one of out and rounded rows is wanted");
  LEVIN_CHECK(!rounds || rounds_rows(plan, {.w_type = a.w_type, .n = a.n}), "gemm_f32: {} cannot round rows of {}",
              plan.describe(), a.n);
  if (plan.kernel == GemmF32Kernel::kManyRows) return gemm_f32_many_rows(a, stream);
  if (plan.kernel == GemmF32Kernel::kWarpTiles) return gemm_f32_warp_tiles(a, plan, stream);
  if (a.w_type == DType::kBF16) return gemm_f32_bf16(a, plan, stream);
  if (a.w_type == DType::kF32) return gemm_f32_f32(a, plan, stream);
  gemm_f32_e4m3(a, plan, stream);
}

}  // namespace levin::cuda
