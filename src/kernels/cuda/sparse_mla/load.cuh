// The load warpgroup of sparse_mla (bf16_sm90.cu, half_depth_sm90.cu): indices -> cache rows -> bf16 tiles. Four lanes share a
// key; a thread has two keys of a tile, 32 apart.
#pragma once

#include "kernels/cuda/prims/tma.cuh"
#include "kernels/cuda/sparse_mla/block.cuh"
#include "kernels/cuda/tiles/fp8_to_bf16.cuh"
#include "kernels/cuda/tiles/swizzle.cuh"

namespace levin::cuda::mla {

template <LatentRows kFormat>
struct RowFormat;
template <>
struct RowFormat<LatentRows::kFp8> {
  static constexpr int kRowBytes = kLatent + 16 + kRope * 2;  // 656
  static constexpr int kScaleOffset = kLatent;
  static constexpr int kRopeOffset = kLatent + 16;
};
template <>
struct RowFormat<LatentRows::kBF16> {
  static constexpr int kRowBytes = (kLatent + kRope) * 2;  // 1152
  static constexpr int kRopeOffset = kLatent * 2;
};

// Slot of an index, -1 for none.
__device__ __forceinline__ int topk_slot(int pick, const int32_t* table) {
  if (pick < 0 || table == nullptr) return pick;
  return table[pick / kIndexPageTokens] * kIndexPageTokens + pick % kIndexPageTokens;
}

__device__ __forceinline__ const std::byte* slot_row(const SparseMla& a, int slot, int row_bytes) {
  return a.cache + (slot / kIndexPageTokens) * a.page_bytes + slot % kIndexPageTokens * row_bytes;
}

// Not by way of the read-only path (ld.global.nc): the kernel before may still be writing these rows when this one starts,
// and that path is for memory that nobody writes while a kernel lives.
__device__ __forceinline__ uint4 load_16(const std::byte* from, bool valid) {
  uint4 v{0, 0, 0, 0};
  if (valid)
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
  return v;
}

// FP8 rows: raw bytes to bf16 tile rows.

__device__ __forceinline__ uint4 convert_8(uint32_t first, uint32_t second, uint32_t factor) {
  const uint2 a = e4m3x4_to_bf16_1302(first, factor), b = e4m3x4_to_bf16_1302(second, factor);
  return {a.x, a.y, b.x, b.y};
}

__device__ __forceinline__ uint4 multiply_8(const uint4& v, uint32_t pair) {
  return {multiply_bf16x2(v.x, pair), multiply_bf16x2(v.y, pair), multiply_bf16x2(v.z, pair),
          multiply_bf16x2(v.w, pair)};
}

// What one factor cannot say of scales beyond kMaxFactorScale, which no sane row has.
__device__ __forceinline__ void multiply_rest(uint8_t (*latent)[kChunkBytes], float2 scale, uint32_t low,
                                              uint32_t high) {
#pragma unroll 1
  for (int c = 0; c < kChunks; ++c) {
    const uint32_t rest = power_pair(fmaxf(c < 2 ? scale.x : scale.y, kMaxFactorScale) / kMaxFactorScale);
    uint4& first = *reinterpret_cast<uint4*>(latent[c] + low);
    uint4& second = *reinterpret_cast<uint4*>(latent[c] + high);
    first = multiply_8(first, rest);
    second = multiply_8(second, rest);
  }
}

// A thread's bytes of one row, on their way from the ring to the tile.
struct RawRow {
  uint4 codes[kChunks];
  uint4 rope;
  float2 scale;

  __device__ __forceinline__ void read(const RawKeys& raw, int thread) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) codes[c] = raw.pieces[c][thread];
    rope = raw.pieces[kChunks][thread];
    scale = raw.scale[thread / 4];
  }
  // Writes the row to the tile and, piece after piece, reads the next one, unless null, into the registers that become free.
  __device__ __forceinline__ void convert(KeyTile& tile, int key, int quarter, const RawKeys* next, int thread) {
    const uint32_t factor[2] = {code_factor(scale.x), code_factor(scale.y)};
    const uint32_t low = swizzle_128(key, quarter * 32), high = swizzle_128(key, quarter * 32 + 16);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      *reinterpret_cast<uint4*>(tile.latent[c] + low) = convert_8(codes[c].x, codes[c].y, factor[c / 2]);
      *reinterpret_cast<uint4*>(tile.latent[c] + high) = convert_8(codes[c].z, codes[c].w, factor[c / 2]);
      if (next != nullptr) codes[c] = next->pieces[c][thread];
    }
    *reinterpret_cast<uint4*>(tile.rope + swizzle_64(key, quarter)) = rope;
    if (fmaxf(scale.x, scale.y) > kMaxFactorScale) multiply_rest(tile.latent, scale, low, high);
    if (next == nullptr) return;
    rope = next->pieces[kChunks][thread];
    scale = next->scale[thread / 4];
  }
};

