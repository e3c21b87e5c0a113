#include "ops/expand_picks.h"

#include <algorithm>

#include "base/check.h"
#include "ops/check_view.h"
#include "ops/op_times.h"

namespace levin::ops {
namespace {

void expand_row(const ExpandPicks& a, int64_t t) {
  const int32_t* entries = a.entries.row<int32_t>(t);
  const auto ratio = static_cast<int32_t>(a.ratio);
  int32_t* out = a.picks.row<int32_t>(t);
  int32_t* const out_end = out + a.picks.dim(1);
  for (int64_t e = 0; e < a.entries.dim(1) && entries[e] >= 0; ++e) {
    for (int32_t i = 0; i < ratio; ++i) *out++ = a.first_token + entries[e] * ratio + i;
  }
  const int32_t tail = a.first_token + a.end.data<int32_t>()[t] * ratio, visible = a.visible.data<int32_t>()[t];
  LEVIN_CHECK(visible - tail >= 0 && visible - tail < ratio, "expand_picks: row {} sees {} tokens, its entries {}", t,
              visible, tail);
  for (int32_t token = tail; token < visible; ++token) *out++ = token;
  std::fill(out, out_end, -1);
}

}  // namespace

void expand_picks(OpContext& ctx, const ExpandPicks& a) {
  const OpTimer timer(ctx, OpKind::kIndexTopk);
  LEVIN_CHECK(ctx.device == Device::kCpu, "expand_picks: there is no kernel for CUDA");
  LEVIN_CHECK(a.entries.rank() == 2 && a.ratio >= 1, "expand_picks: entries is {}, of {} tokens, expected i32 [T, Ke]",
              a.entries.describe(), a.ratio);
  const int64_t n_rows = a.entries.dim(0), n_entries = a.entries.dim(1), width = n_entries * a.ratio + a.ratio - 1;
  check_view({"expand_picks", "entries", a.entries}, DType::kI32, {n_rows, n_entries});
  check_view({"expand_picks", "end", a.end}, DType::kI32, {n_rows});
  check_view({"expand_picks", "visible", a.visible}, DType::kI32, {n_rows});
  check_view({"expand_picks", "picks", a.picks}, DType::kI32, {n_rows, width});
  ctx.pool->parallel_for(n_rows, row_grain(n_rows, width), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) expand_row(a, t);
  });
}

}  // namespace levin::ops
