// index_scores, sm_90a. Each block scores its run of key pages (index_plan.cuh) against all query tokens of their
// requests.
//
//   in    q [rows, Hi, 128] e4m3, w [rows, Hi] f32, key pages: 64 x 128 e4m3, then 64 f32 scales
//   out   score [rows, S] f32; if asked for, the number of scores of each row in each bin (tiles/score_key.cuh)
//   grid  one block per SM
//   block 2 or 3 math warpgroups + 1 load warpgroup, of which two to four warps work
//   smem  struct Shared below: kStages key pages, one or two query tiles with their weights, one histogram per token
//   flow  load warps: one brings queries, weights and lengths of each request of the run, one or one for each math
//         warpgroup its pages, each one swizzled box and 256 bytes of scales. Math warpgroup g takes pages g,
//         g + kMathGroups, ...: per chunk of columns (tokens x heads) four wgmma with the keys as rows, then relu,
//         weight, sum over heads, scale, store. Where tokens fill several chunks it goes through a few pages chunk
//         after chunk. It waits for its next page while the products of this one run. Histograms go to global memory
//         when the run leaves a request.
//   edge  keys after a row's length are computed from whatever the page holds and not stored; padding rows have length
//         0, and a request of padding alone is not in the plan; where a request has fewer rows, those after it are read and
//         neither stored nor counted
//   cost  8448 bytes a page for all tokens; 2 * Hi * n_tokens tensor cycles a page at full rate; two issue slots for
//         every 32 pairs of key and head of a token, and about 100 a page and warp besides
//   why   keys as rows of the product: 64 keys fill its fixed 64 rows whatever the number of heads and tokens, and a
//         row's head sum stays inside four lanes. One wide product for all tokens, summed as one straight run of
//         independent chains: what a warp does between two products is what costs time here (docs/deep_dives/indexer.md).
//         Products and sums of different warpgroups overlap; a second product in flight in each brought nothing.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/index/index_plan.cuh"
#include "kernels/cuda/index/index_scores_launch.h"
#include "kernels/cuda/prims/cluster_memory.cuh"
#include "kernels/cuda/prims/launch.h"
#include "kernels/cuda/prims/mbarrier.cuh"
#include "kernels/cuda/prims/sync.cuh"
#include "kernels/cuda/prims/tma.cuh"
#include "kernels/cuda/prims/wgmma.cuh"
#include "kernels/cuda/tiles/score_key.cuh"
#include "kernels/cuda/tiles/stage_ring.cuh"

namespace levin::cuda {

// max(x, 0); a NaN stays, where fmaxf would return 0.
__device__ __forceinline__ float relu(float x) {
  float y;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(y) : "f"(x));
  return y;
}

constexpr int kKeyTileBytes = kIndexPageTokens * kIndexWidth;  // 8192
constexpr int kFlushBarrier = 1;                               // named barrier of the math threads

// Columns of one chunk, at most. Two warpgroups have registers for 256; where tokens fill many chunks anyway, three of
// 128 are faster. 7 tokens of 64 heads go in threes: other chunks of them leave the compiler without registers.
constexpr int max_columns(int n_heads, int n_tokens) {
  const int columns = n_heads * n_tokens;
  return columns <= 384 ? 256 : columns == 448 ? 192 : 128;
}

// Tokens of one chunk: the fewest chunks, as even as can be. The last chunk may have fewer.
constexpr int chunk_tokens(int n_heads, int n_tokens) {
  const int most = max_columns(n_heads, n_tokens) / n_heads, n_chunks = (n_tokens + most - 1) / most;
  return (n_tokens + n_chunks - 1) / n_chunks;
}

// Rows of one copy of queries: a copy has at most 256.
constexpr int query_box_rows(int n_rows) { return n_rows <= 256 ? n_rows : n_rows / 2; }

// One item of the block's run: a request, and which of its pages are this block's.
struct ScoreRun {
  int first_row;  // of the request
  int n_rows;
  int request;
  int page;  // first page of the run within the request
  int n_pages;
  int ordinal;  // pages of the block before this run

  // The block's pages fall to n warps or warpgroups in turn: the first of this run that falls to the i-th.
  __device__ __forceinline__ int first_page_of(int i, int n) const { return (i + n - ordinal % n) % n; }
};