// Asks for this thread's bytes of a row, the first lane of a key for its scales too; without a slot they become zero.
__device__ __forceinline__ void fetch_row(RawKeys& raw, const SparseMla& a, int slot, int half, int thread) {
  using Format = RowFormat<LatentRows::kFp8>;
  const bool valid = slot >= 0;
  const std::byte* row = slot_row(a, max(slot, 0), Format::kRowBytes);
  const std::byte* codes = row + half * kHalfLatent + thread % 4 * 16;
#pragma unroll
  for (int c = 0; c < kChunks; ++c) async_copy_16(&raw.pieces[c][thread], codes + c * 64, valid);
  async_copy_16(&raw.pieces[kChunks][thread], row + Format::kRopeOffset + half * kHalfRope * 2 + thread % 4 * 16,
                valid);
  if (thread % 4 == 0) async_copy_8(&raw.scale[thread / 4], row + Format::kScaleOffset + half * 8, valid);
  async_copy_commit();
}

// Rows arrive in a ring of half tiles, and the lanes of a key ask for its bytes and read them. A half tile is read into
// registers while the one before is converted, and then its place in the ring, one of n, asked for anew. With the row of half
// tile h + n go the page table's entry of h + 2n and the index of h + 3n, by the first of the four lanes of a key: they have
// arrived when row h + n, h + 2n has, so that nothing is waited for twice.
template <bool kTables, class S, class W>
class Fp8Loader {
 public:
  __device__ __forceinline__ Fp8Loader(S& s, const SparseMla& a, const W& w, RingPosition<kStages>& at)
      : s_(s),
        at_(at),
        a_(a),
        w_(w),
        thread_(load_thread()),
        topk_(first_topk(a, w)),
        table_(kTables ? a.tables.data + a.table_row[w.row()] * a.tables.stride : nullptr) {}

  // Asks for an item's first indices, for run(), while its tiles are counted.
  __device__ __forceinline__ static void ask_first(S& s, const SparseMla& a, const W& w) {
    const int32_t* topk = first_topk(a, w);
    const int key = load_thread() / 4, n_halves = a.n_topk / kKeys - 2 * w.first_tile();
#pragma unroll
    for (int i = 0; i < 2 * kRawStages; ++i)
      if (load_thread() % 4 == 0 && i < n_halves) async_copy_4(&s.pick[i][key], topk + i * kKeys, true);
    async_copy_commit();
  }

  __device__ __forceinline__ void run() {
    if (w_.n_tiles() == 0) return finish();
    RawRow row;
    begin();
    row.read(s_.raw[0], thread_);
    for (int half_tile = 0; half_tile < 2 * w_.n_tiles(); half_tile += 2) {
      ask(half_tile, kRawStages);
      s_.key_ring.empty[at_.stage].wait(at_.parity ^ 1);
      put(row, 0, &s_.raw[raw_.stage]);
      if constexpr (kTileFirst) {
        put(row, 1, nullptr);
        finish_tile();
        ask(half_tile + 1, kRawStages - 1);
        row.read(s_.raw[raw_.stage], thread_);
      } else {
        ask(half_tile + 1, kRawStages);
        put(row, 1, &s_.raw[raw_.stage]);
        finish_tile();
      }
    }
    finish();
  }

 private:
  static constexpr int kKeys = kLoadThreads / 4;  // of half a tile
  static constexpr int kRawStages = S::kRawStages;
  static_assert(kPickStages > 2 * kRawStages && kEntryStages > kRawStages);
  // Whether a tile is finished before the row that takes its second half's place is asked for: its scores start earlier, but
  // the row comes later, which only a ring of three half tiles has time for.
  static constexpr bool kTileFirst = kRawStages > 2;

