// Index scores over the vector types of simd.h. Lanes run along the 64 keys of a page, which is laid out with its keys
// side by side once and then meets every head of every query row of the job.
//
//   scratch   q       [kIndexRows, n_heads, d rounded up]   queries as f32
//             tile    [d, 64]                               one page as f32, keys side by side
//             rows    [16, d rounded up]                    keys that are not f32, widened
//             dots    [kRowBlock, 64]
#pragma once

#include "kernels/cpu/dot_tile.h"
#include "kernels/cpu/index.h"
#include "kernels/cpu/select_simd.h"

namespace levin::kernels {
namespace {

// Fetches a page ahead of its use, a few lines at a time.
class PageFetcher {
 public:
  PageFetcher(const std::byte* page, int64_t n_bytes, int64_t n_steps)
      : at_(page), end_(page + n_bytes), n_bytes_per_step_(round_up((n_bytes + n_steps - 1) / n_steps, 64)) {}

  void step() {
    const std::byte* stop = end_ - at_ < n_bytes_per_step_ ? end_ : at_ + n_bytes_per_step_;
    for (; at_ < stop; at_ += 64) _mm_prefetch(reinterpret_cast<const char*>(at_), _MM_HINT_T1);
  }

 private:
  const std::byte* at_;
  const std::byte* end_;
  int64_t n_bytes_per_step_;
};

template <class V>
struct IndexScores {
  using F32 = typename V::F32;
  static constexpr int kVectors = kTile / 16;

  struct Scratch {
    float* q;
    float* tile;
    float* rows;
    float* dots;
    int64_t d_padded;
    int64_t n_bytes;
  };

  static Scratch lay_out(std::byte* scratch, int64_t n_heads, int64_t d) {
    Scratch s{};
    s.d_padded = round_up(d, 16);
    s.q = reinterpret_cast<float*>(scratch);
    s.tile = s.q + kIndexRows * n_heads * s.d_padded;
    s.rows = s.tile + d * kTile;
    s.dots = s.rows + 16 * s.d_padded;
    s.n_bytes = reinterpret_cast<std::byte*>(s.dots + kRowBlock * kTile) - scratch;
    return s;
  }

  static int64_t scratch_bytes(int64_t n_heads, int64_t d) {
    alignas(64) std::byte origin[64];
    return lay_out(origin, n_heads, d).n_bytes;
  }

  static DType key_dtype(const IndexKeyFormat& f) {
    return f.dtype == CacheDType::kF32 ? DType::kF32 : f.dtype == CacheDType::kBF16 ? DType::kBF16 : DType::kF8E4M3;
  }

  static void prepare_queries(const IndexScoreJob& a, const Scratch& s) {
    for (int64_t t = 0; t < a.n_rows; ++t) {
      for (int64_t h = 0; h < a.n_heads; ++h) {
        const std::byte* q =
            static_cast<const std::byte*>(a.q) + (t * a.q_row_stride + h * a.q_head_stride) * bytes_of(a.q_dtype);
        widen<V>(q, a.q_dtype, a.format.d_index, s.q + (t * a.n_heads + h) * s.d_padded);
      }
    }
  }

  static void prepare_page(const IndexScoreJob& a, const Scratch& s, const std::byte* page) {
    const DType dtype = key_dtype(a.format);
    const int64_t d = a.format.d_index;
    const bool direct = dtype == DType::kF32 && d % 16 == 0;
    for (int64_t key = 0; key < kTile; key += 16) {
      const float* row[16];
      for (int64_t j = 0; j < 16; ++j) {
        const std::byte* cached = page + (key + j) * a.format.key_bytes;
        row[j] = direct ? reinterpret_cast<const float*>(cached) : s.rows + j * s.d_padded;
        if (!direct) widen<V>(cached, dtype, d, s.rows + j * s.d_padded);
      }
      for (int64_t i = 0; i < d; i += 16) {
        transpose_block<V>(row, d - i < 16 ? d - i : 16, s.tile + i * kTile + key);
        for (const float*& p : row) p += 16;
      }
    }
  }

