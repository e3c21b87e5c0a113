// Sparse attention over bf16 rows by the matrix unit; other rows go to the f32 kernel.
//
// Lines go in groups of 16, a tile's side. Candidates are scored 64 at a time, keys against queries, so that the
// softmax has lines side by side; up to 256 of them, a span, are then multiplied with their weights together, so that
// sums pass through the registers once. What is not in the form of tiles is brought into it a step of 32 columns or
// candidates at a time, while the step before is multiplied. A rotated part is the sum of two of bf16, high and low.
// Each part of queries and keys is padded to whole steps with zeros.
//
//   q         [groups, steps of the latent, high, low columns, 16, 16] pairs of columns     lines side by side
//   lines     [16, columns] bf16            on their way into q, where sums and rope will be
//   keys      [steps, 64, 32] bf16          the latent part of rows that cannot be taken as they lie
//   rope      [64, high and low columns] bf16
//   scores    [groups, 64, 16] f32          lines side by side
//   weights   [groups, steps of candidates, 16, 32] bf16
//   values    [steps of candidates, 4, 16, 16] pairs of candidates, for 64 columns; two tiles have 32 of them in the
//             order that interleaving leaves: 0-3, 8-11, 16-19, 24-27, then 4-7, 12-15, 20-23, 28-31
//   sums      [groups, columns / 16, 16, 16] f32, in the order of the values
//
//   tiles     0-3   scores of 64 candidates, or sums of 64 columns, for 16 lines
//             4     queries, or weights
//             5-7   keys, or values, in turn
#include "kernels/cpu/attention_simd.h"
#include "kernels/cpu/tiles_amx.h"

namespace levin::kernels {
namespace {

using V = Avx512Bf16;

constexpr int64_t kSpanTiles = 4;  // of 64 candidates
constexpr int64_t kSpan = kSpanTiles * kTile;
constexpr int64_t kSpanSteps = kSpan / kTileK;
constexpr int64_t kScoreSteps = 8;  // whose keys stay in the nearest cache while all groups pass
constexpr int64_t kTileFloats = kTileBytes / 4;
constexpr int64_t kTileWords = kTileBytes / 2;
constexpr int64_t kStepWords = 4 * kTileWords;  // of keys or values

LEVIN_INLINE int64_t lesser(int64_t a, int64_t b) { return a < b ? a : b; }

struct Scratch {
  uint16_t* q;
  uint16_t* lines;
  uint16_t* keys;
  uint16_t* rope;
  float* scores;
  uint16_t* weights;
  uint16_t* values;
  float* sums;
  float* maximum;    // [groups, 16]
  float* sum;        // [groups, 16]
  float* factor;     // [tiles of the span, groups, 16]
  uint8_t* rescale;  // [tiles of the span, groups]: whether a factor is not 1
  int32_t* n_seen;   // [groups, 16], 0 beyond the last line
  int64_t n_groups;
  int64_t n_latent_steps;
  int64_t n_rope_steps;
  int64_t n_column_tiles;  // a multiple of 4
  int64_t n_bytes;

  int64_t n_query_steps() const { return n_latent_steps + 2 * n_rope_steps; }
};

Scratch lay_out(std::byte* scratch, const LatentFormat& f, int64_t n_lines) {
  Scratch s{};
  s.n_groups = round_up(n_lines, kTileRows) / kTileRows;
  s.n_latent_steps = round_up(f.d_latent, kTileK) / kTileK;
  s.n_rope_steps = round_up(f.d_rope, kTileK) / kTileK;
  s.n_column_tiles = round_up(f.d_latent, kTile) / kTileRows;
  std::byte* at = scratch;
  const auto take = [&]<class T>(T*& part, int64_t n) {
    part = reinterpret_cast<T*>(at);
    at += round_up(n * static_cast<int64_t>(sizeof(T)), 64);
  };
  take(s.q, s.n_groups * s.n_query_steps() * kTileWords);
  s.lines = reinterpret_cast<uint16_t*>(at);
  take(s.sums, s.n_groups * s.n_column_tiles * kTileFloats);
  take(s.rope, kTile * 2 * s.n_rope_steps * kTileK);
  take(s.keys, kScoreSteps * kStepWords);
  take(s.scores, s.n_groups * kTile * kTileRows);
  take(s.weights, s.n_groups * kSpanSteps * kTileWords);
  take(s.values, kSpanSteps * kStepWords);
  take(s.maximum, s.n_groups * kTileRows);
  take(s.sum, s.n_groups * kTileRows);
  take(s.factor, kSpanTiles * s.n_groups * kTileRows);
  take(s.rescale, kSpanTiles * s.n_groups);
  take(s.n_seen, s.n_groups * kTileRows);
  s.n_bytes = at - scratch;
  return s;
}

int64_t scratch_bytes(const LatentFormat& f, int64_t n_lines) {
  alignas(64) std::byte origin[64];
  const int64_t own = lay_out(origin, f, n_lines).n_bytes;
  const int64_t other = attention_kernels_avx512().scratch_bytes(f, n_lines);
  return own > other ? own : other;
}

// --- queries ---

LEVIN_INLINE __m256i round_to_bf16(V::F32 x) { return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)); }
LEVIN_INLINE void store_words(uint16_t* p, __m256i x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x); }