  __device__ __forceinline__ static int load_thread() { return static_cast<int>(threadIdx.x) - S::kFirstLoadThread; }
  __device__ __forceinline__ static const int32_t* first_topk(const SparseMla& a, const W& w) {
    return a.topk + w.row() * a.n_topk + w.first_tile() * kTileKeys + load_thread() / 4;
  }
  __device__ __forceinline__ int key() const { return thread_ / 4; }
  __device__ __forceinline__ bool asks(int half_tile) const { return thread_ % 4 == 0 && half_tile < 2 * w_.n_tiles(); }

  __device__ __forceinline__ void ask_pick(int half_tile) {
    if (asks(half_tile)) async_copy_4(&s_.pick[half_tile % kPickStages][key()], topk_ + half_tile * kKeys, true);
  }
  __device__ __forceinline__ void ask_entry(int half_tile) {
    if (!kTables || !asks(half_tile)) return;
    const int pick = s_.pick[half_tile % kPickStages][key()];
    async_copy_4(&s_.entry[half_tile % kEntryStages][key()], table_ + max(pick, 0) / kIndexPageTokens, pick >= 0);
  }
  // Reads what the slot follows from; slot() forms it a half tile later, when nothing waits for the reads any more.
  __device__ __forceinline__ void read_pick(int half_tile) {
    pick_ = s_.pick[half_tile % kPickStages][key()];
    if (kTables) entry_ = s_.entry[half_tile % kEntryStages][key()];
  }
  __device__ __forceinline__ int slot(int half_tile) const {
    if (half_tile >= 2 * w_.n_tiles()) return -1;
    return kTables && pick_ >= 0 ? entry_ * kIndexPageTokens + pick_ % kIndexPageTokens : pick_;
  }

  // Until all but the last kPending rows that were asked for have arrived, with what was asked for along with them.
  template <int kPending>
  __device__ __forceinline__ void wait_for_rows() {
    async_copy_wait<kPending>();
    __syncwarp();
  }

  // Asks for the first half tiles, whose indices have been asked for, and waits for the first.
  __device__ __forceinline__ void begin() {
    wait_for_rows<0>();
#pragma unroll
    for (int i = 0; i < kRawStages; ++i) ask_entry(i);
    async_copy_commit();
    wait_for_rows<0>();
    int slots[kRawStages];
#pragma unroll
    for (int i = 0; i < kRawStages; ++i) {
      read_pick(i);
      slots[i] = slot(i);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kRawStages; ++i) ask_with(i, i, i, slots[i]);
    wait_for_rows<kRawStages - 1>();
    read_pick(kRawStages);
  }

  // Once all that was asked for has come and been read: the next item's indices come to the same places.
  __device__ __forceinline__ void finish() { wait_for_rows<0>(); }

  // Asks for a row, which is `ahead` after the one to be put next, and for what later ones need.
  __device__ __forceinline__ void ask_with(int half_tile, int ahead, int stage, int slot) {
    valid_ |= static_cast<uint32_t>(slot >= 0) << ahead;
    ask_entry(half_tile + kRawStages);
    ask_pick(half_tile + 2 * kRawStages);
    fetch_row(s_.raw[stage], a_, slot, w_.half(), thread_);
  }

  // With half tile `half_tile` in registers or put, asks for the one that takes its place, which is `ahead` after the one to
  // be put next; the one after `half_tile` has arrived then.
  __device__ __forceinline__ void ask(int half_tile, int ahead) {
    __syncwarp();  // all lanes of a key have its scales
    ask_with(half_tile + kRawStages, ahead, raw_.stage, slot(half_tile + kRawStages));
    raw_.advance();
    wait_for_rows<kRawStages - 1>();
    read_pick(half_tile + kRawStages + 1);
  }

  __device__ __forceinline__ void finish_tile() {
    s_.key_ring.full[at_.stage].arrive();  // without a fence, see start_scores()
    at_.advance();
  }

  // The row in registers to the tile, the next one, unless null, into registers.
  __device__ __forceinline__ void put(RawRow& row, int half, const RawKeys* next) {
    const int row_of_tile = half * kKeys + key();
    row.convert(s_.key[at_.stage], row_of_tile, thread_ % 4, next, thread_);
    if (thread_ % 4 == 0) s_.bias[at_.stage][row_of_tile] = (valid_ & 1) != 0 ? 0.0f : -INFINITY;
    valid_ >>= 1;
  }

