// The score warpgroups of sparse_mla (bf16_sm90.cu): queries and key tiles -> weights in shared memory, and the sums of
// the weights.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <utility>

#include "kernels/cuda/prims/cluster_memory.cuh"
#include "kernels/cuda/prims/tma.cuh"
#include "kernels/cuda/prims/wgmma.cuh"
#include "kernels/cuda/sparse_mla/load.cuh"
#include "kernels/cuda/tiles/swizzle.cuh"

namespace levin::cuda::mla {

struct ScoreState {
  uint32_t rope[2][4];  // the queries' rope half as wgmma A operands
  float sum[2];         // of the weights of own tiles of the part in this lane's columns, relative to 2^sum_max
  int32_t sum_max[2];
  float total_sum[2];  // of the merged parts, over the row's four lanes, relative to 2^total_max
  int32_t total_max[2];
};

// Adds a finished part, over the row's four lanes, to the total of this warpgroup's tiles and starts the next.
__device__ __forceinline__ void merge_sums(ScoreState& m, const int32_t (&part_max)[2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const MergeFactors f = merge_factors(m.total_max[h], part_max[h]);
    float part_sum = m.sum[h] * power_of_two(m.sum_max[h] - part_max[h]);
    part_sum += __shfl_xor_sync(0xffffffff, part_sum, 1);
    part_sum += __shfl_xor_sync(0xffffffff, part_sum, 2);
    m.total_sum[h] = fmaf(part_sum, f.part, m.total_sum[h] * f.total);
    m.sum[h] = 0;
    m.sum_max[h] = kNoCeiling;
  }
}

// The queries of 64 heads from first_head on, this block's half of their depth: latent to shared memory, rope to registers.
// kThreads threads call together, `thread` counting them; `barrier` is theirs. They wait for each other before they write
// unless nothing was there before. `swap`: 8 to exchange heads row and row + 8 of sixteen, or 0.
template <LatentRows kFormat, int kThreads, class W>
__device__ __forceinline__ void load_queries(uint8_t (&query)[kChunks][kChunkBytes], uint32_t (&rope_operand)[2][4],
                                             const SparseMla& a, const W& w, int thread, int barrier, int swap = 0) {
  const auto* latent =
      static_cast<const uint16_t*>(a.q_latent) + w.row() * a.q_latent_row_stride + w.half() * kHalfLatent;
  const auto* rope = static_cast<const uint16_t*>(a.q_rope) + w.row() * a.q_rope_row_stride + w.half() * kHalfRope;
  // Thread t has piece t % 8 of chunk t / 8 % 4 of head t / 32, and of heads a step apart from there. All are on their way
  // before the first is used.
  constexpr int kStep = kThreads / 32, kPieces = kMlaHeadGroup / kStep;
  const int piece = thread % 8, chunk = thread / 8 % kChunks, head = thread / 32;
  const uint16_t* from = latent + int64_t{w.first_head() + head} * kLatent + chunk * 64 + piece * 8;
  uint4 v[kPieces];
#pragma unroll
  for (int k = 0; k < kPieces; ++k)
    v[k] = load_16(reinterpret_cast<const std::byte*>(from + k * kStep * kLatent),
                   w.first_head() + head + kStep * k < a.n_heads);
  if (w.n_done() > 0) named_barrier(barrier, kThreads);  // others may still multiply the last ones
#pragma unroll
  for (int k = 0; k < kPieces; ++k) {
    if (kFormat == LatentRows::kFp8)
      v[k] = {odd_of(v[k].x, v[k].y), even_of(v[k].x, v[k].y), odd_of(v[k].z, v[k].w), even_of(v[k].z, v[k].w)};
    *reinterpret_cast<uint4*>(query[chunk] + swizzle_128((head + kStep * k) ^ swap, piece * 16)) = v[k];
  }
  const int lane = thread % 32;
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int own_head = w.first_head() + 16 * (thread / 32 % 4) + (lane / 4 + 8 * (r % 2) ^ swap);
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const int column = 16 * step + 8 * (r / 2) + 2 * (lane % 4);
      rope_operand[step][r] =
          own_head < a.n_heads ? *reinterpret_cast<const uint32_t*>(rope + int64_t{own_head} * kRope + column) : 0;
    }
  }
  fence_async_shared();
  named_barrier(barrier, kThreads);
}

// Starts the scores of 64 heads against one tile over this block's half of the depth, as a group of products.
__device__ __forceinline__ void multiply_scores(float (&score)[32], const uint8_t (&query)[kChunks][kChunkBytes],
                                                const uint32_t (&rope_operand)[2][4], const KeyTile& tile) {
  wgmma_fence();
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const uint64_t latent = wgmma_descriptor(query[c]), key = wgmma_descriptor(tile.latent[c]);
#pragma unroll
    for (int k = 0; k < 128; k += 32)
      Wgmma<64>::bf16<0, 0>(score, latent + descriptor_step(k), key + descriptor_step(k), c > 0 || k > 0);
  }
  const uint64_t key = rope_descriptor(tile.rope);