// d values rounded to bf16, zero up to d_padded.
LEVIN_INLINE void round_values(const std::byte* values, DType dtype, int64_t d, int64_t d_padded, uint16_t* out) {
  for (int64_t i = 0; i < d_padded; i += 16) {
    const V::F32 x = load_values<V>(values + i * bytes_of(dtype), dtype, d > i ? d - i : 0);
    store_words(out + i, round_to_bf16(x));
  }
}

// d values as the sum of two of bf16: what they round to, and d_padded further on what is left, rounded. Zero beyond d.
LEVIN_INLINE void split_values(const std::byte* values, DType dtype, int64_t d, int64_t d_padded, uint16_t* out) {
  for (int64_t i = 0; i < d_padded; i += 16) {
    const V::F32 x = load_values<V>(values + i * bytes_of(dtype), dtype, d > i ? d - i : 0);
    const __m256i high = round_to_bf16(x);
    store_words(out + i, high);
    store_words(out + d_padded + i, round_to_bf16(V::sub(x, V::from_bits(V::shl<16>(_mm512_cvtepu16_epi32(high))))));
  }
}

// 16 rows of 16 pairs, `stride` floats apart, to 16 rows side by side.
LEVIN_INLINE void transpose_tile(const float* rows, int64_t stride, float* out) {
  V::F32 block[16];
  LEVIN_UNROLL
  for (int r = 0; r < 16; ++r) block[r] = V::load(rows + r * stride);
  V::transpose(block);
  LEVIN_UNROLL
  for (int r = 0; r < 16; ++r) V::store(out + r * 16, block[r]);
}

void prepare_line(const AttentionJob& a, const Scratch& s, int64_t l, uint16_t* out) {
  const int64_t width = bytes_of(a.q_dtype);
  const std::byte* latent = static_cast<const std::byte*>(a.q_latent) + a.offset(l, a.q_latent_strides) * width;
  const std::byte* rope = static_cast<const std::byte*>(a.q_rope) + a.offset(l, a.q_rope_strides) * width;
  round_values(latent, a.q_dtype, a.format.d_latent, s.n_latent_steps * kTileK, out);
  split_values(rope, a.q_dtype, a.format.d_rope, s.n_rope_steps * kTileK, out + s.n_latent_steps * kTileK);
}

// Queries of lines beyond the last are zero.
void prepare_lines(const AttentionJob& a, const Scratch& s) {
  const int64_t n_columns = s.n_query_steps() * kTileK;
  for (int64_t group = 0; group < s.n_groups; ++group) {
    for (int64_t r = 0; r < kTileRows; ++r) {
      const int64_t l = group * kTileRows + r;
      s.n_seen[l] = l < a.n_lines() ? static_cast<int32_t>(a.n_seen[l / a.n_heads]) : 0;
      s.maximum[l] = -__builtin_inff();
      s.sum[l] = 0;
      uint16_t* line = s.lines + r * n_columns;
      if (l < a.n_lines()) {
        prepare_line(a, s, l, line);
      } else {
        __builtin_memset(line, 0, static_cast<size_t>(2 * n_columns));
      }
    }
    for (int64_t step = 0; step < s.n_query_steps(); ++step) {
      transpose_tile(reinterpret_cast<const float*>(s.lines + step * kTileK), n_columns / 2,
                     reinterpret_cast<float*>(s.q + (group * s.n_query_steps() + step) * kTileWords));
    }
  }
}

// --- scores ---