  // Scores of row t against the page in s.tile.
  static void score_row(const IndexScoreJob& a, const Scratch& s, int64_t t, PageFetcher& next_page,
                        F32 (&total)[kVectors]) {
    for (F32& x : total) x = V::zero();
    for (int64_t h = 0; h < a.n_heads; h += kRowBlock) {
      next_page.step();
      const int64_t n_rows = a.n_heads - h < kRowBlock ? a.n_heads - h : kRowBlock;
      const TileProduct dots{.rows = s.q + (t * a.n_heads + h) * s.d_padded,
                             .row_stride = s.d_padded,
                             .tile = s.tile,
                             .tile_stride = kTile,
                             .n_steps = a.format.d_index,
                             .out = s.dots,
                             .out_stride = kTile};
      for (int64_t begin = 0; begin < a.format.d_index; begin += kDotBlock) dot_block<V>(dots, begin, n_rows);
      add_heads(a, t, h, n_rows, s.dots, total);
    }
  }

  // Adds what heads h .. h+n_heads-1 give row t, from their dots [n_heads, 64].
  static void add_heads(const IndexScoreJob& a, int64_t t, int64_t h, int64_t n_heads, const float* dots,
                        F32 (&total)[kVectors]) {
    for (int64_t r = 0; r < n_heads; ++r) {
      const F32 w = V::broadcast(a.w[t * a.w_stride + h + r]);
      for (int v = 0; v < kVectors; ++v) {
        total[v] = V::fma(w, V::max(V::zero(), V::load(dots + r * kTile + 16 * v)), total[v]);  // NaN stays
      }
    }
  }

  // Writes the slots of a page that lie in first .. visible[t]-1.
  static void store_scores(const IndexScoreJob& a, int64_t t, int64_t page_number, const F32 (&total)[kVectors]) {
    const int64_t slot = page_number * kTile;
    float* out = a.score + t * a.score_stride + slot;
    if (a.first <= slot && slot + kTile <= a.visible[t]) {
      for (int v = 0; v < kVectors; ++v) V::store(out + 16 * v, total[v]);
      return;
    }
    float scores[kTile];
    for (int v = 0; v < kVectors; ++v) V::store(scores + 16 * v, total[v]);
    for (int64_t j = 0; j < kTile; ++j) {
      if (a.first <= slot + j && slot + j < a.visible[t]) out[j] = scores[j];
    }
  }

  static int64_t n_head_blocks(const IndexScoreJob& a) { return (a.n_heads + kRowBlock - 1) / kRowBlock; }

  static bool sees(const IndexScoreJob& a, int64_t t, int64_t page_number) {
    return a.visible[t] > page_number * kTile && a.visible[t] > a.first;
  }

  // Of the page after this one, in so many steps.
  static PageFetcher fetcher_of_next(const IndexScoreJob& a, int64_t page_number, int64_t n_steps) {
    const bool is_last = page_number + 1 == a.page_end;
    const std::byte* next = a.pages + a.table[is_last ? page_number : page_number + 1] * a.page_bytes;
    return {next, is_last ? 0 : a.format.page_bytes(), n_steps};
  }

  static void score(const IndexScoreJob& a) {
    const Scratch s = lay_out(a.scratch, a.n_heads, a.format.d_index);
    prepare_queries(a, s);
    for (int64_t page_number = a.page_begin; page_number < a.page_end; ++page_number) {
      const std::byte* page = a.pages + a.table[page_number] * a.page_bytes;
      prepare_page(a, s, page);
      PageFetcher next_page = fetcher_of_next(a, page_number, n_head_blocks(a));
      for (int64_t t = 0; t < a.n_rows; ++t) {
        if (!sees(a, t, page_number)) continue;
        F32 total[kVectors];
        score_row(a, s, t, next_page, total);
        if (a.format.dtype == CacheDType::kFp8) {
          const float* scale = reinterpret_cast<const float*>(page + a.format.scale_offset);
          for (int v = 0; v < kVectors; ++v) total[v] = V::mul(total[v], V::load(scale + 16 * v));
        }
        store_scores(a, t, page_number, total);
      }
    }
  }
};

}  // namespace
}  // namespace levin::kernels
