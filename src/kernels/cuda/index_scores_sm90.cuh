// index_scores, sm_90a. Each block scores its run of key pages (index_plan.cuh) against all query tokens of their
// requests.
//
//   in    q [rows, Hi, 128] e4m3, w [rows, Hi] f32, key pages: 64 x 128 e4m3, then 64 f32 scales
//   out   score [rows, S] f32; if asked for, the number of scores of each row per first digit (tiles/score_key.cuh)
//   grid  one block per SM      block  3 math warpgroups + 1 load warpgroup, of which one warp works
//   smem  struct Shared below: kStages key pages, one or two query tiles with their weights, one histogram per token
//   flow  load warp: for each request of the run, its queries and weights, then its pages, each page one swizzled box
//   and 256 bytes of
//         scales. Math warpgroup g takes pages g, g+3, ...: keys to registers, page released; per chunk of columns
//         (tokens x heads) four wgmma with the keys as rows, then relu, weight, sum over heads, scale, store. The next
//         chunk, or the next page's first, multiplies while one is summed. Histograms go to global memory when the run
//         leaves a request.
//   edge  keys behind a row's length are computed from whatever the page holds and not stored; padding rows have length
//   0, and a request
//         of padding alone is not in the plan; rows behind the last read as zeros. After a request's last page of a
//         warpgroup a chunk is multiplied in vain.
//   cost  8448 bytes a page for all tokens; 2 * Hi * n_tokens tensor cycles a page at full rate; about 1.5 issue slots
//   per (key, head,
//         token) and lane quarter
//   why   keys as rows of the product: 64 keys fill its fixed 64 rows whatever the number of heads and tokens, and a
//   row's head sum stays
//         inside four lanes. Keys in registers: shared memory then feeds the queries alone, which chunks of 64 columns
//         need at half its rate. Two chunks in flight: warpgroups left to themselves fall into step, all multiplying or
//         all summing.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <utility>

#include "kernels/cuda/index_plan.cuh"
#include "kernels/cuda/index_scores_launch.h"
#include "kernels/cuda/prims/launch.h"
#include "kernels/cuda/prims/load_matrix.cuh"
#include "kernels/cuda/prims/mbarrier.cuh"
#include "kernels/cuda/prims/sync.cuh"
#include "kernels/cuda/prims/tma.cuh"
#include "kernels/cuda/prims/wgmma.cuh"
#include "kernels/cuda/tiles/score_key.cuh"
#include "kernels/cuda/tiles/stage_ring.cuh"
#include "kernels/cuda/tiles/swizzle.cuh"

namespace levin::cuda {

constexpr int kKeyTileBytes = kIndexPageTokens * kIndexWidth;  // 8192
constexpr int kScoreMathGroups = 3;
constexpr int kScoreMathThreads = kScoreMathGroups * 128;
constexpr int kScoreThreads = kScoreMathThreads + 128;
constexpr int kScoreMathRegs = 160;
constexpr int kScoreLoadRegs = 32;
constexpr int kFlushBarrier = 1;  // named barrier of the math threads

// Tokens of one chunk of columns: the most that divide n_tokens and fill at most 64 columns.
constexpr int chunk_tokens(int n_heads, int n_tokens) {
  for (int tokens = n_tokens; tokens > 1; --tokens)
    if (n_tokens % tokens == 0 && tokens * n_heads <= 64) return tokens;
  return 1;
}

// Rows of one copy of queries: a copy has at most 256.
constexpr int query_box_rows(int n_rows) { return n_rows <= 256 ? n_rows : n_rows / 2; }

template <int kHeads, int kTokens>
struct ScoreConfig {
  static constexpr int kChunkTokens = chunk_tokens(kHeads, kTokens);
  static constexpr int kChunks = kTokens / kChunkTokens;
  static constexpr int kColumns = kChunkTokens * kHeads;
  static constexpr int kQueryBytes = kTokens * kHeads * kIndexWidth;
  static constexpr int kQueryStages = 2 * kQueryBytes <= 65536 ? 2 : 1;
  static constexpr int kQueryBoxRows = query_box_rows(kTokens * kHeads);
  static constexpr int kFixedBytes =
      kQueryStages * (kQueryBytes + kTokens * kHeads * 4 + kTokens * 4) + kTokens * kScoreBins * 4 + 1024;
  static constexpr int kFit = (kMaxSharedBytes - kFixedBytes) / (kKeyTileBytes + kIndexPageTokens * 4);
  // A multiple of the warpgroups: each stage then has one reader, which cannot run a lap ahead of a late page.
  static constexpr int kStages = (kFit < 15 ? kFit : 15) / kScoreMathGroups * kScoreMathGroups;
  static_assert(kStages >= 2 * kScoreMathGroups, "every math warpgroup needs a page and the next");