template <int kHeadsOf, int kTokensOf, bool kCountsOf>
struct ScoreConfig {
  static constexpr int kHeads = kHeadsOf;
  static constexpr int kTokens = kTokensOf;
  static constexpr bool kCounts = kCountsOf;  // the scores, in bins
  static constexpr int kChunkTokens = chunk_tokens(kHeads, kTokens);
  static constexpr int kChunks = (kTokens + kChunkTokens - 1) / kChunkTokens;
  static constexpr int kLastTokens = kTokens - (kChunks - 1) * kChunkTokens;
  static constexpr int kMathGroups = kChunkTokens * kHeads > 128 ? 2 : 3;
  static constexpr int kMathThreads = kMathGroups * 128;
  static constexpr int kThreads = kMathThreads + 128;
  static constexpr int kMathRegs =
      kMathGroups == 2 ? 232 : 160;  // with the load warpgroup's, what the block starts with
  static constexpr int kLoadRegs = kMathGroups == 2 ? 40 : 32;
  // During the products and sums of several tokens one load warp gets too few turns to ask for all pages in time; more
  // of them begin later, which one token and chunk after chunk do not make up for.
  static constexpr int kLoadWarps = kTokens > 1 && kChunks == 1 ? kMathGroups : 1;
  // The weights of a chunk stay in registers where the products leave room.
  static constexpr bool kHoldWeights = kChunkTokens * kHeads * 3 / 4 <= kMathRegs - 40;
  static constexpr int kQueryBytes = kTokens * kHeads * kIndexWidth;
  static constexpr int kQueryStages = 2 * kQueryBytes <= 65536 ? 2 : 1;
  static constexpr int kQueryBoxRows = query_box_rows(kTokens * kHeads);
  static constexpr int kFixedBytes = kQueryStages * (kQueryBytes + kTokens * kHeads * 4 + kTokens * 4) +
                                     (kCounts ? kTokens : 1) * kScoreBins * 4 + 1024;
  static constexpr int kFit = (kMaxSharedBytes - kFixedBytes) / (kKeyTileBytes + kIndexPageTokens * 4);
  // A multiple of the warpgroups: each stage then has one reader, which cannot run a lap ahead of a late page.
  static constexpr int kStages = (kFit < 16 ? kFit : 16) / kMathGroups * kMathGroups;
  static_assert(kStages >= 2 * kMathGroups, "every math warpgroup needs a page and the next");
  // Pages that a warpgroup scores together, chunk after chunk, while one place is free for the next. The weights of a
  // chunk are then in registers for all of them, and are not read from shared memory between the sums.
  static constexpr int kMostPages = kChunks == 1 ? 1 << 20 : kStages / kMathGroups - 1;

  struct Shared {
    alignas(1024) uint8_t query[kQueryStages][kQueryBytes];
    alignas(1024) uint8_t key[kStages][kKeyTileBytes];
    alignas(16) float key_scale[kStages][kIndexPageTokens];
    alignas(16) float weight[kQueryStages][kTokens * kHeads];
    int32_t n_candidates[kQueryStages][kTokens];  // keys that each token scores, from p.first on
    uint32_t histogram[kCounts ? kTokens : 1][kScoreBins];
    RingBarriers<kStages> key_ring;
    RingBarriers<kQueryStages> query_ring;
  };
  static_assert(sizeof(Shared) <= kMaxSharedBytes, "too much shared memory");
};

// Calls f for each run of this block, in order. Load warps and math threads walk alike.
template <class F>
__device__ __forceinline__ void for_each_run(const PlanView& plan, const PlanBlock& block, F f) {
  if (block.n_pages == 0) return;
  ScoreRun run{block.first_row, block.n_rows, block.request, block.page, block.first_pages, 0};
  for (int item = block.item + 1;; ++item) {
    const int done = run.ordinal + run.n_pages;
    const bool more = done < block.n_pages;
    const PlanItem next = more ? plan.items[item] : PlanItem{};  // on its way while this run is worked on
    f(run);
    if (!more) return;
    run = {next.first_row, next.n_rows, next.request, 0, min(block.n_pages - done, next.n_pages), done};
  }
}

