// Index scores of bf16 keys by the bf16 dot instruction, two columns at a time; other keys go to the f32 kernel, whose
// order of loops this has. The tile is [d / 2, 64] pairs, which keys are as they are cached.
#include "kernels/cpu/index_simd.h"
#include "kernels/cpu/pair_tile.h"

namespace levin::kernels {
namespace {

using F32Kernel = IndexScores<Avx512>;

bool takes_dots(const IndexScoreJob& a) {
  return a.format.dtype == CacheDType::kBF16 && a.q_dtype == DType::kBF16 && a.format.d_index % 2 == 0;
}

// The f32 kernel's scratch memory is larger in every part.
struct PairScratch {
  float* q;     // [kIndexRows, n_heads, d / 2]
  float* tile;  // [d / 2, 64]
  float* dots;  // [kRowBlock, 64]
  int64_t n_pairs;
};

PairScratch lay_out(const IndexScoreJob& a) {
  const F32Kernel::Scratch s = F32Kernel::lay_out(a.scratch, a.n_heads, a.format.d_index);
  return {.q = s.q, .tile = s.tile, .dots = s.dots, .n_pairs = a.format.d_index / 2};
}

void prepare_queries(const IndexScoreJob& a, const PairScratch& s) {
  for (int64_t t = 0; t < a.n_rows; ++t) {
    for (int64_t h = 0; h < a.n_heads; ++h) {
      const auto* q = static_cast<const uint16_t*>(a.q) + t * a.q_row_stride + h * a.q_head_stride;
      __builtin_memcpy(s.q + (t * a.n_heads + h) * s.n_pairs, q, static_cast<size_t>(4 * s.n_pairs));
    }
  }
}

void prepare_page(const IndexScoreJob& a, const PairScratch& s, const std::byte* page) {
  for (int64_t key = 0; key < kTile; key += 16) {
    const float* rows[16];
    for (int64_t j = 0; j < 16; ++j) rows[j] = reinterpret_cast<const float*>(page + (key + j) * a.format.key_bytes);
    transpose_pairs(rows, s.n_pairs, s.tile + key);
  }
}

// Scores of row t against the page in s.tile.
void score_row(const IndexScoreJob& a, const PairScratch& s, int64_t t, PageFetcher& next_page,
               V::F32 (&total)[kTileVectors]) {
  for (V::F32& x : total) x = V::zero();
  for (int64_t h = 0; h < a.n_heads; h += kRowBlock) {
    next_page.step();
    const int64_t n_rows = a.n_heads - h < kRowBlock ? a.n_heads - h : kRowBlock;
    const PairProduct dots{.rows = s.q + (t * a.n_heads + h) * s.n_pairs,
                           .row_stride = s.n_pairs,
                           .tile = s.tile,
                           .out = s.dots,
                           .out_stride = kTile};
    for (int64_t begin = 0; begin < s.n_pairs; begin += kPairBlock) dot_pairs_block(dots, begin, s.n_pairs, n_rows);
    F32Kernel::add_heads(a, t, h, n_rows, s.dots, total);
  }
}

void score(const IndexScoreJob& a) {
  if (!takes_dots(a)) return F32Kernel::score(a);
  const PairScratch s = lay_out(a);
  prepare_queries(a, s);
  for (int64_t page_number = a.page_begin; page_number < a.page_end; ++page_number) {
    prepare_page(a, s, a.pages + a.table[page_number] * a.page_bytes);
    PageFetcher next_page = F32Kernel::fetcher_of_next(a, page_number, F32Kernel::n_head_blocks(a));
    for (int64_t t = 0; t < a.n_rows; ++t) {
      if (!F32Kernel::sees(a, t, page_number)) continue;
      V::F32 total[kTileVectors];
      score_row(a, s, t, next_page, total);
      F32Kernel::store_scores(a, t, page_number, total);
    }
  }
}

}  // namespace

IndexKernels index_kernels_avx512_bf16() {
  return {.score_scratch_bytes = F32Kernel::scratch_bytes, .score = score, .select = Select<Avx512>::select};
}

}  // namespace levin::kernels
