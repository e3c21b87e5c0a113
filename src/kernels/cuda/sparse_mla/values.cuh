// The value warpgroups of sparse_mla (bf16_sm90.cu): weights and key tiles -> value columns, the merging of parts, the
// output.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/prims/cluster_memory.cuh"
#include "kernels/cuda/prims/wgmma.cuh"
#include "kernels/cuda/sparse_mla/block.cuh"
#include "kernels/cuda/tiles/fp8_to_bf16.cuh"

namespace levin::cuda::mla {

struct ValueState {
  float acc[64];  // value columns of the part so far, relative to 2^acc_max
  int32_t acc_max[2];
  int32_t total_max[2];  // of the merged parts, which lie in scratch memory; whole rows only
};

__device__ __forceinline__ void start_part(ValueState& m) {
#pragma unroll
  for (int i = 0; i < 64; ++i) m.acc[i] = 0;
  m.acc_max[0] = m.acc_max[1] = kNoCeiling;
}

// acc += weights x values for one tile.
__device__ __forceinline__ void add_values(Shared& s, ValueState& m, int tile) {
  const int group = read_thread_index() / 128 - kScoreThreads / 128;
  int32_t tile_max[2];
  float factor[2];
  s.weight_full[tile % 2].wait(tile / 2 & 1);
  read_max(s, tile_max, tile);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    factor[h] = power_of_two(m.acc_max[h] - tile_max[h]);
    m.acc_max[h] = tile_max[h];
  }
  if (__any_sync(0xffffffff, factor[0] != 1 || factor[1] != 1)) {
#pragma unroll
    for (int i = 0; i < 64; ++i) m.acc[i] *= factor[i / 2 % 2];
  }
  const uint64_t weight = wgmma_descriptor(s.weight[tile % 2]);
  const uint64_t value = wgmma_descriptor_mn_major(s.key[tile % kStages].latent[2 * group], kChunkBytes);
  wgmma_touch(m.acc);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kTileKeys / 16; ++k)
    Wgmma<128>::bf16<0, 1>(m.acc, weight + descriptor_step(32 * k), value + descriptor_step(2048 * k), true);
  wgmma_commit();
  wgmma_wait<0>();
  wgmma_touch(m.acc);
  s.key_ring.empty[tile % kStages].arrive_as_warp();
  s.weight_empty[tile % 2].arrive();  // all threads: all have read the maxima that will be written over
  __syncwarp();
}

// One slot of 16 float4 per value thread of a block, 256 threads apart. By the block's index and not by its
// SM's, which need not stay the same while a thread runs.
__device__ __forceinline__ float4* scratch_slot(const SparseMla& a, int value_thread) {
  return reinterpret_cast<float4*>(a.scratch + kMlaCounterBytes) + int64_t{read_block_index()} * 16 * kValueThreads +
         value_thread;
}

template <int kValues>
__device__ __forceinline__ float4 merge_four(const float (&acc)[kValues], int j, const MergeFactors (&f)[2],
                                             float4 total) {
  return {fmaf(acc[4 * j], f[0].part, total.x * f[0].total), fmaf(acc[4 * j + 1], f[0].part, total.y * f[0].total),
          fmaf(acc[4 * j + 2], f[1].part, total.z * f[1].total), fmaf(acc[4 * j + 3], f[1].part, total.w * f[1].total)};
}

// A few of a thread's totals at once, as many as there are registers for.
constexpr int kTotalBatch = 4;
template <int kStride, int kBatch>
__device__ __forceinline__ void read_total(float4 (&before)[kBatch], const float4* total, int first, bool first_part) {
#pragma unroll
  for (int j = 0; j < kBatch; ++j) before[j] = first_part ? float4{0, 0, 0, 0} : __ldcg(total + (first + j) * kStride);
}