template <int kTiles, int kIdx = 0>
LEVIN_INLINE void zero_sums() {
  zero_tile<kIdx>();
  if constexpr (kIdx + 1 < kTiles) zero_sums<kTiles, kIdx + 1>();
}
template <int kTiles, int kIdx = 0>
LEVIN_INLINE void load_sums(const float* sums) {
  load_tile<kIdx>(sums + kIdx * kTileFloats, 64);
  if constexpr (kIdx + 1 < kTiles) load_sums<kTiles, kIdx + 1>(sums);
}
template <int kTiles, int kIdx = 0>
LEVIN_INLINE void store_sums(float* sums) {
  store_tile<kIdx>(sums + kIdx * kTileFloats, 64);
  if constexpr (kIdx + 1 < kTiles) store_sums<kTiles, kIdx + 1>(sums);
}

// The first 32 of n values of two bytes, zero beyond them.
LEVIN_INLINE __m512i load_words(const void* p, int64_t n) {
  return _mm512_maskz_loadu_epi16(n >= 32 ? ~__mmask32{0} : n > 0 ? (__mmask32{1} << n) - 1 : 0, p);
}

// The latent parts of a tile of candidates.
struct Keys {
  const std::byte* const* rows;  // [n]
  int64_t n;                     // whole steps
  int64_t d_latent;
  const uint16_t* first;  // step 0 of the first row
  int64_t row_stride;     // values
  int64_t step_stride;
  int64_t n_slots;  // for copied steps, a power of two; 0: rows are taken as they lie

  int64_t slot(int64_t step) const { return n_slots == 0 ? step : step & (n_slots - 1); }
};

LEVIN_INLINE bool lie_evenly(const std::byte* const* rows, int64_t n, int64_t row_bytes) {
  bool evenly = true;
  for (int64_t j = 1; j < n; ++j) evenly = evenly && rows[j] - rows[j - 1] == row_bytes;
  return evenly;
}

Keys find_keys(const LatentFormat& f, const Scratch& s, const std::byte* const* rows, int64_t n) {
  Keys keys{.rows = rows, .n = n, .d_latent = f.d_latent};
  if (f.d_latent % kTileK == 0 && lie_evenly(rows, n, f.row_bytes)) {
    keys.first = reinterpret_cast<const uint16_t*>(rows[0]);
    keys.row_stride = f.row_bytes / 2;
    keys.step_stride = kTileK;
  } else {
    keys.first = s.keys;
    keys.row_stride = kTileK;
    keys.step_stride = kStepWords;
    keys.n_slots = s.n_groups == 1 ? 2 : kScoreSteps;
  }
  return keys;
}

LEVIN_INLINE void copy_step(const Scratch& s, const Keys& keys, int64_t step) {
  uint16_t* out = s.keys + keys.slot(step) * kStepWords;
  const int64_t column = step * kTileK;
  for (int64_t j = 0; j < keys.n; ++j, out += kTileK) {
    _mm512_store_si512(out, load_words(keys.rows[j] + 2 * column, keys.d_latent - column));
  }
}

// The rotated parts of n rows.
void split_rope(const LatentFormat& f, const Scratch& s, const std::byte* const* rows, int64_t n) {
  const int64_t d_padded = s.n_rope_steps * kTileK;
  for (int64_t j = 0; j < n; ++j) {
    split_values(rows[j] + f.rope_offset, DType::kF32, f.d_rope, d_padded, s.rope + j * 2 * d_padded);
  }
}

template <int kTiles, int kIdx = 0>
LEVIN_INLINE void multiply_keys(const uint16_t* keys, int64_t stride) {
  constexpr int kKeys = 5 + kIdx % 3;
  load_tile<kKeys>(keys + kIdx * kTileRows * stride, 2 * stride);
  multiply_tiles<kIdx, kKeys, 4>();
  if constexpr (kIdx + 1 < kTiles) multiply_keys<kTiles, kIdx + 1>(keys, stride);
}

