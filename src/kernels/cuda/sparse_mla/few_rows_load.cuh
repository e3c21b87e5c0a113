// What the kernels for few query rows (few_rows_sm90.cu, mail_sm90.cu) have in common: top-k indices -> slots,
// queries and keys over the whole depth -> scores, and value columns.
#pragma once

#include <cstdint>

#include "kernels/cuda/prims/wgmma.cuh"
#include "kernels/cuda/sparse_mla/block.cuh"
#include "kernels/cuda/sparse_mla/load.cuh"
#include "kernels/cuda/tiles/swizzle.cuh"

namespace levin::cuda::mla {

constexpr int kDeepChunks = kLatent / 64 + 1;  // the last one is rope
constexpr int kRopeChunk = kDeepChunks - 1;
constexpr int kHeadBytes = (kLatent + kRope) * 2;
constexpr int kFewRowsThreads = kScoreThreads + kValueThreads;
constexpr uint32_t kNoSlot = 0xFFFFFFFF;

using DeepTile = uint8_t[kDeepChunks][kChunkBytes];

// What a part's values of a head are relative to, and the sums of its weights.
struct alignas(16) PartHead {
  float sum[2];  // of the even and the odd tiles
  int32_t max_bits;
  int32_t unused;
};

// own_row() in unsigned arithmetic, which takes a third of the instructions.
__device__ __forceinline__ unsigned head_row() { return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4; }

// The queries as they lie in memory, in the place of query chunks.
struct RawQueries {
  uint4 latent[kMlaHeadGroup][kLatent / 8];
  uint4 rope[kMlaHeadGroup][kRope / 8];
};
static_assert(sizeof(RawQueries) == sizeof(DeepTile));

// Those of a row and the heads from first_head + head on, n of them, for the blocks of the cluster in `blocks`.
__device__ __forceinline__ void ask_for_queries(RawQueries& raw, const SparseMla& a, int64_t row, int first_head,
                                                int head, int n, Mbarrier& full, uint16_t blocks) {
  if (n <= 0) return;
  const int64_t first = first_head + head;
  bulk_load_multicast(raw.latent[head],
                      static_cast<const uint16_t*>(a.q_latent) + row * a.q_latent_row_stride + first * kLatent,
                      n * kLatent * 2, full, blocks);
  bulk_load_multicast(raw.rope[head],
                      static_cast<const uint16_t*>(a.q_rope) + row * a.q_rope_row_stride + first * kRope, n * kRope * 2,
                      full, blocks);
}

// Those of heads that do not exist, by all threads.
__device__ __forceinline__ void clear_missing_queries(RawQueries& raw, int n_heads) {
  const unsigned t = threadIdx.x;
  for (int i = n_heads * (kLatent / 8) + t; i < kMlaHeadGroup * (kLatent / 8); i += kFewRowsThreads)
    raw.latent[i / (kLatent / 8)][i % (kLatent / 8)] = {0, 0, 0, 0};
  for (int i = n_heads * (kRope / 8) + t; i < kMlaHeadGroup * (kRope / 8); i += kFewRowsThreads)
    raw.rope[i / (kRope / 8)][i % (kRope / 8)] = {0, 0, 0, 0};
}

// From there to operands of wgmma, by the score threads, whose barrier it is.
__device__ __forceinline__ void arrange_queries(DeepTile& query, int barrier) {
  constexpr int kPieces = kMlaHeadGroup * (kLatent / 8) / kScoreThreads, kStep = kMlaHeadGroup / kPieces;
  const unsigned t = threadIdx.x;
  const RawQueries& raw = reinterpret_cast<const RawQueries&>(query);
  uint4 latent[kPieces];  // piece t % 64 of head t / 64 and of every kStep after it
#pragma unroll
  for (int k = 0; k < kPieces; ++k) latent[k] = raw.latent[t / 64 + kStep * k][t % 64];
  named_barrier(barrier, kScoreThreads);
#pragma unroll
  for (int k = 0; k < kPieces; ++k) {
    const uint4& v = latent[k];
    *reinterpret_cast<uint4*>(query[t % 64 / 8] + swizzle_128(t / 64 + kStep * k, t % 8 * 16)) = {
        odd_of(v.x, v.y), even_of(v.x, v.y), odd_of(v.z, v.w), even_of(v.z, v.w)};
  }
  uint4 rope[2];
#pragma unroll
  for (int k = 0; k < 2; ++k) rope[k] = raw.rope[t / 8 + 32 * k][t % 8];
  __syncwarp();  // a warp's rows stay where they are
#pragma unroll
  for (int k = 0; k < 2; ++k)
    *reinterpret_cast<uint4*>(query[kRopeChunk] + swizzle_128(t / 8 + 32 * k, t % 8 * 16)) = rope[k];
}

// Sixteen codes of a key, a quarter of a chunk, to its row of the tile, from byte `column` and from the one with the other
// value of bit 4 on: those of swizzle_128().
__device__ __forceinline__ void put_codes(uint8_t* row, unsigned column, const uint4& codes, float scale) {
  const uint32_t factor = code_factor(scale);
  uint4 first = convert_8(codes.x, codes.y, factor), second = convert_8(codes.z, codes.w, factor);
  if (scale > kMaxFactorScale) {  // no sane row has such a scale
    const uint32_t rest = power_pair(scale / kMaxFactorScale);
    first = multiply_8(first, rest);
    second = multiply_8(second, rest);
  }
  *reinterpret_cast<uint4*>(row + column) = first;
  *reinterpret_cast<uint4*>(row + (column ^ 16)) = second;
}

// A row of the cache; without a slot one that is not read. Unsigned, since a signed division takes twice the instructions,
// and these are many.
struct CacheRow {
  using Format = RowFormat<LatentRows::kFp8>;
  const std::byte* row;
  bool valid;