// Adds the finished part to the total in scratch memory and starts the next.
__device__ __forceinline__ void merge_values(ValueState& m, float4* total, bool first_part) {
  const MergeFactors f[2] = {merge_factors(m.total_max[0], m.acc_max[0]), merge_factors(m.total_max[1], m.acc_max[1])};
#pragma unroll
  for (int first = 0; first < 16; first += kTotalBatch) {
    float4 before[kTotalBatch];
    read_total<kValueThreads>(before, total, first, first_part);
#pragma unroll
    for (int j = 0; j < kTotalBatch; ++j)
      total[(first + j) * kValueThreads] = merge_four(m.acc, first + j, f, before[j]);
  }
  start_part(m);
}

// 1 / (sum of a row's weights); 0 for a row without top-k indices.
__device__ __forceinline__ float invert_sum(float even, float odd) {
  const float sum = even + odd;
  return sum > 0 ? __frcp_rn(sum) : 0.0f;
}

// Four columns in the order 1, 3, 0, 2, two in each of a pair of lanes, to their own order.
__device__ __forceinline__ float4 sort_columns(const float4& v) {
  const bool upper = (threadIdx.x & 1) != 0;
  const float first = __shfl_xor_sync(0xffffffff, upper ? v.x : v.y, 1);
  const float second = __shfl_xor_sync(0xffffffff, upper ? v.z : v.w, 1);
  return upper ? float4{v.y, first, v.w, second} : float4{first, v.x, second, v.z};
}

// The first output column of a value thread's group of 128 in its block's half.
template <class W>
__device__ __forceinline__ int first_column(const W& w) {
  return w.half() * kHalfLatent + static_cast<int>(threadIdx.x / 128 - kScoreThreads / 128) * 128;
}

// Stores for heads that the model has. By predicate: at a branch ptxas waits for loads still on their way, and many of these
// stand between loads.
__device__ __forceinline__ void store_if(bool valid, float* to, const float2& v) {
  asm volatile("{\n .reg .pred p;\n setp.ne.u32 p, %0, 0;\n @p st.global.v2.f32 [%1], {%2, %3};\n}\n" ::"r"(
                   static_cast<uint32_t>(valid)),
               "l"(to), "f"(v.x), "f"(v.y)
               : "memory");
}
__device__ __forceinline__ void store_if(bool valid, uint16_t* to, uint32_t v) {
  asm volatile(
      "{\n .reg .pred p;\n setp.ne.u32 p, %0, 0;\n @p st.global.u32 [%1], %2;\n}\n" ::"r"(static_cast<uint32_t>(valid)),
      "l"(to), "r"(v)
      : "memory");
}
__device__ __forceinline__ void store_if(bool valid, uint16_t* to, const uint4& v) {
  asm volatile("{\n .reg .pred p;\n setp.ne.u32 p, %0, 0;\n @p st.global.v4.u32 [%1], {%2, %3, %4, %5};\n}\n" ::"r"(
                   static_cast<uint32_t>(valid)),
               "l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}

// Columns first_column + 8j + 2 * (lane % 4) and the next of both heads of this thread. All lanes call. f32 or bf16 is
// decided before the first of many calls: code that each of them skips would have to be fetched all the same. `swap`: as in
// load_queries().
template <LatentRows kFormat, bool kF32, class W>
__device__ __forceinline__ void store_output(const SparseMla& a, const W& w, int first_column, int j,
                                             const float4& value, const float (&inverse)[2], int swap = 0) {
  const int column = first_column + 8 * j + 2 * (threadIdx.x % 4);
  const float4 columns = kFormat == LatentRows::kFp8 ? sort_columns(value) : value;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int head = w.first_head() + (own_row() + 8 * h ^ swap);
    const int64_t at = (w.row() * a.n_heads + head) * kLatent + column;
    const float2 v = h == 0 ? float2{columns.x * inverse[0], columns.y * inverse[0]}
                            : float2{columns.z * inverse[1], columns.w * inverse[1]};
    if constexpr (kF32) {
      store_if(head < a.n_heads, static_cast<float*>(a.out) + at, v);
    } else {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(v.x, v.y);
      store_if(head < a.n_heads, static_cast<uint16_t*>(a.out) + at, *reinterpret_cast<const uint32_t*>(&pair));
    }
  }
}

// Four words of each of four lanes, transposed among them.
__device__ __forceinline__ void transpose_quad(uint32_t (&word)[4]) {
  const bool odd = (threadIdx.x & 1) != 0, upper = (threadIdx.x & 2) != 0;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t got = __shfl_xor_sync(0xffffffff, odd ? word[i] : word[i + 1], 1);
    (odd ? word[i] : word[i + 1]) = got;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t got = __shfl_xor_sync(0xffffffff, upper ? word[i] : word[i + 2], 2);
    (upper ? word[i] : word[i + 2]) = got;
  }
}