  struct Shared {
    alignas(1024) uint8_t query[kQueryStages][kQueryBytes];
    alignas(1024) uint8_t key[kStages][kKeyTileBytes];
    alignas(16) float key_scale[kStages][kIndexPageTokens];
    alignas(16) float weight[kQueryStages][kTokens * kHeads];
    int32_t n_candidates[kQueryStages][kTokens];  // keys that each token scores, from p.first on
    uint32_t histogram[kTokens][kScoreBins];
    RingBarriers<kStages> key_ring;
    RingBarriers<kQueryStages> query_ring;
  };
  static_assert(sizeof(Shared) <= kMaxSharedBytes, "too much shared memory");
};

// One item of the block's run: a request, and which of its pages are this block's.
struct ScoreRun {
  int request;
  int page;  // first page of the run within the request
  int n_pages;
  int ordinal;  // pages of the block before this run
};

// Calls f for each run of this block, in order. Load warp and math threads walk alike.
template <class F>
__device__ __forceinline__ void for_each_run(const PlanView& plan, const PlanBlock& block, F f) {
  int item = block.item, page = block.page, done = 0;
  while (done < block.n_pages) {
    const PlanItem it = plan.items[item];
    const int n_pages = min(block.n_pages - done, it.n_pages - page);
    f(ScoreRun{it.request, page, n_pages, done});
    done += n_pages;
    page = 0;
    ++item;
  }
}

template <class Config, int kHeads, int kTokens>
__device__ __forceinline__ void load_query(typename Config::Shared& s, const IndexScoreParams& p,
                                           const CUtensorMap& query_map, const ScoreRun& run, int stage) {
  const int first_row = run.request * kTokens;
  const int n_rows = static_cast<int>(p.n_rows - first_row < kTokens ? p.n_rows - first_row : kTokens);
  Mbarrier& full = s.query_ring.full[stage];
  const uint32_t weight_bytes = n_rows * kHeads * 4;
  full.arrive_expect_bytes(Config::kQueryBytes + weight_bytes);
#pragma unroll
  for (int row = 0; row < kTokens * kHeads; row += Config::kQueryBoxRows)
    tma_load_2d(s.query[stage] + row * kIndexWidth, query_map, full, 0, first_row * kHeads + row, kEvictNormal);
  bulk_load(s.weight[stage], p.w + int64_t{first_row} * kHeads, weight_bytes, full);
}

template <class Config, int kHeads, int kTokens>
__device__ __forceinline__ void load_role(typename Config::Shared& s, const IndexScoreParams& p, const PlanBlock& block,
                                          const CUtensorMap& query_map, const CUtensorMap& key_map) {
  const int lane = threadIdx.x % 32;
  const uint64_t policy = p.reread ? kEvictNormal : kEvictFirst;
  RingPosition<Config::kStages> key;
  RingPosition<Config::kQueryStages> query;
  for_each_run(p.plan, block, [&](const ScoreRun& run) {
    const int table_row = p.tables.row_of_request ? p.tables.row_of_request[run.request] : run.request;
    const int32_t* table = p.tables.data + table_row * p.tables.stride + run.page;
    int next_id = lane < run.n_pages ? table[lane] : 0;
    if (lane == 0) s.query_ring.empty[query.stage].wait(query.parity ^ 1);
    __syncwarp();
    if (lane < kTokens) {
      const bool exists = int64_t{run.request} * kTokens + lane < p.n_rows;
      const int length = exists ? row_length(p.lengths, p.max_length, run.request, lane) : 0;
      s.n_candidates[query.stage][lane] = max(length - p.first, 0);
      s.query_ring.full[query.stage].arrive();
    }
    __syncwarp();
    if (lane == 0) load_query<Config, kHeads, kTokens>(s, p, query_map, run, query.stage);
    query.advance();
    for (int base = 0; base < run.n_pages; base += 32) {
      const int id = next_id;
      next_id = base + 32 + lane < run.n_pages ? table[base + 32 + lane] : 0;
      const int n = min(32, run.n_pages - base);
      for (int i = 0; i < n; ++i) {
        const int page = __shfl_sync(0xffffffff, id, i);
        if (lane == 0) {
          Mbarrier& full = s.key_ring.full[key.stage];
          s.key_ring.empty[key.stage].wait(key.parity ^ 1);
          full.arrive_expect_bytes(kKeyTileBytes + kIndexPageTokens * 4);
          tma_load_3d(s.key[key.stage], key_map, full, 0, 0, page, policy);
          bulk_load(s.key_scale[key.stage], p.pages + page * p.page_bytes + kKeyTileBytes, kIndexPageTokens * 4, full,
                    policy);
        }
        key.advance();
      }
    }
  });
}

// A page as the first operand of the products: this lane's rows are keys row and row + 8 of the page, row as in
// own_key(). It stores the score of one of them, own_key().
struct PageKeys {
  uint32_t word[kIndexWidth / 32][4];
  float scale;  // of own_key()
  int page;
};

__device__ __forceinline__ int own_key() {
  const int lane = threadIdx.x % 32;
  return 16 * (threadIdx.x / 32 % 4) + lane / 4 + 8 * (lane & 1);
}

// Waits for page `ordinal` of the block, takes it into registers and releases its stage.
template <class Config>
__device__ __forceinline__ void take_page(PageKeys& keys, typename Config::Shared& s, int ordinal, int page) {
  const int stage = ordinal % Config::kStages;
  const int lane = threadIdx.x % 32;
  const int row = 16 * (threadIdx.x / 32 % 4) + lane % 16;
  s.key_ring.full[stage].wait(ordinal / Config::kStages & 1);
#pragma unroll
  for (int step = 0; step < kIndexWidth / 32; ++step)
    load_matrix_x4(keys.word[step], s.key[stage] + swizzle_128(row, 32 * step + 16 * (lane / 16)));
  keys.scale = s.key_scale[stage][own_key()];
  keys.page = page;
  __syncwarp();
  if (lane == 0) s.key_ring.empty[stage].arrive();
  __syncwarp();
}

// Starts the products of a page with the queries of one chunk.
template <class Config>
__device__ __forceinline__ void start_chunk(float (&product)[Config::kColumns / 2], const PageKeys& keys,
                                            const uint8_t* query, int chunk) {
  const uint64_t queries = wgmma_descriptor(query + chunk * Config::kColumns * kIndexWidth);
  wgmma_touch(product);
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < kIndexWidth / 32; ++step)
    Wgmma<Config::kColumns>::e4m3(product, keys.word[step], queries + descriptor_step(32 * step), step > 0);
  wgmma_commit();
}