  __device__ __forceinline__ CacheRow(const SparseMla& a, uint32_t slot)
      : row(a.cache + slot / kIndexPageTokens * static_cast<uint64_t>(a.page_bytes) +
            slot % kIndexPageTokens * Format::kRowBytes),
        valid(slot != kNoSlot) {}
  __device__ __forceinline__ uint4 load(unsigned lane_offset, int offset) const {
    return load_16(row + lane_offset + offset, valid);
  }
  // At a lane's offset from the first scale.
  __device__ __forceinline__ float scale(unsigned lane_offset, int i) const {
    return valid ? __ldcg(reinterpret_cast<const float*>(row + lane_offset + Format::kScaleOffset) + i) : 0.0f;
  }
};

// The keys of an own tile, shared by kWarps warps and on their way. A warp has keys one after the other, loads 256 bytes of two
// of them at a time, and writes eight pieces at a time that have a bank each.
template <int kWarps>
struct TileKeys {
  static constexpr int kKeys = kTileKeys / kWarps;  // of a warp
  uint4 codes[kKeys / 2][2];                        // of both halves of the depth
  float scale[kKeys / 2][2];
  uint4 rope[kKeys / 4];

  __device__ __forceinline__ static unsigned pair_key(int warp, int pair) {
    return warp * kKeys + 2 * pair + threadIdx.x / 4 % 2;
  }
  __device__ __forceinline__ static unsigned rope_key(int warp, int i) {
    return warp * kKeys + 4 * i + threadIdx.x % 32 / 8;
  }
  __device__ __forceinline__ void load(const SparseMla& a, const uint32_t* slot, int warp) {
    const unsigned chunk = threadIdx.x % 32 / 8, quarter = threadIdx.x % 4;
#pragma unroll
    for (int pair = 0; pair < kKeys / 2; ++pair) {
      const CacheRow row(a, slot[pair_key(warp, pair)]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        codes[pair][half] = row.load(chunk * 64 + quarter * 16, half * kHalfLatent);
        scale[pair][half] = row.scale(chunk / 2 * 4, half * 2);
      }
    }
  }
  __device__ __forceinline__ void load_rope(const SparseMla& a, const uint32_t* slot, int warp) {
#pragma unroll
    for (int i = 0; i < kKeys / 4; ++i)
      rope[i] =
          CacheRow(a, slot[rope_key(warp, i)]).load(threadIdx.x % 8 * 16, RowFormat<LatentRows::kFp8>::kRopeOffset);
  }
  __device__ __forceinline__ void put(DeepTile& key, int warp) const {
    const unsigned chunk = threadIdx.x % 32 / 8, quarter = threadIdx.x % 4, first = pair_key(warp, 0);
    uint8_t* row = key[chunk] + first * 128;
    const unsigned column = quarter * 32 ^ first % 8 * 16;
#pragma unroll
    for (int pair = 0; pair < kKeys / 2; ++pair) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
        put_codes(row + half * kChunks * kChunkBytes + pair * 256, column ^ pair * 32, codes[pair][half],
                  scale[pair][half]);
    }
#pragma unroll
    for (int i = 0; i < kKeys / 4; ++i)
      *reinterpret_cast<uint4*>(key[kRopeChunk] + swizzle_128(rope_key(warp, i), threadIdx.x % 8 * 16)) = rope[i];
  }
};