// 32 columns from first_column on for both heads of this thread, in four float4, as bf16 of FP8 rows: four lanes write 64
// bytes of a row.
template <class W>
__device__ __forceinline__ void store_32_columns(const SparseMla& a, const W& w, int first_column, const float4* value,
                                                 const float (&inverse)[2], int swap = 0) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    uint32_t word[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const __nv_bfloat162 pair = h == 0 ? __floats2bfloat162_rn(value[i].x * inverse[0], value[i].y * inverse[0])
                                         : __floats2bfloat162_rn(value[i].z * inverse[1], value[i].w * inverse[1]);
      word[i] = *reinterpret_cast<const uint32_t*>(&pair);
    }
    transpose_quad(word);
    const int head = w.first_head() + (own_row() + 8 * h ^ swap);
    uint16_t* to = static_cast<uint16_t*>(a.out) + (w.row() * a.n_heads + head) * kLatent + first_column +
                   8 * static_cast<int>(threadIdx.x % 4);
    store_if(head < a.n_heads, to,
             uint4{even_of(word[1], word[0]), odd_of(word[1], word[0]), even_of(word[3], word[2]),
                   odd_of(word[3], word[2])});
  }
}

// The 32 columns from first_column on, of FP8 rows. kF32: of the output.
template <bool kF32, class W>
__device__ __forceinline__ void store_columns(const SparseMla& a, const W& w, int first_column, const float4* value,
                                              const float (&inverse)[2]) {
  if constexpr (kF32) {
#pragma unroll
    for (int j = 0; j < 4; ++j) store_output<LatentRows::kFp8, true>(a, w, first_column, j, value[j], inverse);
  } else {
    store_32_columns(a, w, first_column, value, inverse);
  }
}
template <class W>
__device__ __forceinline__ void store_columns(const SparseMla& a, const W& w, int first_column, const float4* value,
                                              const float (&inverse)[2]) {
  if (!a.out_f32) return store_columns<false>(a, w, first_column, value, inverse);
  store_columns<true>(a, w, first_column, value, inverse);
}

template <bool kF32, class W>
__device__ __forceinline__ void write_whole_row(Shared& s, ValueState& m, const SparseMla& a, const W& w,
                                                const float4* total) {
  const bool first_part = w.n_tiles() <= kPartTiles;
  const MergeFactors f[2] = {merge_factors(m.total_max[0], m.acc_max[0]), merge_factors(m.total_max[1], m.acc_max[1])};
  s.sum_full.wait(w.n_done() & 1);
  const int row = own_row();
  const float inverse[2] = {invert_sum(s.row_sum[0][row], s.row_sum[1][row]),
                            invert_sum(s.row_sum[0][row + 8], s.row_sum[1][row + 8])};
  s.sum_empty.arrive_as_warp();
#pragma unroll
  for (int first = 0; first < 16; first += kTotalBatch) {
    float4 before[kTotalBatch];
    read_total<kValueThreads>(before, total, first, first_part);
#pragma unroll
    for (int j = 0; j < kTotalBatch; ++j)
      store_output<LatentRows::kBF16, kF32>(a, w, first_column(w), first + j,
                                            merge_four(m.acc, first + j, f, before[j]), inverse);
  }
}