  S& s_;
  RingPosition<kStages>& at_;  // continues from item to item
  const SparseMla& a_;
  const W& w_;
  int thread_;
  const int32_t* topk_;
  const int32_t* table_;
  int pick_;            // of the half tile that is asked for next
  int entry_;           // of the page table, for it
  uint32_t valid_ = 0;  // bit i: this thread's key of the half tile that is i after the one to be put next
  RingPosition<kRawStages> raw_;
};

// BF16 rows: one key's half row between global and shared memory, a quarter of it in each of four lanes.
struct KeyPieces {
  using Format = RowFormat<LatentRows::kBF16>;
  uint4 values[2 * kChunks];
  uint4 rope;

  __device__ __forceinline__ void load(const std::byte* row, int half, int quarter, bool valid) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const std::byte* from = row + half * kHalfLatent * 2 + c * 128 + quarter * 32;
      values[2 * c] = load_16(from, valid);
      values[2 * c + 1] = load_16(from + 16, valid);
    }
    rope = load_16(row + Format::kRopeOffset + half * kHalfRope * 2 + quarter * 16, valid);
  }
  __device__ __forceinline__ void store(KeyTile& tile, int key, int quarter) const {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      *reinterpret_cast<uint4*>(tile.latent[c] + swizzle_128(key, quarter * 32)) = values[2 * c];
      *reinterpret_cast<uint4*>(tile.latent[c] + swizzle_128(key, quarter * 32 + 16)) = values[2 * c + 1];
    }
    *reinterpret_cast<uint4*>(tile.rope + swizzle_64(key, quarter)) = rope;
  }
};

// The rows of the next tile are loaded as soon as the registers of this one's are free. Their slots are known by then, and
// the selects after them are asked for before, because loads come back in order.
template <class W>
__device__ __forceinline__ void load_bf16_rows(Shared& s, const SparseMla& a, const W& w, RingPosition<kStages>& at) {
  constexpr int kRowBytes = RowFormat<LatentRows::kBF16>::kRowBytes;
  constexpr int kKeys = kTileKeys * 4 / kLoadThreads;  // of a tile, for each thread
  constexpr int kKeyStep = kLoadThreads / 4;
  const int thread = threadIdx.x - kScoreThreads - kValueThreads;
  const int key = thread / 4, quarter = thread % 4;
  const int32_t* topk = a.topk + w.row() * a.n_topk + w.first_tile() * kTileKeys + key;
  const int32_t* table = a.tables.data ? a.tables.data + a.table_row[w.row()] * a.tables.stride : nullptr;
  KeyPieces pieces[kKeys];
  bool valid[kKeys];
  int slot[kKeys], next_pick[kKeys];
  const auto pick_of = [&](int tile, int o) { return tile < w.n_tiles() ? topk[tile * kTileKeys + o * kKeyStep] : -1; };
  const auto turn_topk = [&](int tile) {  // slots of the tile before, top-k indices of this one
#pragma unroll
    for (int o = 0; o < kKeys; ++o) {
      slot[o] = topk_slot(next_pick[o], table);
      next_pick[o] = pick_of(tile, o);
    }
  };
  const auto load_row = [&](int o) {
    valid[o] = slot[o] >= 0;
    pieces[o].load(slot_row(a, max(slot[o], 0), kRowBytes), w.half(), quarter, valid[o]);
  };
#pragma unroll
  for (int o = 0; o < kKeys; ++o) next_pick[o] = pick_of(0, o);
  turn_topk(1);
#pragma unroll
  for (int o = 0; o < kKeys; ++o) load_row(o);
  for (int tile = 0; tile < w.n_tiles(); ++tile) {
    turn_topk(tile + 2);
    s.key_ring.empty[at.stage].wait(at.parity ^ 1);
#pragma unroll
    for (int o = 0; o < kKeys; ++o) {
      pieces[o].store(s.key[at.stage], key + o * kKeyStep, quarter);
      if (quarter == 0) s.bias[at.stage][key + o * kKeyStep] = valid[o] ? 0.0f : -INFINITY;
      load_row(o);
    }
    s.key_ring.full[at.stage].arrive();  // without a fence, see start_scores()
    at.advance();
  }
}

}  // namespace levin::cuda::mla