// kColumns value columns, 64 or 128, of kTiles tiles, on their way by a warpgroup. Eight lanes have two neighbouring keys, whose
// pieces have a bank each. The columns have one scale.
template <int kColumns, int kTiles>
struct ValuePieces {
  static constexpr int kColumnChunks = kColumns / 64;
  static_assert(128 % kColumns == 0);
  uint4 codes[kTiles][2][kColumnChunks];  // of keys t / 4 and 32 after it
  float scale[kTiles][2];

  __device__ __forceinline__ static unsigned key(int i) { return i * 32 + threadIdx.x % 128 / 4; }
  // `slot` of the tile, to place `at`.
  __device__ __forceinline__ void load(const SparseMla& a, const uint32_t* slot, unsigned first_column, int at) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const CacheRow from(a, slot[key(i)]);
#pragma unroll
      for (int c = 0; c < kColumnChunks; ++c) codes[at][i][c] = from.load(first_column + threadIdx.x % 4 * 16, c * 64);
      scale[at][i] = from.scale(first_column / 128 * 4, 0);
    }
  }
  __device__ __forceinline__ void put(uint8_t* chunk, int at) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int c = 0; c < kColumnChunks; ++c)
        put_codes(chunk + c * kChunkBytes + key(i) * 128, threadIdx.x % 4 * 32 ^ key(i) % 8 * 16, codes[at][i][c],
                  scale[at][i]);
    }
  }
};

// The slots of a part's top-k indices, by all threads.
__device__ __forceinline__ void find_slots(uint32_t (&slot)[kMlaPartTopk], const SparseMla& a, int64_t row, int part) {
  constexpr int kTopk = kMlaPartTopk / kFewRowsThreads;
  const unsigned t = threadIdx.x;
  int pick[kTopk];
#pragma unroll
  for (int i = 0; i < kTopk; ++i) {
    const int number = part * kMlaPartTopk + i * kFewRowsThreads + t;
    pick[i] = number < a.n_topk ? a.topk[row * a.n_topk + number] : -1;
  }
  const bool has_none = is_padding(a, row);
  const int32_t* table = a.tables.data != nullptr ? a.tables.data + a.table_row[row] * a.tables.stride : nullptr;
#pragma unroll
  for (int i = 0; i < kTopk; ++i) {
    const int number = i * kFewRowsThreads + t;
    slot[number] = static_cast<uint32_t>(topk_slot(has_none ? -1 : pick[i], table));  // -1 is kNoSlot
  }
}

// The scores of a tile over the whole depth. The fence: see start_scores().
__device__ __forceinline__ void multiply_tile(float (&score)[32], const DeepTile& queries, const DeepTile& keys) {
  float upper[32];  // over the second half of the depth
  constexpr uint32_t kHigh = descriptor_high();
  const uint32_t query = descriptor_low(queries), key = descriptor_low(keys);
  const auto multiply = [&](float(&to)[32], int chunk, int k, bool accumulate) {
    const auto at = static_cast<uint32_t>(descriptor_step(chunk * kChunkBytes + k));
    Wgmma<64>::bf16<0, 0>(to, join_descriptor(query + at, kHigh), join_descriptor(key + at, kHigh), accumulate);
  };
  fence_async_shared();
  wgmma_fence();
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
#pragma unroll
    for (int k = 0; k < 128; k += 32) {
      multiply(score, c, k, c > 0 || k > 0);
      multiply(upper, kChunks + c, k, c > 0 || k > 0);
    }
  }
#pragma unroll
  for (int k = 0; k < 64; k += 32) {
    multiply(score, kRopeChunk, k, true);
    multiply(upper, kRopeChunk, k + 64, true);
  }
  wgmma_commit();
  wgmma_wait<0>();
  wgmma_touch(score);
  wgmma_touch(upper);
#pragma unroll
  for (int i = 0; i < 32; ++i) score[i] += upper[i];
}

// Scores of indices of a tile that do not exist to -inf: only a row's last tile can have some.
__device__ __forceinline__ void drop_invalid(const uint32_t* slot, float (&score)[32]) {
  if (slot[kTileKeys - 1] != kNoSlot) return;
  const uint32_t* own = slot + 2 * (threadIdx.x % 4);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float bias = own[8 * j + e] == kNoSlot ? -INFINITY : 0.0f;
      score[4 * j + e] += bias;
      score[4 * j + 2 + e] += bias;
    }
  }
}

}  // namespace levin::cuda::mla