// Leaves the part's sums where others can read them.
__device__ __forceinline__ void publish_part(PartResult& to, const ValueState& m) {
  const int t = threadIdx.x - kScoreThreads;
#pragma unroll
  for (int j = 0; j < 16; ++j) to.acc[j][t] = {m.acc[4 * j], m.acc[4 * j + 1], m.acc[4 * j + 2], m.acc[4 * j + 3]};
#pragma unroll
  for (int h = 0; h < 2; ++h) to.max_bits[h][t] = m.acc_max[h];
}

// The parts of a row as they lie in the shared memory of the cluster's blocks.
struct PartsOfCluster {
  Shared& s;
  int half;

  __device__ __forceinline__ uint32_t rank(int part) const { return static_cast<uint32_t>(2 * part + half); }
  __device__ __forceinline__ int32_t max_bits(int part, int h, int t) const {
    return static_cast<int32_t>(cluster_load_u32(&s.part.max_bits[h][t], rank(part)));
  }
  __device__ __forceinline__ float row_sum(int part, int parity, int row) const {
    return __uint_as_float(cluster_load_u32(&s.row_sum[parity][row], rank(part)));
  }
  __device__ __forceinline__ float4 acc(int part, int j, int t) const {
    return cluster_load_float4(&s.part.acc[j][t], rank(part));
  }
};

// The same in scratch memory, written by blocks that may be gone.
struct PartRecord {
  PartResult result;
  float row_sum[2][kMlaHeadGroup];
};
static_assert(sizeof(PartRecord) == kMlaPartRecordBytes);
struct PartsInScratch {
  const PartRecord* of_part;  // two apart: the halves take turns

  __device__ __forceinline__ int32_t max_bits(int part, int h, int t) const {
    return __ldcg(&of_part[2 * part].result.max_bits[h][t]);
  }
  __device__ __forceinline__ float row_sum(int part, int parity, int row) const {
    return __ldcg(&of_part[2 * part].row_sum[parity][row]);
  }
  __device__ __forceinline__ float4 acc(int part, int j, int t) const {
    return __ldcg(&of_part[2 * part].result.acc[j][t]);
  }
};

// Merges columns first_j .. end_j - 1 of each thread over the parts, ascending, and writes them.
template <bool kF32, class W, class Parts>
__device__ __forceinline__ void write_merged_parts(const Parts& parts, const SparseMla& a, const W& w, int first_j,
                                                   int end_j) {
  const int t = threadIdx.x - kScoreThreads, row = own_row(), n_used = w.n_used_parts();
  MergeFactors factor[kMaxParts][2];
  float sum[2][2] = {{0, 0}, {0, 0}};  // even and odd tiles of both rows
  int32_t total_max[2] = {kNoCeiling, kNoCeiling};
#pragma unroll
  for (int part = 0; part < kMaxParts; ++part) {
    if (part >= n_used) continue;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      factor[part][h] = merge_factors(total_max[h], parts.max_bits(part, h, t));
#pragma unroll
      for (int parity = 0; parity < 2; ++parity) {
        const float part_sum = parts.row_sum(part, parity, row + 8 * h);
        sum[h][parity] = fmaf(part_sum, factor[part][h].part, sum[h][parity] * factor[part][h].total);
      }
    }
  }
  const float inverse[2] = {invert_sum(sum[0][0], sum[0][1]), invert_sum(sum[1][0], sum[1][1])};
#pragma unroll 4
  for (int j = first_j; j < end_j; ++j) {
    float4 value{0, 0, 0, 0};
#pragma unroll
    for (int part = 0; part < kMaxParts; ++part) {
      if (part >= n_used) continue;
      const float4 v = parts.acc(part, j, t);
      value.x = fmaf(v.x, factor[part][0].part, value.x * factor[part][0].total);
      value.y = fmaf(v.y, factor[part][0].part, value.y * factor[part][0].total);
      value.z = fmaf(v.z, factor[part][1].part, value.z * factor[part][1].total);
      value.w = fmaf(v.w, factor[part][1].part, value.w * factor[part][1].total);
    }
    store_output<LatentRows::kBF16, kF32>(a, w, first_column(w), j, value, inverse);
  }
}

