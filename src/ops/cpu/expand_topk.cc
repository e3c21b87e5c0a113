#include "ops/expand_topk.h"

#include <algorithm>

#include "base/check.h"
#include "ops/cpu/row_loops.h"
#include "ops/cpu_backend.h"

namespace levin {
namespace {

void expand_row(const ops::ExpandTopk& a, int64_t t) {
  const int32_t* entries = a.entries.row<int32_t>(t);
  const auto ratio = static_cast<int32_t>(a.ratio);
  int32_t* out = a.topk.row<int32_t>(t);
  int32_t* const out_end = out + a.topk.dim(1);
  for (int64_t e = 0; e < a.entries.dim(1) && entries[e] >= 0; ++e) {
    for (int32_t i = 0; i < ratio; ++i) *out++ = a.first_token + entries[e] * ratio + i;
  }
  const int32_t tail = a.first_token + a.end.data<int32_t>()[t] * ratio, visible = a.visible.data<int32_t>()[t];
  LEVIN_CHECK(visible - tail >= 0 && visible - tail < ratio, "expand_topk: row {} sees {} tokens, its entries {}", t,
              visible, tail);
  for (int32_t token = tail; token < visible; ++token) *out++ = token;
  std::fill(out, out_end, -1);
}

}  // namespace

void CpuBackend::expand_topk(const ops::ExpandTopk& a) {
  const int64_t n_rows = a.topk.dim(0), width = a.topk.dim(1);
  pool_.parallel_for(n_rows, row_grain(n_rows, width), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) expand_row(a, t);
  });
}

}  // namespace levin
