// A block that attends with 64 heads over the whole depth, for kernels whose tiles lie there as rows of 576 bf16: what its two
// head warpgroups do with a tile (converted_sm90.cu, part_blocks_sm90.cu), and how queries come to it.
//
// S, its shared memory, has key tiles of 64 indices for even and odd tiles, queries, and what the warpgroups tell each other. Its
// kProductColumns is 256, or 128 in a kernel that starts with fewer than 158 registers a thread: ptxas refuses larger products.
// W, the work that it goes through, has row(), first_head(), topk(), n_tiles() and turn<parity>(tile), the tiles that were in
// the place of a tile before it.
#pragma once

#include <cstdint>

#include "kernels/cuda/prims/tma.cuh"
#include "kernels/cuda/prims/wgmma.cuh"
#include "kernels/cuda/sparse_mla/scores.cuh"
#include "kernels/cuda/sparse_mla/values.cuh"

namespace levin::cuda::mla {

constexpr int kHeadThreads = 256;
constexpr int kHeadRegs = 224;
constexpr int kRowChunks = (kLatent + kRope) / 64;
constexpr int kRopeChunk = kRowChunks - 1;
constexpr int kFours = kHalfLatent / 8;  // groups of four sums of a thread: two neighbouring columns of two heads
constexpr int kGroupBarrier = 1;         // of head warpgroup 0; 2 of the other

// A head warpgroup's thread has heads row and row + 8 of the group (own_row()), index h below, and in `acc` columns
// 8j + 2 * (lane % 4) and the next of them in acc[4j + 2h] and the next.
struct HeadState {
  float acc[4 * kFours];
  int32_t acc_max[2];  // running maximum of the tiles in acc, which is relative to it
  ScoreState sums;     // of own tiles
};

// Which of the four sixteens of heads a warp has; a warp of each group has the same.
__device__ __forceinline__ int sixteen() { return read_thread_index() / 32 % 4; }

__device__ __forceinline__ void start_part(HeadState& m) {
#pragma unroll
  for (int i = 0; i < 4 * kFours; ++i) m.acc[i] = 0;
  m.acc_max[0] = m.acc_max[1] = kNoCeiling;
}

__device__ __forceinline__ void start_row(HeadState& m) {
  start_part(m);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    m.sums.sum[h] = m.sums.total_sum[h] = 0;
    m.sums.sum_max[h] = m.sums.total_max[h] = kNoCeiling;
  }
}

// Brings the values so far to a later tile's maximum.
__device__ __forceinline__ void rescale(HeadState& m, const int32_t (&maximum)[2]) {
  float factor[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    factor[h] = power_of_two(m.acc_max[h] - maximum[h]);
    m.acc_max[h] = maximum[h];
  }
  if (__any_sync(0xffffffff, factor[0] != 1 || factor[1] != 1)) {
#pragma unroll
    for (int i = 0; i < 4 * kFours; ++i) m.acc[i] *= factor[i / 2 % 2];
  }
}

// Starts or continues the scores over one half of the latent columns.
template <int kHalf, class S>
__device__ __forceinline__ void multiply_latent(float (&score)[32], const S& s, int tile_parity) {
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const uint64_t query = wgmma_descriptor(s.query[kHalf * kChunks + c]);
    const uint64_t key = wgmma_descriptor(s.key[tile_parity][kHalf * kChunks + c]);
#pragma unroll
    for (int k = 0; k < 128; k += 32)
      Wgmma<64>::bf16<0, 0>(score, query + descriptor_step(k), key + descriptor_step(k), c > 0 || k > 0);
  }
}
template <int kHalf, class S>
__device__ __forceinline__ void multiply_rope(float (&score)[32], const S& s, int tile_parity) {
  const uint64_t query = wgmma_descriptor(s.query[kRopeChunk]), key = wgmma_descriptor(s.key[tile_parity][kRopeChunk]);
#pragma unroll
  for (int k = 64 * kHalf; k < 64 * kHalf + 64; k += 32)
    Wgmma<64>::bf16<0, 0>(score, query + descriptor_step(k), key + descriptor_step(k), true);
}

// Starts the scores of a tile, in two groups of products: what needs the half of the keys that comes first, and the rest.
// Fences: see start_scores().
template <int kGroup, class S>
__device__ __forceinline__ void multiply_first_half(const S& s, float (&first)[32], int turn) {
  s.key_full[kGroup][0].wait_without_clock(turn & 1);
  fence_async_shared();
  wgmma_fence();
  multiply_latent<kGroup>(first, s, kGroup);
  wgmma_commit();
}
template <int kGroup, class S>
__device__ __forceinline__ void multiply_second_half(const S& s, float (&first)[32], float (&second)[32], int turn) {
  s.key_full[kGroup][1].wait_without_clock(turn & 1);
  fence_async_shared();
  wgmma_fence();
  multiply_rope<kGroup>(first, s, kGroup);
  multiply_latent<1 - kGroup>(second, s, kGroup);
  multiply_rope<1 - kGroup>(second, s, kGroup);
  wgmma_commit();
}

