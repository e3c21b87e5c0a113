// sparse_mla over 1152-byte BF16 rows, sm_90a. A pair of blocks attends with 64 heads of one query row over its selected cache
// rows, or 1024 of them.
//
//   in    q [rows, H, 512 + 64] bf16, topk [rows, K], cache rows        out  [rows, H, 512] bf16 or f32
//   grid  whole rows, pairs: two blocks for every two SMs, which go from item to item, an item being a row and
//         a head group, or a part of them; clusters: rows x head groups x parts x 2
//   cluster  a pair, or the pairs of all parts of one item: 2 x parts      block  2 score, 2 value, 1 load warpgroup
//   smem  struct Shared below: kStages half key tiles of 64 indices, the block's half of the queries, two weight tiles,
//         what the other block sends
//   flow  Block h of a pair holds half the depth, latent 256h .. 256h+255 and rope 32h .. 32h+31, which is also its half
//         of the value columns: no cache byte is read twice in a pair. Load warpgroup: indices -> rows -> tiles.
//         Score warpgroup g, for tiles i = g, g+2, ...: scores over its half of the depth; the halves are exchanged and
//         added, in both blocks alike; running maximum, weights to shared memory. The half scores of tile i+2 are on
//         their way while those of i wait. Value warpgroup v: value columns 128v .. 128v+127 of the block's half, tile
//         after tile. Each role enters the next item as soon as it is done with its own part of this one.
//   parts A row's sums start afresh at index 1024. One pair does all parts and merges them through scratch memory that
//         stays in L2; or each part has its own pair, and these merge a share of the columns each: through shared memory
//         in a cluster, or through scratch memory. The same additions in the same order.
//   order The columns' own. FP8 rows have the four columns of a word of codes as 1, 3, 0, 2, which saves a permutation of
//         bytes a word: so do the queries' columns then, and the output's are put back.
//   edge  an invalid index reads nothing, its tile row is zero and its score -inf; tiles without any index are skipped;
//         heads beyond H are zero queries and not stored
//   cost  a tile and block: 18 wgmma m64n64k16 + 8 m64n128k16 = 1088 tensor cycles; 16 KB sent to the other block
//   why   sharing depth instead of heads or keys: every block loads only what it also multiplies, and accumulators are
//         64 registers a thread. Roles apart: the chain of a tile through exchange and softmax is long, and two tiles are
//         in it while values are added.
#include <algorithm>
#include <cstdint>

#include "kernels/cuda/prims/launch.h"
#include "kernels/cuda/sparse_mla/load.cuh"
#include "kernels/cuda/sparse_mla/scores.cuh"
#include "kernels/cuda/sparse_mla/values.cuh"

