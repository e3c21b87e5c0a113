#include "ops/expand_topk.h"

#include "base/check.h"
#include "ops/backend.h"
#include "ops/check_view.h"
#include "ops/op_times.h"

namespace levin::ops {

void expand_topk(OpContext& ctx, const ExpandTopk& a) {
  const OpTimer timer(ctx, OpKind::kIndexTopk);
  LEVIN_CHECK(a.entries.rank() == 2 && a.ratio >= 1, "expand_topk: entries is {}, of {} tokens, expected i32 [T, Ke]",
              a.entries.describe(), a.ratio);
  const int64_t n_rows = a.entries.dim(0), n_entries = a.entries.dim(1), width = n_entries * a.ratio + a.ratio - 1;
  check_view({"expand_topk", "entries", a.entries}, DType::kI32, {n_rows, n_entries});
  check_view({"expand_topk", "end", a.end}, DType::kI32, {n_rows});
  check_view({"expand_topk", "visible", a.visible}, DType::kI32, {n_rows});
  check_view({"expand_topk", "topk", a.topk}, DType::kI32, {n_rows, width});
  ctx.backend->expand_topk(a);
}

}  // namespace levin::ops