// The score of own_key() for one token, without the key's scale: relu, weight and the sum over this lane's heads for
// both its rows, then over the row's four lanes; even lanes keep the upper row, odd lanes the lower.
template <int kHeads>
__device__ __forceinline__ float sum_heads(const float* product, const float* weight) {
  const int lane = threadIdx.x % 32;
  float upper = 0, lower = 0;
#pragma unroll
  for (int j = 0; j < kHeads / 8; ++j) {
    const float* d = product + 4 * j;
    const float2 w = *reinterpret_cast<const float2*>(weight + 8 * j + 2 * (lane % 4));
    upper = fmaf(w.x, fmaxf(d[0], 0), upper);
    lower = fmaf(w.x, d[2] + fabsf(d[2]), lower);
    upper = fmaf(w.y, fmaxf(d[1], 0), upper);
    lower = fmaf(w.y, d[3] + fabsf(d[3]), lower);
  }
  lower *= 0.5f;
  const float given = lane & 1 ? upper : lower;
  float kept = lane & 1 ? lower : upper;
  kept += __shfl_xor_sync(0xffffffff, given, 1);
  kept += __shfl_xor_sync(0xffffffff, kept, 2);
  return kept;
}

// Where this lane's scores of a run go. Lanes 0 and 1 of four store the two rows of an even token of a chunk, 2 and 3
// those of the odd one after it.
struct ScoreTarget {
  float* score;         // of key 0 of the first token this lane stores
  uint32_t* histogram;  // of that token, in shared memory; null if nothing is counted
};

__device__ __forceinline__ int second_of_pair() { return threadIdx.x / 2 % 2; }

// The first digit of one score.
__device__ __forceinline__ void count_score(const IndexScoreParams& p, uint32_t* histogram, int n_candidates,
                                            float score) {
  if (n_candidates <= p.min_ranked) return;
  atomicAdd(histogram + (score_key(score) >> kFirstShift), 1u);
  if (isnan(score)) atomicOr(p.fault, 1u);
}