// Adds steps begin .. end-1 to the scores of a group for 16 kTiles candidates; those before n_copy are brought.
template <int kTiles>
[[gnu::noinline]] void score_steps(const Scratch& s, const Keys& keys, int64_t group, int64_t begin, int64_t end,
                                   int64_t n_copy) {
  float* scores = s.scores + group * kTile * kTileRows;
  const uint16_t* q = s.q + group * s.n_query_steps() * kTileWords;
  const int64_t n_rope = s.n_rope_steps;
  begin == 0 ? zero_sums<kTiles>() : load_sums<kTiles>(scores);
  if (begin < n_copy) copy_step(s, keys, begin);
  for (int64_t step = begin; step < end; ++step) {
    if (step + 1 < n_copy) copy_step(s, keys, step + 1);
    const int64_t rope = step - s.n_latent_steps;
    if (rope < 0) {
      load_tile<4>(q + step * kTileWords, 64);
      multiply_keys<kTiles>(keys.first + keys.slot(step) * keys.step_stride, keys.row_stride);
    } else {  // high high, high low, low high of query and key
      load_tile<4>(q + (rope < n_rope ? step : step - n_rope) * kTileWords, 64);
      multiply_keys<kTiles>(s.rope + (rope < 2 * n_rope ? rope : rope - 2 * n_rope) * kTileK, 2 * n_rope * kTileK);
    }
  }
  store_sums<kTiles>(scores);
}

// The scores of a tile of candidates for all groups from first_group on.
void score(const Scratch& s, const Keys& keys, int64_t first_group) {
  const int64_t n_steps = s.n_latent_steps + 3 * s.n_rope_steps;
  const int64_t n_together = s.n_groups == 1 ? n_steps : kScoreSteps;
  for (int64_t begin = 0; begin < n_steps; begin += n_together) {
    const int64_t end = lesser(begin + n_together, n_steps);
    int64_t n_copy = keys.n_slots == 0 ? 0 : lesser(end, s.n_latent_steps);
    for (int64_t group = first_group; group < s.n_groups; ++group, n_copy = 0) {
      keys.n == kTileK ? score_steps<2>(s, keys, group, begin, end, n_copy)
                       : score_steps<4>(s, keys, group, begin, end, n_copy);
    }
  }
}

// --- softmax ---

// Weights 2^(u - maximum) of two candidates in pairs. What is below 2^-126 is zero once it is rounded.
LEVIN_INLINE V::I32 weigh_pair(V::F32 even, V::F32 odd, V::F32 maximum) {
  const auto weigh = [&](V::F32 u) {
    const V::F32 whole = V::ceil(u);
    return _mm512_scalef_ps(exp2_fraction<V>(V::sub(u, whole)), V::sub(whole, maximum));
  };
  const __m512i both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(weigh(odd), weigh(even)));
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21,
                                         5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, both);
}

// Scales a group's scores, those that a line does not see to far below any other, and returns the largest of each line.
LEVIN_INLINE V::F32 scale_scores(float* u, float scale, V::I32 n) {
  const V::F32 lowest = V::broadcast(-0x1p127f);
  V::F32 largest = lowest;
  for (int32_t j = 0; j < kTile; ++j) {
    const V::F32 scaled = V::mul(V::load(u + j * kTileRows), V::broadcast(scale));
    const V::F32 seen = V::select(V::less_i(V::broadcast_i(j), n), scaled, lowest);
    V::store(u + j * kTileRows, seen);
    largest = V::max(seen, largest);
  }
  return largest;
}

// Weights of a group's scaled scores, as two tiles, and the sum of each line.
LEVIN_INLINE V::F32 weigh_scores(const float* u, V::F32 maximum, uint16_t* weights) {
  alignas(64) int32_t pairs[kTile / 2][kTileRows];
  V::F32 sum[16];
  LEVIN_UNROLL
  for (int j = 0; j < 16; j += 2) {
    sum[j] = sum[j + 1] = V::zero();
    for (int i = j; i < kTile; i += 16) {
      const V::I32 pair = weigh_pair(V::load(u + i * kTileRows), V::load(u + (i + 1) * kTileRows), maximum);
      const V::I32 odd = V::and_i(pair, V::broadcast_i(static_cast<int32_t>(0xFFFF0000u)));
      V::store_i(pairs[i / 2], pair);
      sum[j] = V::add(sum[j], V::from_bits(V::shl<16>(pair)));
      sum[j + 1] = V::add(sum[j + 1], V::from_bits(odd));
    }
  }
  LEVIN_UNROLL
  for (int half = 8; half >= 1; half /= 2) {
    for (int j = 0; j < half; ++j) sum[j] = V::add(sum[j], sum[j + half]);
  }
  for (int64_t step = 0; step < kTile / kTileK; ++step) {
    transpose_tile(reinterpret_cast<const float*>(pairs[step * kTileRows]), kTileRows,
                   reinterpret_cast<float*>(weights + step * kTileWords));
  }
  return sum[0];
}