// One warp: queries, weights and lengths of each run's request.
template <class Config>
__device__ __forceinline__ void load_queries_role(typename Config::Shared& s, const IndexScoreParams& p,
                                                  const PlanBlock& block, const CUtensorMap& query_map) {
  constexpr int kTokens = Config::kTokens, kHeads = Config::kHeads;
  const int lane = threadIdx.x % 32;
  RingPosition<Config::kQueryStages> at;
  for_each_run(p.plan, block, [&](const ScoreRun& run) {
    Mbarrier& full = s.query_ring.full[at.stage];
    s.query_ring.empty[at.stage].wait(at.parity ^ 1);
    if (lane == 0) {
      const uint32_t weight_bytes = run.n_rows * kHeads * 4;
      full.arrive_expect_bytes(Config::kQueryBytes + weight_bytes);
#pragma unroll
      for (int row = 0; row < kTokens * kHeads; row += Config::kQueryBoxRows)
        tma_load_2d(s.query[at.stage] + row * kIndexWidth, query_map, full, 0, run.first_row * kHeads + row,
                    kEvictNormal);
      bulk_load(s.weight[at.stage], p.w + int64_t{run.first_row} * kHeads, weight_bytes, full);
    }
    __syncwarp();
    if (lane < kTokens) {
      const int length = lane < run.n_rows ? row_length(p.lengths, p.max_length, run.first_row + lane, kTokens) : 0;
      s.n_candidates[at.stage][lane] = max(length - p.first, 0);
      full.arrive();
    }
    at.advance();
  });
}

// One or more others: the key pages that fall to each. Stages too: s * kLoadWarps + warp for each s.
template <class Config>
__device__ __forceinline__ void load_keys_role(typename Config::Shared& s, const IndexScoreParams& p,
                                               const PlanBlock& block, const CUtensorMap& key_map, int warp) {
  constexpr int kStep = Config::kLoadWarps;
  const int lane = threadIdx.x % 32;
  RingPosition<Config::kStages / kStep> at;
  for_each_run(p.plan, block, [&](const ScoreRun& run) {
    const int first = run.first_page_of(warp, kStep);
    const int n_pages = (run.n_pages - first + kStep - 1) / kStep;
    const int table_row = p.tables.row_of_request ? p.tables.row_of_request[run.request] : run.request;
    const int32_t* table = p.tables.data + table_row * p.tables.stride + run.page + first;
    int next_id = lane < n_pages ? table[lane * kStep] : 0;
    for (int base = 0; base < n_pages; base += 32) {
      const int id = next_id;
      next_id = base + 32 + lane < n_pages ? table[(base + 32 + lane) * kStep] : 0;
      const int n = min(32, n_pages - base);
      for (int i = 0; i < n; ++i) {
        const int page = __shfl_sync(0xffffffff, id, i);
        if (lane == 0) {
          const int stage = kStep == 1 ? at.stage : at.stage * kStep + warp;
          Mbarrier& full = s.key_ring.full[stage];
          s.key_ring.empty[stage].wait(at.parity ^ 1);
          full.arrive_expect_bytes(kKeyTileBytes + kIndexPageTokens * 4);
          tma_load_3d(s.key[stage], key_map, full, 0, 0, page, kEvictFirst);
          bulk_load(s.key_scale[stage], p.pages + page * p.page_bytes + kKeyTileBytes, kIndexPageTokens * 4, full,
                    kEvictFirst);
        }
        at.advance();
      }
    }
  });
}

// What a math thread does of every page: of the product it holds rows r and r + 8 of its warp, r = lane / 4, and columns
// 8 * j + 2 * (lane % 4) + {0, 1}. Even lanes store the upper row's scores, odd lanes the lower's; of a pair of tokens
// lanes 0 and 1 of four store the first one's, lanes 2 and 3 the second's.
struct ScoreLane {
  int group;
  int quarter;  // lane % 4
  int key;      // of the page

  __device__ __forceinline__ ScoreLane() {
    const int thread = threadIdx.x, lane = thread % 32;
    group = warp_index() / 4;
    quarter = lane % 4;
    key = 16 * (thread / 32 % 4) + lane / 4 + 8 * (lane & 1);
    keep_in_register(group);
    keep_in_register(quarter);
    keep_in_register(key);
  }
  __device__ __forceinline__ bool keeps_lower() const { return quarter & 1; }
  __device__ __forceinline__ int second_of_pair() const { return quarter / 2; }
};

// Starts the products of a page with the queries of one chunk; low words of their descriptors.
template <int kColumns>
__device__ __forceinline__ void start_products(float (&product)[kColumns / 2], uint32_t key, uint32_t query) {
  wgmma_touch(product);
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < kIndexWidth / 32; ++step)
    Wgmma<kColumns>::e4m3(product, join_descriptor(key + 2 * step, descriptor_high()),
                          join_descriptor(query + 2 * step, descriptor_high()), step > 0);
  wgmma_commit();
}

