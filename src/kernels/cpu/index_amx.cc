// Index scores of bf16 keys by the matrix unit; other keys go to the f32 kernel. 16 keys of a page are an a tile as they
// are cached, 16 heads of a query row a b tile. So a row of c has a key's dots with 16 heads, lanes run along heads, and
// of 16 keys they are folded together.
//
//   tiles     0-3   dots of the page's 64 keys with 16 heads
//             4     queries
//             5-7   keys, in turn
//   scratch   q     [kIndexRows, ceil(n_heads / 16), d / 2, 16] pairs of columns, heads side by side
//             dots  [ceil(n_heads / 16), 64, 16]
//
// Summing over heads while the next tiles are multiplied brought nothing: what is done during products of numbers other
// than zero slows them down.
#include "kernels/cpu/index_simd.h"
#include "kernels/cpu/pair_tile.h"
#include "kernels/cpu/tiles_amx.h"

namespace levin::kernels {
namespace {

using F32Kernel = IndexScores<Avx512>;

constexpr int64_t kLanes = 16;
constexpr int kKeyTiles = kTile / kTileRows;

bool takes_tiles(const IndexScoreJob& a) {
  return a.format.dtype == CacheDType::kBF16 && a.q_dtype == DType::kBF16 && a.format.d_index % kTileK == 0;
}

struct TileScratch {
  float* q;
  float* dots;
  int64_t n_groups;     // of 16 heads
  int64_t group_pairs;  // of a group's queries
  int64_t n_bytes;
};

TileScratch lay_out(std::byte* scratch, int64_t n_heads, int64_t d) {
  TileScratch s{.q = reinterpret_cast<float*>(scratch),
                .n_groups = round_up(n_heads, kLanes) / kLanes,
                .group_pairs = d / 2 * kLanes};
  s.dots = s.q + kIndexRows * s.n_groups * s.group_pairs;
  s.n_bytes = reinterpret_cast<std::byte*>(s.dots + s.n_groups * kTile * kLanes) - scratch;
  return s;
}

int64_t scratch_bytes(int64_t n_heads, int64_t d) {
  alignas(64) std::byte origin[64];
  const int64_t tiles = lay_out(origin, n_heads, d).n_bytes, f32 = F32Kernel::scratch_bytes(n_heads, d);
  return tiles > f32 ? tiles : f32;
}

// The last head stands in for those that are missing in its group; nobody looks at their dots.
void prepare_queries(const IndexScoreJob& a, const TileScratch& s) {
  float* out = s.q;
  for (int64_t t = 0; t < a.n_rows; ++t) {
    for (int64_t h = 0; h < a.n_heads; h += kLanes, out += s.group_pairs) {
      const float* rows[kLanes];
      for (int64_t j = 0; j < kLanes; ++j) {
        const int64_t head = h + j < a.n_heads ? h + j : a.n_heads - 1;
        rows[j] = reinterpret_cast<const float*>(static_cast<const uint16_t*>(a.q) + t * a.q_row_stride +
                                                 head * a.q_head_stride);
      }
      transpose_pairs(rows, a.format.d_index / 2, out, kLanes);
    }
  }
}

template <int kKeys = 0>
LEVIN_INLINE void zero_dots() {
  zero_tile<kKeys>();
  if constexpr (kKeys + 1 < kKeyTiles) zero_dots<kKeys + 1>();
}
template <int kKeys = 0>
LEVIN_INLINE void store_dots(float* dots) {
  store_tile<kKeys>(dots + kKeys * kTileRows * kLanes, 64);
  if constexpr (kKeys + 1 < kKeyTiles) store_dots<kKeys + 1>(dots);
}
template <int kKeys = 0>
LEVIN_INLINE void multiply_keys(const std::byte* keys, int64_t key_bytes) {
  constexpr int kA = 5 + kKeys % 3;
  load_tile<kA>(keys, key_bytes);
  multiply_tiles<kKeys, kA, 4>();
  if constexpr (kKeys + 1 < kKeyTiles) multiply_keys<kKeys + 1>(keys + kTileRows * key_bytes, key_bytes);
}

// dots [64, 16] = a page's keys times a group's queries.
void multiply_page(const std::byte* page, const IndexKeyFormat& f, const float* q, PageFetcher& next_page,
                   float* dots) {
  zero_dots();
  for (int64_t i = 0; i < f.d_index; i += kTileK) {
    load_tile<4>(q + i / 2 * kLanes, 64);
    multiply_keys(page + 2 * i, f.key_bytes);
    next_page.step();
  }
  store_dots(dots);
}

// Lanes l without bit kDistance: x[l] + x[l + kDistance]; with it: y[l] + y[l - kDistance].
template <int kDistance>
LEVIN_INLINE V::F32 reduce_two(V::F32 x, V::F32 y) {
  constexpr V::Mask kOfY = kDistance == 8 ? 0xFF00 : kDistance == 4 ? 0xF0F0 : kDistance == 2 ? 0xCCCC : 0xAAAA;
  const V::I32 lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const V::I32 partner = V::xor_i(lane, V::broadcast_i(kDistance));
  const V::I32 from = V::select_i(kOfY, V::or_i(partner, V::broadcast_i(16)), partner);  // lane 16 + l is y's l
  return V::add(V::select(kOfY, y, x), _mm512_permutex2var_ps(x, from, y));
}

// Lane j of the result: the lanes of row j folded 8, 4, 2, 1.
LEVIN_INLINE V::F32 reduce_rows(V::F32 (&row)[16]) {
  LEVIN_UNROLL
  for (int j = 0; j < 8; ++j) row[j] = reduce_two<8>(row[j], row[j + 8]);
  LEVIN_UNROLL
  for (int j = 0; j < 4; ++j) row[j] = reduce_two<4>(row[j], row[j + 4]);
  LEVIN_UNROLL
  for (int j = 0; j < 2; ++j) row[j] = reduce_two<2>(row[j], row[j + 2]);
  return reduce_two<1>(row[0], row[1]);
}

// Scores of 16 keys, from dots [groups, 64, 16]. Lanes beyond the last head stay zero.
LEVIN_INLINE V::F32 add_heads(const float* w, int64_t n_heads, const float* dots) {
  V::F32 sum[16];
  LEVIN_UNROLL
  for (V::F32& x : sum) x = V::zero();
  for (int64_t h = 0; h < n_heads; h += kLanes, dots += kTile * kLanes) {
    const int n = static_cast<int>(n_heads - h < kLanes ? n_heads - h : kLanes);
    const V::F32 weight = V::load_n(w + h, n);
    LEVIN_UNROLL
    for (int j = 0; j < 16; ++j) {
      const V::F32 dot = V::max(V::zero(), V::load(dots + j * kLanes));  // NaN stays
      sum[j] = _mm512_mask3_fmadd_ps(weight, dot, sum[j], V::first_n(n));
    }
  }
  return reduce_rows(sum);
}

// Scores of row t against a page.
void score_row(const IndexScoreJob& a, const TileScratch& s, int64_t t, const std::byte* page, PageFetcher& next_page,
               V::F32 (&total)[kTileVectors]) {
  const float* q = s.q + t * s.n_groups * s.group_pairs;
  for (int64_t g = 0; g < s.n_groups; ++g) {
    multiply_page(page, a.format, q + g * s.group_pairs, next_page, s.dots + g * kTile * kLanes);
  }
  for (int v = 0; v < kTileVectors; ++v) {
    total[v] = add_heads(a.w + t * a.w_stride, a.n_heads, s.dots + v * kTileRows * kLanes);
  }
}

void score(const IndexScoreJob& a) {
  if (!takes_tiles(a)) return F32Kernel::score(a);
  const TileScratch s = lay_out(a.scratch, a.n_heads, a.format.d_index);
  prepare_queries(a, s);
  const TileShapes shapes(kKeyTiles, 0, kTileRows);
  const int64_t n_steps = a.n_rows * s.n_groups * a.format.d_index / kTileK;
  for (int64_t page_number = a.page_begin; page_number < a.page_end; ++page_number) {
    const std::byte* page = a.pages + a.table[page_number] * a.page_bytes;
    PageFetcher next_page = F32Kernel::fetcher_of_next(a, page_number, n_steps);
    for (int64_t t = 0; t < a.n_rows; ++t) {
      if (!F32Kernel::sees(a, t, page_number)) continue;
      V::F32 total[kTileVectors];
      score_row(a, s, t, page, next_page, total);
      F32Kernel::store_scores(a, t, page_number, total);
    }
  }
}

}  // namespace

IndexKernels index_kernels_amx_bf16() {
  return {.score_scratch_bytes = scratch_bytes, .score = score, .select = Select<Avx512>::select};
}

}  // namespace levin::kernels