// The scores of a group for tile `tile` of the span, whose first candidate is `begin`, become weights. Lines that see
// none of it have none, and keep maximum and sum.
void softmax(const AttentionJob& a, const Scratch& s, int64_t group, int64_t begin, int64_t tile) {
  float* u = s.scores + group * kTile * kTileRows;
  float* line_maximum = s.maximum + group * kTileRows;
  float* line_sum = s.sum + group * kTileRows;
  const V::I32 n = V::sub_i(V::load_i(s.n_seen + group * kTileRows), V::broadcast_i(static_cast<int32_t>(begin)));
  const V::Mask sees = V::less_i(V::broadcast_i(0), n);
  const V::F32 before = V::load(line_maximum), sum = V::load(line_sum), one = V::broadcast(1.0f);
  const V::F32 largest = scale_scores(u, a.scale_log2, n);
  const V::F32 maximum = V::select(sees, V::max(V::ceil(largest), before), V::zero());
  const V::F32 total = weigh_scores(u, maximum, s.weights + (group * kSpanSteps + tile * 2) * kTileWords);
  const V::F32 factor = V::select(sees, exp2_or_zero<V>(V::sub(before, maximum)), one);
  V::store(line_maximum, V::select(sees, maximum, before));
  V::store(line_sum, V::select(sees, V::add(V::mul(sum, factor), total), sum));
  V::store(s.factor + (tile * s.n_groups + group) * kTileRows, factor);
  s.rescale[tile * s.n_groups + group] = V::mask_bits(V::equal(factor, one)) != 0xFFFF;
}

// --- sums ---

// 64 columns of the values of a span.
struct Values {
  const std::byte* const* rows;
  int64_t begin;  // the first candidate
  int64_t d_latent;
  int64_t column;
  uint16_t* steps;
  int64_t n_slots;  // for steps, a power of two

  uint16_t* at(int64_t step) const { return steps + (step & (n_slots - 1)) * kStepWords; }
};

// Brings a step: the columns of two candidates side by side.
LEVIN_INLINE void interleave(const Values& v, int64_t step) {
  for (int64_t i = 0; i < kTile; i += 32) {
    const int64_t column = v.column + i, n = v.d_latent - column;
    uint16_t* out = v.at(step) + i / kTileRows * kTileWords;
    for (int64_t j = 0; j < kTileK; j += 2, out += 32) {
      const std::byte* const* rows = v.rows + step * kTileK + j;
      const __m512i even = load_words(rows[0] + 2 * column, n), odd = load_words(rows[1] + 2 * column, n);
      _mm512_store_si512(out, _mm512_unpacklo_epi16(even, odd));
      _mm512_store_si512(out + kTileWords, _mm512_unpackhi_epi16(even, odd));
    }
  }
}

template <int kIdx = 0>
LEVIN_INLINE void multiply_values(const uint16_t* values) {
  constexpr int kValues = 5 + kIdx % 3;
  load_tile<kValues>(values + kIdx * kTileWords, 64);
  multiply_tiles<kIdx, 4, kValues>();
  if constexpr (kIdx + 1 < 4) multiply_values<kIdx + 1>(values);
}

// Four tiles of a group's sums times the factors of its lines.
LEVIN_INLINE void rescale(float* sums, const float* factor) {
  for (int64_t i = 0; i < 4 * kTileRows; ++i) {
    V::store(sums + i * 16, V::mul(V::load(sums + i * 16), V::broadcast(factor[i % kTileRows])));
  }
}

// Adds the values of a span times a group's weights, n_steps steps, to its sums. In between these leave the registers
// only where a line's maximum moves.
void accumulate_group(const Scratch& s, const Values& v, int64_t group, int64_t n_steps, int64_t n_bring) {
  float* sums = s.sums + (group * s.n_column_tiles + v.column / kTileRows) * kTileFloats;
  const uint16_t* weights = s.weights + group * kSpanSteps * kTileWords;
  const auto moves = [&](int64_t step) { return step % 2 == 0 && s.rescale[step / 2 * s.n_groups + group] != 0; };
  if (n_bring > 0) interleave(v, 0);
  for (int64_t step = 0; step < n_steps;) {
    if (v.begin + step == 0) {
      zero_sums<4>();
    } else {
      if (moves(step)) rescale(sums, s.factor + (step / 2 * s.n_groups + group) * kTileRows);
      load_sums<4>(sums);
    }
    do {
      if (step + 1 < n_bring) interleave(v, step + 1);
      load_tile<4>(weights + step * kTileWords, 64);
      multiply_values(v.at(step));
      ++step;
    } while (step < n_steps && !moves(step));
    store_sums<4>(sums);
  }
}