// Counts `score` in the histogram at a shared address, and lets a NaN stick in `worst`, if slot < n. One block of
// instructions, because the compiler would put what finds the bin under a branch.
__device__ __forceinline__ void count_score(uint32_t histogram, float score, int slot, int n, float& worst) {
  asm volatile(
      "{\n .reg .pred counts;\n"
      "setp.lt.u32 counts, %2, %3;\n"
      "@counts red.shared.add.u32 [%1], 1;\n"
      "@counts max.NaN.f32 %0, %0, %4;\n}\n"
      : "+f"(worst)
      : "r"(histogram + 4 * score_bin(score_key(score))), "r"(slot), "r"(n), "f"(score)
      : "memory");
}

// Scores the pages of a run that fall to one warpgroup.
template <class Config>
class RunScorer {
 public:
  using Ring = RingPosition<Config::kStages / Config::kMathGroups>;

  __device__ __forceinline__ RunScorer(typename Config::Shared& s, const IndexScoreParams& p, const ScoreLane& lane,
                                       const ScoreRun& run, int query_stage)
      : s_(s),
        p_(p),
        lane_(lane),
        weights_(s.weight[query_stage] + 2 * lane.quarter),
        query_low_(descriptor_low(s.query[query_stage])) {
    scores_ = p.score + (int64_t{run.first_row} + lane.second_of_pair()) * p.score_stride + p.first;
    histogram_ = shared_address(s.histogram[0] + lane.second_of_pair() * kScoreBins);
    keep_in_register(histogram_);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int token = pair_token(i) + lane.second_of_pair();
      n_candidates_[i] = is_paired(i) || lane.second_of_pair() == 0 ? s.n_candidates[query_stage][token] : 0;
      n_counted_[i] = n_candidates_[i] > p.min_ranked ? n_candidates_[i] : 0;
    }
  }

  __device__ __forceinline__ void run(const ScoreRun& run, Ring& at) {
    const int first = run.first_page_of(lane_.group, Config::kMathGroups);
    if (first >= run.n_pages) return;
    const int n_pages = (run.n_pages - first + Config::kMathGroups - 1) / Config::kMathGroups;
    const int slot = (run.page + first) * kIndexPageTokens + lane_.key - p_.first;
    wait_for_page(at);
    for (int done = 0; done < n_pages; done += Config::kMostPages)
      score_pages<0>({min(n_pages - done, Config::kMostPages), done + Config::kMostPages < n_pages}, at,
                     slot + done * kSlotStep);
    if constexpr (Config::kCounts) {
      if (isnan(worst_)) atomicOr(p_.fault, 1u);
    }
  }

 private:
  static constexpr int kHeads = Config::kHeads;
  static constexpr int kSlotStep = Config::kMathGroups * kIndexPageTokens;
  static constexpr int kChunkPairs = (Config::kChunkTokens + 1) / 2;
  static constexpr int kPairs = kChunkPairs * (Config::kChunks - 1) + (Config::kLastTokens + 1) / 2;
  __device__ __forceinline__ static constexpr int pair_token(int i) {
    return i / kChunkPairs * Config::kChunkTokens + i % kChunkPairs * 2;
  }
  __device__ __forceinline__ static constexpr bool is_paired(int i) {
    return pair_token(i) + 1 < Config::kTokens && i % kChunkPairs * 2 + 1 < Config::kChunkTokens;
  }

  __device__ __forceinline__ int stage(const Ring& at) const { return at.stage * Config::kMathGroups + lane_.group; }
  __device__ __forceinline__ float2 shared_weight(int t, int j) const {
    return load_shared_float2(weights_ + t * kHeads + 8 * j);
  }
  __device__ __forceinline__ void wait_for_page(const Ring& at) const { s_.key_ring.full[stage(at)].wait(at.parity); }

  // Weights of the tokens from kFirst on, held or read when they are wanted.
  template <int kFirst, int kCount>
  struct Weights {
    const RunScorer& scorer;
    float2 held[Config::kHoldWeights ? kCount : 1][kHeads / 8];

    __device__ __forceinline__ explicit Weights(const RunScorer& of) : scorer(of) {
      if constexpr (Config::kHoldWeights) {
#pragma unroll
        for (int t = 0; t < kCount; ++t)
#pragma unroll
          for (int j = 0; j < kHeads / 8; ++j) held[t][j] = scorer.shared_weight(kFirst + t, j);
      }
    }
    __device__ __forceinline__ float2 get(int t, int j) const {
      if constexpr (Config::kHoldWeights)
        return held[t][j];
      else
        return scorer.shared_weight(kFirst + t, j);
    }
  };

  struct Pages {
    int n;
    bool more;  // come after them
  };

  // Chunks kChunk and following of the pages at `ring`, which is moved past them. The wait for a page is hidden by
  // the products of the one before it.
  template <int kChunk>
  __device__ __forceinline__ void score_pages(const Pages& pages, Ring& ring, int slot) {
    constexpr bool kFirst = kChunk == 0, kLast = kChunk + 1 == Config::kChunks;
    constexpr int kCount = kLast ? Config::kLastTokens : Config::kChunkTokens;
    const Weights<kChunk * Config::kChunkTokens, kCount> weights(*this);
    Ring at = ring;
#pragma unroll 1
    for (int i = 0; i < pages.n; ++i) {
      const int now = stage(at);
      at.advance();
      float product[kCount * kHeads / 2];
#pragma unroll
      for (float& value : product) value = 0;
      start_products<kCount * kHeads>(product, descriptor_low(s_.key[0]) + now * (kKeyTileBytes / 16),
                                      query_low_ + kChunk * Config::kChunkTokens * kHeads * (kIndexWidth / 16));
      const float scale = s_.key_scale[now][lane_.key];
      const bool is_last = i + 1 == pages.n;
      if ((kFirst && !is_last) || (kLast && is_last && pages.more)) wait_for_page(at);
      wgmma_wait<0>();
      wgmma_touch(product);
      if constexpr (kLast) s_.key_ring.empty[now].arrive_as_warp();
      finish_chunk<kChunk, kCount>(product, weights, scale, slot + i * kSlotStep);
    }
    if constexpr (!kLast)
      score_pages<kChunk + 1>(pages, ring, slot);
    else
      ring = at;
  }

  // Relu, weight and the sum over this lane's heads for both its rows, over the row's four lanes, times the key's scale.
  // The rows' relus run on different units of the SM; both keep a NaN, which is then noticed in every slot.
  template <int kChunk, int kCount>
  __device__ __forceinline__ void finish_chunk(const float (&product)[kCount * kHeads / 2],
                                               const Weights<kChunk * Config::kChunkTokens, kCount>& weights,
                                               float scale, int slot) {
    float upper[kCount] = {}, lower[kCount] = {};
#pragma unroll
    for (int j = 0; j < kHeads / 8; ++j) {
#pragma unroll
      for (int t = 0; t < kCount; ++t) {
        const float* d = product + t * kHeads / 2 + 4 * j;
        const float2 w = weights.get(t, j);
        upper[t] = fmaf(w.x, relu(d[0]), upper[t]);
        lower[t] = fmaf(w.x, d[2] + fabsf(d[2]), lower[t]);
        upper[t] = fmaf(w.y, relu(d[1]), upper[t]);
        lower[t] = fmaf(w.y, d[3] + fabsf(d[3]), lower[t]);
      }
    }
    float half[kCount];  // of the row that this lane keeps, over two lanes
#pragma unroll
    for (int t = 0; t < kCount; ++t) {
      lower[t] *= 0.5f;
      const float given = lane_.keeps_lower() ? upper[t] : lower[t];
      half[t] = (lane_.keeps_lower() ? lower[t] : upper[t]) + __shfl_xor_sync(0xffffffff, given, 1);
    }
#pragma unroll
    for (int t = 0; t < kCount; t += 2) {
      float kept = half[t], given = half[t];
      if (t + 1 < kCount) {
        kept = lane_.second_of_pair() ? half[t + 1] : half[t];
        given = lane_.second_of_pair() ? half[t] : half[t + 1];
      }
      store(kChunk * kChunkPairs + t / 2, (kept + __shfl_xor_sync(0xffffffff, given, 2)) * scale, slot);
    }
  }

  __device__ __forceinline__ void store(int pair, float score, int slot) {
    float* to = scores_ + pair_token(pair) * p_.score_stride + slot;
    if (static_cast<unsigned>(slot) < static_cast<unsigned>(n_candidates_[pair])) *to = score;
    if constexpr (Config::kCounts)
      count_score(histogram_ + pair_token(pair) * kScoreBins * 4, score, slot, n_counted_[pair], worst_);
  }

  typename Config::Shared& s_;
  const IndexScoreParams& p_;
  const ScoreLane& lane_;
  const float* weights_;
  uint32_t query_low_;
  float* scores_;    // of slot 0 of this lane's token of the first pair
  int histogram_;    // of that token; a shared address
  float worst_ = 0;  // NaN once a counted score is
  int n_candidates_[kPairs];
  int n_counted_[kPairs];  // the same of a row that is ranked, otherwise 0
};

