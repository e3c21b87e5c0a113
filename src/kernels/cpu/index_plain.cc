// The indexer in plain C++: the oracle of the other sets.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/cache_values.h"
#include "kernels/cpu/index.h"

namespace levin::kernels {
namespace {

constexpr int64_t kBlock = 128;  // columns per block of a dot

int64_t score_scratch_bytes(int64_t /*n_heads*/, int64_t /*d_index*/) { return 0; }

// dot(q[t,h,:], k[slot,:]) in blocks of 128.
float dot(const IndexScoreJob& a, int64_t q_begin, const std::byte* page, int64_t key) {
  float total = 0;
  for (int64_t begin = 0; begin < a.format.d_index; begin += kBlock) {
    float block = 0;
    for (int64_t i = begin; i < std::min(begin + kBlock, a.format.d_index); ++i) {
      block = std::fma(query_value(a.q, a.q_dtype, q_begin + i), index_key_value(a.format, page, key, i), block);
    }
    total += block;
  }
  return total;
}

void score(const IndexScoreJob& a) {
  for (int64_t t = 0; t < a.n_rows; ++t) {
    const int64_t begin = std::max(a.first, a.page_begin * kPageTokens);
    const int64_t end = std::min(int64_t{a.visible[t]}, a.page_end * kPageTokens);
    for (int64_t slot = begin; slot < end; ++slot) {
      const std::byte* page = a.pages + a.table[slot / kPageTokens] * a.page_bytes;
      const int64_t key = slot % kPageTokens;
      float total = 0;
      for (int64_t h = 0; h < a.n_heads; ++h) {
        const float d = dot(a, t * a.q_row_stride + h * a.q_head_stride, page, key);
        total = std::fma(a.w[t * a.w_stride + h], 0.0f > d ? 0.0f : d, total);  // NaN stays
      }
      a.score[t * a.score_stride + slot] = total * index_key_scale(a.format, page, key);
    }
  }
}

int64_t select(const SelectJob& a) {
  for (int64_t s = a.begin; s < a.end; ++s) {
    if (a.score[s] != a.score[s]) return s;
  }
  const int64_t n = std::max<int64_t>(0, a.end - a.begin), n_taken = std::min(n, a.n_topk);
  for (int64_t i = 0; i < n; ++i) a.scratch[i] = static_cast<int32_t>(a.begin + i);
  std::nth_element(a.scratch, a.scratch + n_taken, a.scratch + n, [&](int32_t i, int32_t j) {
    return a.score[i] > a.score[j] || (a.score[i] == a.score[j] && i < j);
  });
  std::sort(a.scratch, a.scratch + n_taken);
  std::copy(a.scratch, a.scratch + n_taken, a.topk);
  std::fill(a.topk + n_taken, a.topk + a.n_topk, -1);
  return kNoNan;
}

}  // namespace

IndexKernels index_kernels_plain() {
  return {.score_scratch_bytes = score_scratch_bytes, .score = score, .select = select};
}

}  // namespace levin::kernels