namespace levin::cuda::mla {
namespace {

// Of a thread. All have those of the value warpgroups when the kernel starts, and the load warpgroup takes some of the scores'.
constexpr int kValueRegs = 96, kScoreRegs = 88, kLoadRegs = 112;
static_assert(2 * kScoreRegs + kLoadRegs == 3 * kValueRegs);

template <MlaSharing kSharing>
__device__ __forceinline__ void score_role(Shared& s, const SparseMla& a, int n_parts, float scale_log2) {
  Work<kSharing> w(a, n_parts);
  do {
    ScoreState m;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      m.sum[h] = m.total_sum[h] = 0;
      m.sum_max[h] = m.total_max[h] = kNoCeiling;
    }
    load_queries<LatentRows::kBF16, kScoreThreads>(s.query, m.rope, a, w, static_cast<int>(threadIdx.x), kScoreBarrier);
    attend_scores(s, m, w, scale_log2, cluster_rank() ^ 1);
    finish_sums(s, m, w);
    publish_sums(s, m.total_sum, w.n_done());
  } while (w.advance());
  if (kSharing == MlaSharing::kClusters) cluster_sync();
  cluster_sync();  // nobody leaves while others may read or signal here
}

// The values of one item, in `m`; those of finished parts of a whole row in `total`.
template <bool kWholeRow, class W>
__device__ __forceinline__ void attend_values(Shared& s, ValueState& m, const W& w, float4* total) {
  start_part(m);
  m.total_max[0] = m.total_max[1] = kNoCeiling;
  for (int tile = 0; tile < w.n_tiles(); ++tile) {
    if (kWholeRow && begins_later_part(tile)) merge_values(m, total, tile == kPartTiles);
    add_values(s, m, w.base() + tile);
  }
}

template <MlaSharing kSharing>
__device__ __forceinline__ void value_role(Shared& s, const SparseMla& a, int n_parts) {
  Work<kSharing> w(a, n_parts);
  ValueState m;
  if constexpr (kSharing == MlaSharing::kWholeRows) {
    float4* total = scratch_slot(a, threadIdx.x - kScoreThreads);
    do {
      attend_values<true>(s, m, w, total);
      if (a.out_f32)
        write_whole_row<true>(s, m, a, w, total);
      else
        write_whole_row<false>(s, m, a, w, total);
    } while (w.advance());
  } else if constexpr (kSharing == MlaSharing::kPairs) {
    do {
      attend_values<false>(s, m, w, nullptr);
      share_part(s, m, a, w);
    } while (w.advance());
  } else {
    attend_values<false>(s, m, w, nullptr);
    named_barrier(kValueBarrier, kValueThreads);  // the other warpgroup may still read key tiles
    publish_part(s.part, m);
    cluster_sync();
    const PartsOfCluster parts{s, w.half()};
    write_share(parts, a, w, w.part(), w.n_parts());
  }
  cluster_sync();
}

template <MlaSharing kSharing>
__device__ __forceinline__ void load_role(Shared& s, const SparseMla& a, int n_parts) {
  Work<kSharing> w(a, n_parts);
  RingPosition<kStages> at;
  do {
    load_bf16_rows(s, a, w, at);
  } while (w.advance());
  __syncwarp();
  if (kSharing == MlaSharing::kClusters) cluster_sync();
  cluster_sync();
}

__device__ __forceinline__ void init_barriers(Shared& s) {
  s.key_ring.init(kLoadThreads, 8 * kWarpArrivals);  // the load threads; the warps of both value warpgroups
  s.sum_full.init(kScoreThreads / 4);
  s.sum_empty.init(kValueThreads / 32 * kWarpArrivals);
  for (int g = 0; g < 2; ++g) {
    s.weight_full[g].init(128);
    s.max_full[g].init(128);  // all threads: some write maxima, all have read earlier ones
    s.weight_empty[g].init(kValueThreads);
    s.exchange_full[g].init(1);   // and the bytes of the other block
    s.exchange_empty[g].init(4);  // warps of the other block
  }
  fence_barrier_init();
}

template <MlaSharing kSharing>
__global__ void __launch_bounds__(kThreads, 1)
    bf16_kernel(const __grid_constant__ SparseMla a, int n_parts, float scale_log2) {
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  Shared& s = *reinterpret_cast<Shared*>(shared_bytes);
  if (threadIdx.x == 0) init_barriers(s);
  launch_dependents();
  grid_dependency_wait();
  cluster_sync();
  if (warp_index() < kScoreThreads / 32) {
    setmaxnreg_dec<kScoreRegs>();
    score_role<kSharing>(s, a, n_parts, scale_log2);
  } else if (warp_index() < (kScoreThreads + kValueThreads) / 32) {
    value_role<kSharing>(s, a, n_parts);
  } else {
    setmaxnreg_inc<kLoadRegs>();
    load_role<kSharing>(s, a, n_parts);
  }
}

template <MlaSharing kSharing>
void launch_as(const SparseMla& a, StreamHandle stream) {
  constexpr float kLog2E = 1.44269504088896340736f;
  const int n_parts = mla_parts(a.n_topk);
  const int64_t n_rows = a.n_rows * mla_head_groups(a.n_heads);
  const bool clusters = kSharing == MlaSharing::kClusters;
  const int64_t n_items = kSharing == MlaSharing::kPairs ? n_rows * n_parts : n_rows;
  const int64_t n_clusters = clusters ? n_items : std::min(n_items, most_mla_pairs());
  const int cluster_blocks = clusters ? 2 * n_parts : 2;
  const Launch l{.grid = {static_cast<unsigned>(n_clusters * cluster_blocks)},
                 .block = {kThreads},
                 .shared_bytes = sizeof(Shared),
                 .cluster = cluster_blocks,
                 .pdl = true,
                 .stream = stream};
  launch_kernel(bf16_kernel<kSharing>, l, a, n_parts, a.scale * kLog2E);
}

}  // namespace
}  // namespace levin::cuda::mla

namespace levin::cuda {

void launch_sparse_mla_bf16(const SparseMla& a, MlaSharing sharing, StreamHandle stream) {
  if (sharing == MlaSharing::kClusters) return mla::launch_as<MlaSharing::kClusters>(a, stream);
  if (sharing == MlaSharing::kPairs) return mla::launch_as<MlaSharing::kPairs>(a, stream);
  mla::launch_as<MlaSharing::kWholeRows>(a, stream);
}

}  // namespace levin::cuda