// Adds the block's counts of one request to global memory and clears them, between two barriers of the math threads.
template <class Config>
__device__ __forceinline__ void flush_histograms(typename Config::Shared& s, const IndexScoreParams& p, int first_row) {
  named_barrier(kFlushBarrier, Config::kMathThreads);
  uint32_t* counts = &s.histogram[0][0];
  uint32_t* total = p.histogram + int64_t{first_row} * kScoreBins;
  for (int i = threadIdx.x; i < Config::kTokens * kScoreBins; i += Config::kMathThreads) {
    const uint32_t count = counts[i];
    if (count == 0) continue;
    atomicAdd(total + i, count);
    counts[i] = 0;
  }
  named_barrier(kFlushBarrier, Config::kMathThreads);
}

template <class Config>
__device__ __forceinline__ void math_role(typename Config::Shared& s, const IndexScoreParams& p,
                                          const PlanBlock& block) {
  const ScoreLane lane;
  RingPosition<Config::kQueryStages> query;
  typename RunScorer<Config>::Ring at;
  for_each_run(p.plan, block, [&](const ScoreRun& run) {
    s.query_ring.full[query.stage].wait(query.parity);
    __syncwarp();
    RunScorer<Config>(s, p, lane, run, query.stage).run(run, at);
    s.query_ring.empty[query.stage].arrive_as_warp();
    query.advance();
    if constexpr (Config::kCounts) flush_histograms<Config>(s, p, run.first_row);
  });
}

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    index_scores_kernel(const IndexScoreParams p, const __grid_constant__ CUtensorMap query_map,
                        const __grid_constant__ CUtensorMap key_map) {
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  auto& s = *reinterpret_cast<typename Config::Shared*>(shared_bytes);
  if (threadIdx.x == 0) {
    s.key_ring.init(1, 4 * kWarpArrivals);  // readers: the warps of the warpgroup that takes the page
    s.query_ring.init(1 + Config::kTokens,  // the lanes that write lengths too; readers: all math warps
                      Config::kMathThreads / 32 * kWarpArrivals);
    fence_barrier_init();
    prefetch_map(query_map);
    prefetch_map(key_map);
  }
  if constexpr (Config::kCounts) {
    for (int i = threadIdx.x; i < Config::kTokens * kScoreBins; i += Config::kThreads) (&s.histogram[0][0])[i] = 0;
  }
  __syncthreads();
  launch_dependents();
  grid_dependency_wait();
  const PlanBlock block = p.plan.blocks[blockIdx.x];
  if (warp_index() < Config::kMathThreads / 32) {
    setmaxnreg_inc<Config::kMathRegs>();
    math_role<Config>(s, p, block);
  } else {
    setmaxnreg_dec<Config::kLoadRegs>();
    const int load_warp = warp_index() - Config::kMathThreads / 32;
    if (load_warp == Config::kLoadWarps)
      load_queries_role<Config>(s, p, block, query_map);
    else if (load_warp < Config::kLoadWarps)
      load_keys_role<Config>(s, p, block, key_map, load_warp);
  }
}

template <class Config>
void launch_index_scores_as(const IndexScoreParams& p, const IndexScoreMaps& maps, int n_blocks, StreamHandle stream) {
  launch_kernel(index_scores_kernel<Config>,
                {.grid = {static_cast<unsigned>(n_blocks)},
                 .block = {Config::kThreads},
                 .shared_bytes = sizeof(typename Config::Shared),
                 .pdl = true,
                 .stream = stream},
                p, maps.query, maps.key);
}

template <int kHeads, int kTokens>
void launch_index_scores_for(const IndexScoreParams& p, const IndexScoreMaps& maps, int n_blocks, StreamHandle stream) {
  if (p.histogram != nullptr)
    launch_index_scores_as<ScoreConfig<kHeads, kTokens, true>>(p, maps, n_blocks, stream);
  else
    launch_index_scores_as<ScoreConfig<kHeads, kTokens, false>>(p, maps, n_blocks, stream);
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