// The first group that has candidates `begin` and on; all after it have.
int64_t first_group(const AttentionJob& a, int64_t begin) { return first_line(a, begin) / kTileRows; }

// Adds the span's candidates begin .. end-1. The last group, which sees most, comes first and brings the values.
void accumulate(const AttentionJob& a, const Scratch& s, const std::byte* const* rows, int64_t begin, int64_t end) {
  const int64_t first = first_group(a, begin);
  Values v{rows, begin, a.format.d_latent, 0, s.values, s.n_groups == 1 ? 2 : kSpanSteps};
  for (; v.column < s.n_column_tiles * kTileRows; v.column += kTile) {
    for (int64_t group = s.n_groups - 1; group >= first; --group) {
      const int64_t last_line = lesser((group + 1) * kTileRows, a.n_lines()) - 1;
      const int64_t n_steps = (lesser(s.n_seen[last_line], end) - begin + kTileK - 1) / kTileK;
      accumulate_group(s, v, group, n_steps, group + 1 == s.n_groups ? n_steps : 0);
    }
  }
}

// A sum that is too small to be normal may be -0 or 0, depending on whether weights of 0 follow: it becomes 0.
void finish(const AttentionJob& a, const Scratch& s) {
  const int64_t d = a.format.d_latent;
  for (int64_t l = 0; l < a.n_lines(); ++l) {
    float* out = a.out + a.offset(l, a.out_strides);
    if (s.n_seen[l] == 0) {
      __builtin_memset(out, 0, static_cast<size_t>(4 * d));
      continue;
    }
    const V::F32 factor = V::broadcast(Attention<Avx512>::add_sink(a, l, s.maximum[l], s.sum[l]));
    const V::F32 sum = V::broadcast(s.sum[l]);
    const float* sums = s.sums + (l / kTileRows * s.n_column_tiles * kTileRows + l % kTileRows) * 16;
    for (int64_t i = 0; i < d; i += 32, sums += 2 * kTileFloats) {
      const __m512 low = V::load(sums), high = V::load(sums + kTileFloats);
      for (int64_t half = 0; half < 2 && i + 16 * half < d; ++half) {
        const __m512 both = half == 0 ? _mm512_shuffle_f32x4(low, high, 0x44) : _mm512_shuffle_f32x4(low, high, 0xEE);
        const V::F32 x = V::add(_mm512_shuffle_f32x4(both, both, 0xD8), V::zero());
        const int64_t begin = i + 16 * half;
        V::store_n(out + begin, V::div(V::mul(x, factor), sum), static_cast<int>(lesser(d - begin, 16)));
      }
    }
  }
}

void attend_span(const AttentionJob& a, const Scratch& s, int64_t span, int64_t end) {
  const std::byte* rows[kSpan];  // after the last, it again
  for (int64_t j = 0; j < kSpan; ++j) rows[j] = a.row(lesser(span + j, end - 1));
  for (int64_t begin = span, tile = 0; begin < end; begin += kTile, ++tile) {
    const std::byte* const* here = rows + begin - span;
    const int64_t n = round_up(lesser(end - begin, kTile), kTileK), first = first_group(a, begin);
    split_rope(a.format, s, here, n);
    score(s, find_keys(a.format, s, here, n), first);
    for (int64_t group = first; group < s.n_groups; ++group) softmax(a, s, group, begin, tile);
  }
  accumulate(a, s, rows, span, end);
}

void attend(const AttentionJob& a) {
  if (!rounds_to_bf16(a)) return attention_kernels_avx512().attend(a);
  const Scratch s = lay_out(a.scratch, a.format, a.n_lines());
  const TileShapes shapes(8, 0, kTileRows);
  prepare_lines(a, s);
  for (int64_t span = 0; span < a.n_candidates(); span += kSpan) {
    attend_span(a, s, span, lesser(span + kSpan, a.n_candidates()));
  }
  finish(a, s);
}

}  // namespace

AttentionKernels attention_kernels_amx_bf16() {
  return {.scratch_bytes = scratch_bytes, .attend = attend, .n_lines = kTileRows};
}

}  // namespace levin::kernels