// Stores the scores of one chunk.
template <class Config, int kHeads>
__device__ __forceinline__ void finish_chunk(const float (&product)[Config::kColumns / 2], const PageKeys& keys,
                                             const IndexScoreParams& p, const ScoreTarget& target, const float* weight,
                                             const int32_t* n_candidates, int chunk) {
  const int key = keys.page * kIndexPageTokens + own_key();
#pragma unroll
  for (int t = 0; t < Config::kChunkTokens; t += 2) {
    const int first_token = chunk * Config::kChunkTokens + t;
    float score = sum_heads<kHeads>(product + t * kHeads / 2, weight + first_token * kHeads);
    const bool paired = t + 1 < Config::kChunkTokens;
    if (paired) {
      const float odd = sum_heads<kHeads>(product + (t + 1) * kHeads / 2, weight + (first_token + 1) * kHeads);
      score = second_of_pair() ? odd : score;
    }
    score *= keys.scale;
    const int n = n_candidates[first_token + (paired ? second_of_pair() : 0)];
    const bool stores =
        static_cast<unsigned>(key - p.first) < static_cast<unsigned>(n) && (paired || second_of_pair() == 0);
    if (stores) target.score[first_token * p.score_stride + key] = score;
    if (target.histogram != nullptr) {
      if (stores) count_score(p, target.histogram + first_token * kScoreBins, n, score);
      __syncwarp();
    }
  }
  __syncwarp();
}

// All pages of a run that fall to this warpgroup, one chunk ahead.
template <class Config, int kHeads>
struct RunScorer {
  static constexpr int kChunks = Config::kChunks;

  typename Config::Shared& s;
  const IndexScoreParams& p;
  const ScoreRun& run;
  ScoreTarget target;
  int query_stage;
  int next;  // first page of the run not yet taken
  PageKeys keys[2];
  float product[2][Config::kColumns / 2];

  __device__ __forceinline__ void take(PageKeys& to) {
    take_page<Config>(to, s, run.ordinal + next, run.page + next);
    next += kScoreMathGroups;
  }

  // Chunk c of the page in keys[kAt] is in product[(kAt * kChunks + c) % 2]; the next one is started before it is
  // summed.
  template <int kAt, int kChunk>
  __device__ __forceinline__ void score_chunk() {
    constexpr int kThis = (kAt * kChunks + kChunk) % 2;
    constexpr bool kLast = kChunk + 1 == kChunks;
    start_chunk<Config>(product[1 - kThis], keys[kLast ? 1 - kAt : kAt], s.query[query_stage], kLast ? 0 : kChunk + 1);
    wgmma_wait<1>();
    wgmma_touch(product[kThis]);
    finish_chunk<Config, kHeads>(product[kThis], keys[kAt], p, target, s.weight[query_stage],
                                 s.n_candidates[query_stage], kChunk);
  }
  template <int kAt, int... kChunk>
  __device__ __forceinline__ void score_chunks(std::integer_sequence<int, kChunk...>) {
    (score_chunk<kAt, kChunk>(), ...);
  }

  // The page in keys[kAt]; false after the last.
  template <int kAt>
  __device__ __forceinline__ bool score_page() {
    const bool more = next < run.n_pages;
    if (more) take(keys[1 - kAt]);
    score_chunks<kAt>(std::make_integer_sequence<int, kChunks>());
    return more;
  }

  __device__ __forceinline__ void score_all() {
    if (next >= run.n_pages) return;
    take(keys[0]);
    keys[1] = keys[0];
    start_chunk<Config>(product[0], keys[0], s.query[query_stage], 0);
    while (score_page<0>() && score_page<1>()) continue;
    wgmma_wait<0>();
  }
};

// Adds the block's counts of one request to global memory and clears them, between two barriers of the math threads.
template <class Config, int kTokens>
__device__ __forceinline__ void flush_histograms(typename Config::Shared& s, const IndexScoreParams& p, int request) {
  named_barrier(kFlushBarrier, kScoreMathThreads);
  uint32_t* counts = &s.histogram[0][0];
  uint32_t* total = p.histogram + int64_t{request} * kTokens * kScoreBins;
  for (int i = threadIdx.x; i < kTokens * kScoreBins; i += kScoreMathThreads) {
    const uint32_t count = counts[i];
    if (count == 0) continue;
    atomicAdd(total + i, count);
    counts[i] = 0;
  }
  named_barrier(kFlushBarrier, kScoreMathThreads);
}