template <int kGroup, class S>
__device__ __forceinline__ uint64_t value_descriptor(const S& s, int tile_parity) {
  return wgmma_descriptor_mn_major(s.key[tile_parity][kGroup * kChunks], kChunkBytes);
}

// A step of acc += weights x values, so many columns in one product.
template <class S, int... kTransposed, class Weight>
__device__ __forceinline__ void multiply_step(HeadState& m, const Weight& weight, uint64_t value) {
  constexpr int kColumns = S::kProductColumns;
#pragma unroll
  for (int c = 0; c < kHalfLatent; c += kColumns)
    Wgmma<kColumns>::template bf16<kTransposed...>(reinterpret_cast<float(&)[kColumns / 2]>(m.acc[c / 2]), weight,
                                                   value + descriptor_step(c / 64 * kChunkBytes), true);
}

// Starts acc += weights x values of a tile of the other warpgroup.
template <int kGroup, class S>
__device__ __forceinline__ void add_other_tile(S& s, HeadState& m, int turn) {
  constexpr int kOther = 1 - kGroup;
  s.weight_full[kOther].wait_without_clock(turn & 1);
  fence_async_shared();
  const int32_t maximum[2] = {s.running_max[kOther][own_row()], s.running_max[kOther][own_row() + 8]};
  rescale(m, maximum);
  const uint64_t weight = wgmma_descriptor(s.key[kOther][kRopeChunk]), value = value_descriptor<kGroup>(s, kOther);
  wgmma_touch(m.acc);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kTileKeys / 16; ++k)
    multiply_step<S, 0, 1>(m, weight + descriptor_step(32 * k), value + descriptor_step(2048 * k));
  wgmma_commit();
}

// The same of an own tile.
template <int kGroup, class S>
__device__ __forceinline__ void add_own_tile(S& s, HeadState& m, const uint32_t (&weight)[16]) {
  const uint64_t value = value_descriptor<kGroup>(s, kGroup);
  wgmma_touch(m.acc);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kTileKeys / 16; ++k) {
    const uint32_t operand[4] = {weight[4 * k], weight[4 * k + 1], weight[4 * k + 2], weight[4 * k + 3]};
    multiply_step<S, 1>(m, operand, value + descriptor_step(2048 * k));
  }
  wgmma_commit();
}

// Until all products have been added but the newest kPending groups, none of which may be of values.
template <int kPending>
__device__ __forceinline__ void wait_for_values(HeadState& m) {
  wgmma_wait<kPending>();
  wgmma_touch(m.acc);
}

// Once the values of a tile are added.
template <int kGroup, class S>
__device__ __forceinline__ void release_tile(S& s, int tile_parity) {
  s.key_empty[tile_parity][kGroup].arrive_as_warp();
  __syncwarp();
}

// The bias of the last tile; null if all of its selects are valid.
template <int kGroup, class S, class W>
__device__ __forceinline__ const float* last_bias(S& s, const W& w) {
  const int32_t* topk = w.topk() + (w.n_tiles() - 1) * kTileKeys;
  if (topk[kTileKeys - 1] >= 0) return nullptr;
  const int t = read_thread_index() % 128;
  if (t < kTileKeys) s.bias[kGroup][t] = topk[t] >= 0 ? 0.0f : -INFINITY;
  named_barrier(kGroupBarrier + kGroup, 128);
  return s.bias[kGroup];
}

// Publishes a tile's weights and running maximum. No warp writes weights before all have multiplied the rope below them.
template <int kGroup, class S>
__device__ __forceinline__ void publish_weights(S& s, const uint32_t (&weight)[16], const int32_t (&maximum)[2]) {
  const int lane = read_thread_index() % 32, row = own_row();
  named_barrier(kGroupBarrier + kGroup, 128);
#pragma unroll
  for (int i = 0; i < 16; ++i)
    *reinterpret_cast<uint32_t*>(s.key[kGroup][kRopeChunk] +
                                 swizzle_128(row + 8 * (i % 2), 16 * (i / 2) + 4 * (lane % 4))) = weight[i];
  if (lane % 4 == 0) {
    s.running_max[kGroup][row] = maximum[0];
    s.running_max[kGroup][row + 8] = maximum[1];
  }
  fence_async_shared();
  s.weight_full[kGroup].arrive();
  __syncwarp();
}