#pragma unroll
  for (int step = 0; step < 2; ++step)
    Wgmma<64>::bf16<0>(score, rope_operand[step], key + descriptor_step(32 * step), true);
  wgmma_commit();
}

// Sixteen bytes to each of the slots of this thread, 128 slots apart.
template <int... kSlots>
__device__ __forceinline__ void send_quarters(uint32_t to, const float (&score)[32], uint32_t barrier,
                                              std::integer_sequence<int, kSlots...>) {
  (cluster_store_async<kSlots * 128 * static_cast<int>(sizeof(float4))>(
       to, {score[4 * kSlots], score[4 * kSlots + 1], score[4 * kSlots + 2], score[4 * kSlots + 3]}, barrier),
   ...);
}

template <class S>
__device__ __forceinline__ void send_scores(S& s, const float (&score)[32], int group, int turn, uint32_t other) {
  const int t = read_thread_index() % 128;
  if (t == 0) s.exchange_full[group].arrive_expect_bytes(kExchangeBytes);  // for what the other block sends
  s.exchange_empty[group].wait((turn & 1) ^ 1);
  const uint32_t to = cluster_address(shared_address(&s.exchange[group][0][t]), other);
  const uint32_t barrier = cluster_address(s.exchange_full[group].address(), other);
  send_quarters(to, score, barrier, std::make_integer_sequence<int, 8>());
}

// Adds what has come to the slots of a warpgroup's thread, kAtOnce of them on their way at a time: as many as there are registers
// for.
template <int kAtOnce, int kSlots>
__device__ __forceinline__ void add_slots(float (&score)[4 * kSlots], const float4 (&slots)[kSlots][128]) {
  const int t = read_thread_index() % 128;
#pragma unroll
  for (int first = 0; first < kSlots; first += kAtOnce) {
    float4 received[kAtOnce];
#pragma unroll
    for (int v = 0; v < kAtOnce; ++v) received[v] = load_shared_float4(&slots[first + v][t]);
#pragma unroll
    for (int v = 0; v < kAtOnce; ++v) {
      float* own = &score[4 * (first + v)];
      own[0] += received[v].x;
      own[1] += received[v].y;
      own[2] += received[v].z;
      own[3] += received[v].w;
    }
  }
}

template <class S>
__device__ __forceinline__ void add_received(S& s, float (&score)[32], int group, int turn, uint32_t other) {
  s.exchange_full[group].wait(turn & 1);
  add_slots<4>(score, s.exchange[group]);
  __syncwarp();
  if (elect_one()) cluster_arrive_relaxed(s.exchange_empty[group], other);
  __syncwarp();
}

// Scores of invalid top-k indices to -inf; returns the ceilings of the tile's highest in each row, in the log2 domain. A thread
// has kRows rows, two columns of each in turns.
template <int kRows>
__device__ __forceinline__ void find_ceilings(float (&score)[16 * kRows], int32_t (&ceiling)[kRows], const float* bias,
                                              float scale_log2) {
  if (bias != nullptr) {
    const float* own = bias + 2 * (read_thread_index() % 4);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 b = *reinterpret_cast<const float2*>(own + 8 * j);
#pragma unroll
      for (int h = 0; h < kRows; ++h) {
        score[2 * (kRows * j + h)] += b.x;
        score[2 * (kRows * j + h) + 1] += b.y;
      }
    }
  }
#pragma unroll
  for (int h = 0; h < kRows; ++h) {
    float highest = fmaxf(score[2 * h], score[2 * h + 1]);
#pragma unroll
    for (int j = 1; j < 8; ++j)
      highest = fmaxf(highest, fmaxf(score[2 * (kRows * j + h)], score[2 * (kRows * j + h) + 1]));
    highest = fmaxf(highest, __shfl_xor_sync(0xffffffff, highest, 1));
    highest = fmaxf(highest, __shfl_xor_sync(0xffffffff, highest, 2));
    ceiling[h] = ceiling_bits(highest * scale_log2);
  }
}

// Scores to weights relative to the running maximum; adds them to the lane's sums, which are relative to 2^sum_max.
template <int kRows>
__device__ __forceinline__ void weigh(float (&sum)[kRows], int32_t (&sum_max)[kRows], float (&score)[16 * kRows],
                                      const int32_t (&maximum)[kRows], float scale_log2) {
#pragma unroll
  for (int h = 0; h < kRows; ++h) {
    const float below = -ceiling_value(maximum[h]);
    float tile_sum[2] = {0, 0};
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& v = score[2 * (kRows * j + h) + e];
        v = exp2_flushed(fmaf(v, scale_log2, below));
        tile_sum[e] += v;
      }
    }
    sum[h] = fmaf(sum[h], power_of_two(sum_max[h] - maximum[h]), tile_sum[0] + tile_sum[1]);
    sum_max[h] = maximum[h];
  }
}