template <class Config, int kHeads, int kTokens>
__device__ __forceinline__ void math_role(typename Config::Shared& s, const IndexScoreParams& p,
                                          const PlanBlock& block) {
  const int group = threadIdx.x / 128;
  RingPosition<Config::kQueryStages> query;
  for_each_run(p.plan, block, [&](const ScoreRun& run) {
    s.query_ring.full[query.stage].wait(query.parity);
    __syncwarp();
    const int64_t first_row = int64_t{run.request} * kTokens + (Config::kChunkTokens > 1 ? second_of_pair() : 0);
    const ScoreTarget target{p.score + first_row * p.score_stride,
                             p.histogram ? s.histogram[Config::kChunkTokens > 1 ? second_of_pair() : 0] : nullptr};
    const int first = (group + kScoreMathGroups - run.ordinal % kScoreMathGroups) % kScoreMathGroups;
    RunScorer<Config, kHeads> scorer{s, p, run, target, query.stage, first};
    scorer.score_all();
    __syncwarp();
    if (threadIdx.x % 32 == 0) s.query_ring.empty[query.stage].arrive();
    query.advance();
    if (p.histogram != nullptr) flush_histograms<Config, kTokens>(s, p, run.request);
  });
}

template <int kHeads, int kTokens>
__global__ void __launch_bounds__(kScoreThreads, 1)
    index_scores_kernel(const IndexScoreParams p, const __grid_constant__ CUtensorMap query_map,
                        const __grid_constant__ CUtensorMap key_map) {
  using Config = ScoreConfig<kHeads, kTokens>;
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  auto& s = *reinterpret_cast<typename Config::Shared*>(shared_bytes);
  const PlanBlock block = p.plan.blocks[blockIdx.x];  // on its way while the barriers are set up
  if (threadIdx.x == 0) {
    s.key_ring.init(1, 4);  // readers: the warps of the warpgroup that takes the page
    s.query_ring.init(1 + kTokens,
                      kScoreMathThreads / 32);  // the lanes that write lengths too; readers: all math warps
    fence_barrier_init();
    prefetch_map(query_map);
    prefetch_map(key_map);
  }
  if (p.histogram != nullptr) {
    for (int i = threadIdx.x; i < kTokens * kScoreBins; i += kScoreThreads) (&s.histogram[0][0])[i] = 0;
  }
  __syncthreads();
  let_next_start();
  if (warp_index() < kScoreMathThreads / 32) {
    grow_registers<kScoreMathRegs>();
    math_role<Config, kHeads, kTokens>(s, p, block);
  } else {
    shrink_registers<kScoreLoadRegs>();
    if (warp_index() == kScoreMathThreads / 32) load_role<Config, kHeads, kTokens>(s, p, block, query_map, key_map);
  }
}

template <int kHeads, int kTokens>
void launch_index_scores_for(const IndexScoreParams& p, const IndexScoreMaps& maps, int n_blocks, StreamHandle stream) {
  using Config = ScoreConfig<kHeads, kTokens>;
  launch_kernel(index_scores_kernel<kHeads, kTokens>,
                {.grid = {static_cast<unsigned>(n_blocks)},
                 .block = {kScoreThreads},
                 .shared_bytes = sizeof(typename Config::Shared),
                 .stream = stream},
                p, maps.query, maps.key);
}

// The eight widths of one number of heads.
template <int kHeads>
void launch_index_scores_heads(const IndexScoreParams& p, const IndexScoreMaps& maps, int n_blocks, int n_tokens,
                               StreamHandle stream) {
  switch (n_tokens) {
    case 1:
      return launch_index_scores_for<kHeads, 1>(p, maps, n_blocks, stream);
    case 2:
      return launch_index_scores_for<kHeads, 2>(p, maps, n_blocks, stream);
    case 3:
      return launch_index_scores_for<kHeads, 3>(p, maps, n_blocks, stream);
    case 4:
      return launch_index_scores_for<kHeads, 4>(p, maps, n_blocks, stream);
    case 5:
      return launch_index_scores_for<kHeads, 5>(p, maps, n_blocks, stream);
    case 6:
      return launch_index_scores_for<kHeads, 6>(p, maps, n_blocks, stream);
    case 7:
      return launch_index_scores_for<kHeads, 7>(p, maps, n_blocks, stream);
    default:
      return launch_index_scores_for<kHeads, 8>(p, maps, n_blocks, stream);
  }
}

}  // namespace levin::cuda