// Scores, weights and values of an own tile, and the values of the other warpgroup's tile before it. A first part is left
// (leave_part) while the scores of the warpgroup's first tile of the next part are multiplied.
template <int kGroup, class S, class W, class F>
__device__ __forceinline__ void attend_tile(S& s, HeadState& m, const W& w, int tile, float scale_log2,
                                            const F& leave_part) {
  const int turn = w.template turn<kGroup>(tile);
  float score[32], second[32];
  if (kGroup == 0) {
    if (tile > 0) add_other_tile<kGroup>(s, m, w.template turn<1 - kGroup>(tile - 1));
    multiply_first_half<kGroup>(s, score, turn);
    wait_for_values<1>(m);
    if (tile > 0) release_tile<kGroup>(s, 1 - kGroup);
    multiply_second_half<kGroup>(s, score, second, turn);
    if (begins_later_part(tile)) leave_part();
    wgmma_wait<0>();
  } else {
    multiply_first_half<kGroup>(s, score, turn);
    multiply_second_half<kGroup>(s, score, second, turn);
    if (begins_later_part(tile - 1)) leave_part();
    add_other_tile<kGroup>(s, m, w.template turn<1 - kGroup>(tile - 1));
    wgmma_wait<1>();
  }
  wgmma_touch(score);
  wgmma_touch(second);
  if (tile + 2 >= w.n_tiles()) s.query_empty.arrive_as_warp();
#pragma unroll
  for (int i = 0; i < 32; ++i) score[i] += second[i];
  int32_t maximum[2];
  find_ceilings(score, maximum, tile + 1 == w.n_tiles() ? last_bias<kGroup>(s, w) : nullptr, scale_log2);
#pragma unroll
  for (int h = 0; h < 2; ++h) maximum[h] = max(m.acc_max[h], maximum[h]);
  weigh(m.sums.sum, m.sums.sum_max, score, maximum, scale_log2);
  uint32_t weight[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(score[2 * i], score[2 * i + 1]);
    weight[i] = *reinterpret_cast<const uint32_t*>(&pair);
  }
  if (kGroup == 1) {
    wait_for_values<0>(m);
    release_tile<kGroup>(s, 1 - kGroup);
  }
  publish_weights<kGroup>(s, weight, maximum);
  rescale(m, maximum);
  add_own_tile<kGroup>(s, m, weight);
  wait_for_values<0>(m);
  release_tile<kGroup>(s, kGroup);
}

// What both kernels' barriers of tiles and queries wait for. `first` and `second` arrivals fill a tile's own half of the depth, and
// the other with the rope. One thread, as Mbarrier::init().
template <class S>
__device__ __forceinline__ void init_tile_barriers(S& s, uint32_t first, uint32_t second, uint32_t n_load_threads) {
  for (int parity = 0; parity < 2; ++parity) {
    s.key_full[parity][0].init(first);
    s.key_full[parity][1].init(second);
    for (Mbarrier& empty : s.key_empty[parity]) empty.init(4 * kWarpArrivals);
    s.weight_full[parity].init(128);
  }
  s.query_full.init(n_load_threads);
  s.query_empty.init(kHeadThreads / 32 * kWarpArrivals);
}

// Queries by kThreads threads. Eight of them share a head; a thread has several, kRowStep apart, and in every chunk of them the
// same piece.
template <int kThreads, class S>
class QueryLoader {
 public:
  __device__ __forceinline__ QueryLoader(S& s, const SparseMla& a, int thread)
      : s_(s), a_(a), own_row_(thread / 8), piece_(thread % 8 * 16) {}

  // `turn`: how many queries were there before.
  template <class W>
  __device__ __forceinline__ void ask(const W& w, int turn) {
    const auto* latent = static_cast<const uint16_t*>(a_.q_latent) + w.row() * a_.q_latent_row_stride;
    const auto* rope = static_cast<const uint16_t*>(a_.q_rope) + w.row() * a_.q_rope_row_stride;
    s_.query_empty.wait_without_clock((turn & 1) ^ 1);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int head = w.first_head() + own_row_ + i * kRowStep, valid_head = min(head, a_.n_heads - 1);
      const bool valid = head < a_.n_heads;
#pragma unroll
      for (int c = 0; c < kRopeChunk; ++c)
        async_copy_16(s_.query[c] + offset(i), latent + int64_t{valid_head} * kLatent + c * 64 + piece_ / 2, valid);
      async_copy_16(s_.query[kRopeChunk] + offset(i), rope + int64_t{valid_head} * kRope + piece_ / 2, valid);
    }
    async_copy_commit();
  }

  // The latent columns of queries in the order of those of rows: each thread changes what it has copied itself.
  __device__ __forceinline__ void put_in_order() {
    async_copy_wait<0>();
#pragma unroll 2
    for (int c = 0; c < kRopeChunk; ++c) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        uint4& v = *reinterpret_cast<uint4*>(s_.query[c] + offset(i));
        v = {odd_of(v.x, v.y), even_of(v.x, v.y), odd_of(v.z, v.w), even_of(v.z, v.w)};
      }
    }
    fence_async_shared();
    s_.query_full.arrive();
  }

 private:
  static constexpr int kRowStep = kThreads / 8, kRows = kMlaHeadGroup / kRowStep;

  __device__ __forceinline__ uint32_t offset(int i) const { return swizzle_128(own_row_, piece_) + i * kRowStep * 128; }

  S& s_;
  const SparseMla& a_;
  int own_row_;
  int piece_;  // bytes
};

}  // namespace levin::cuda::mla