__device__ __forceinline__ void store_weights(uint8_t* tile, const float (&weight)[32]) {
  const int lane = read_thread_index() % 32, row = own_row();
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(weight[4 * j + 2 * h], weight[4 * j + 2 * h + 1]);
      *reinterpret_cast<__nv_bfloat162*>(tile + swizzle_128(row + 8 * h, 16 * j + 4 * (lane % 4))) = pair;
    }
  }
  fence_async_shared();
}

// This block's half of a tile's scores, on its way to the other block; what remains here waits in `score`. The fence that
// makes the tile visible to the matrix unit stands here, between the writers' arrival and the products, and not with the
// writers: it waits for all earlier memory accesses of its thread, which there are the loads of the next rows.
__device__ __forceinline__ void start_scores(Shared& s, float (&score)[32], const ScoreState& m, int number, int group,
                                             uint32_t other) {
  s.key_ring.full[number % kStages].wait(number / kStages & 1);
  fence_async_shared();
  multiply_scores(score, s.query, m.rope, s.key[number % kStages]);
  wgmma_wait<0>();
  wgmma_touch(score);
  send_scores(s, score, group, number / 2, other);
}

// The running maximum before `tile`, kNoCeiling at the first of a part. Where this warpgroup enters a part, its sums of
// the last one are merged: at the first tile, or, for the warpgroup of odd tiles, at the second.
__device__ __forceinline__ void enter_tile(Shared& s, ScoreState& m, int tile, int number, int32_t (&previous_max)[2]) {
  s.max_full[(number - 1) % 2].wait((number - 1) / 2 & 1);
  read_max(s, previous_max, number - 1);
  if (begins_later_part(tile)) {
    merge_sums(m, previous_max);
    previous_max[0] = previous_max[1] = kNoCeiling;
  } else if (begins_later_part(tile - 1)) {
    const int32_t part_max[2] = {m.sum_max[0], m.sum_max[1]};  // its own last tile was the part's
    merge_sums(m, part_max);
  }
}

// All tiles of a score warpgroup: half scores of the next tile are sent before the weights of this one are stored. A
// tile's number counts those of earlier items too; a warpgroup has every other number.
template <class W>
__device__ __forceinline__ void attend_scores(Shared& s, ScoreState& m, const W& w, float scale_log2, uint32_t other) {
  const int group = threadIdx.x / 128, begin = (w.base() ^ group) & 1;
  float score[32];
  if (begin < w.n_tiles()) start_scores(s, score, m, w.base() + begin, group, other);
  for (int tile = begin; tile < w.n_tiles(); tile += 2) {
    const int number = w.base() + tile, turn = number / 2;
    int32_t maximum[2] = {kNoCeiling, kNoCeiling}, ceiling[2];
    add_received(s, score, group, turn, other);
    const bool some_invalid = w.first_tile() + tile + 1 == w.n_row_tiles();  // only a row's last tile can have
    find_ceilings(score, ceiling, some_invalid ? s.bias[number % kStages] : nullptr, scale_log2);
    if (tile > 0) enter_tile(s, m, tile, number, maximum);
    maximum[0] = max(maximum[0], ceiling[0]);
    maximum[1] = max(maximum[1], ceiling[1]);
    publish_max(s, maximum, number);
    weigh(m.sum, m.sum_max, score, maximum, scale_log2);
    s.weight_empty[group].wait((turn & 1) ^ 1);
    store_weights(s.weight[group], score);
    s.weight_full[group].arrive();
    if (tile + 2 < w.n_tiles()) start_scores(s, score, m, number + 2, group, other);
  }
}

// The maximum of the last tile this warpgroup has not merged yet, after the last tile of an item.
template <class W>
__device__ __forceinline__ void finish_sums(Shared& s, ScoreState& m, const W& w) {
  if (w.n_tiles() == 0) return;
  const int group = threadIdx.x / 128, last = w.base() + w.n_tiles() - 1;
  int32_t part_max[2];
  if (group != last % 2) {
    s.max_full[last % 2].wait(last / 2 & 1);
    if (begins_later_part(w.n_tiles() - 1)) {  // the last part has no tile of this warpgroup
      read_max(s, part_max, last - 1);
      merge_sums(m, part_max);
    }
  }
  read_max(s, part_max, last);
  merge_sums(m, part_max);
}

// The sums over this warpgroup's tiles: for this block's values and, after a cluster barrier, for the other parts'.
__device__ __forceinline__ void publish_sums(Shared& s, const float (&sum)[2], int n_done) {
  s.sum_empty.wait((n_done & 1) ^ 1);
  if (threadIdx.x % 4 == 0) {
    s.row_sum[threadIdx.x / 128][own_row()] = sum[0];
    s.row_sum[threadIdx.x / 128][own_row() + 8] = sum[1];
    s.sum_full.arrive();
  }
  __syncwarp();
}

}  // namespace levin::cuda::mla