// The columns of one of n_shares blocks that share the merge.
template <class W, class Parts>
__device__ __forceinline__ void write_share(const Parts& parts, const SparseMla& a, const W& w, int share,
                                            int n_shares) {
  const int first_j = share * 16 / n_shares, end_j = (share + 1) * 16 / n_shares;
  if (a.out_f32)
    write_merged_parts<true>(parts, a, w, first_j, end_j);
  else
    write_merged_parts<false>(parts, a, w, first_j, end_j);
}

// Which parts of a row have come to scratch memory, in a word of it: bit p is set when part p is there, bit kMaxParts + p when
// its block has left without having seen them all; above are counted the blocks that have. The last of these clears the
// word for the next launch.
constexpr uint32_t kSeenAll = 1u << 2 * kMaxParts;
constexpr int64_t kPatience = 20000;  // cycles, several times what parts that begin together end apart

// Says that this block's part has come; returns the parts, a bit each, whose shares of the merge are this block's: its own
// when it has seen all parts come, and those of the blocks that left when its part was the last. With `may_wait` it waits a
// while for the others, which need not be on the device.
__device__ __forceinline__ uint32_t shares_of_merge(uint32_t* word, int part, int n_used, bool may_wait) {
  const uint32_t all = (1u << n_used) - 1, own = 1u << part;
  uint32_t seen = atomicOr(word, own) | own;
  uint32_t shares = own;
  if ((seen & all) == all) shares |= seen >> kMaxParts & all;
  const int64_t begin = clock64();
  while ((seen & all) != all) {
    const bool leave = !may_wait || clock64() - begin > kPatience;
    if (leave && atomicCAS(word, seen, seen | own << kMaxParts) == seen) return 0;
    seen = load_acquire(word);
  }
  const uint32_t before = atomicAdd(word, kSeenAll);
  if (static_cast<int>(before / kSeenAll) + 1 + __popc(before >> kMaxParts & all) == n_used) *word = 0;
  return shares;
}

// Leaves a part in scratch memory. The blocks that hold the parts of a row each merge their share of the columns when all are
// there: the order of the additions is that of the parts, whichever block adds.
template <class W>
__device__ __forceinline__ void share_part(Shared& s, const ValueState& m, const SparseMla& a, const W& w) {
  s.sum_full.wait(w.n_done() & 1);
  auto* records = reinterpret_cast<PartRecord*>(a.scratch + kMlaCounterBytes);
  PartRecord& own = records[2 * w.item() + w.half()];
  const int t = threadIdx.x - kScoreThreads;
  if (t < 2 * kMlaHeadGroup) {  // by tiles of the part, whichever warpgroup had them
    const int group = t / kMlaHeadGroup, head = t % kMlaHeadGroup;
    own.row_sum[(group ^ w.base()) & 1][head] = s.row_sum[group][head];
  }
  s.sum_empty.arrive_as_warp();
  if (w.n_tiles() == 0 && w.part() > 0) return;  // the row has no such part
  publish_part(own.result, m);
  __threadfence();
  named_barrier(kValueBarrier, kValueThreads);
  const int n_used = max(w.n_used_parts(), 1);
  if (t == 0) {
    auto* word = reinterpret_cast<uint32_t*>(a.scratch) + 2 * (w.item() / w.n_parts()) + w.half();
    s.shares = shares_of_merge(word, w.part(), n_used, w.row_is_in_one_turn());
    __threadfence();
  }
  named_barrier(kValueBarrier, kValueThreads);
  const PartsInScratch parts{records + 2 * (w.item() - w.part()) + w.half()};
  for (uint32_t shares = s.shares; shares != 0; shares &= shares - 1) {
    const int share = __ffs(static_cast<int>(shares)) - 1;
    write_share(parts, a, w, share, n_used);
  }
}

}  // namespace levin::cuda::mla
