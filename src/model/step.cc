#include "model/step.h"

#include <algorithm>

#include "base/check.h"
#include "ops/copies.h"

namespace levin {
namespace {

View values_of(OpContext& ctx, View values, View rows) {  // [T] i32, [N] -> [N]
  const View out = ctx.arena->allocate(values.dtype(), {rows.dim(0)});
  ops::copy_rows(ctx, {.x = values.reshaped({values.dim(0), 1}), .rows = rows, .out = out.reshaped({rows.dim(0), 1})});
  return out;
}

}  // namespace

const StepEntries& Step::entries_of(int64_t ratio) const {
  const auto found = std::find_if(entries.begin(), entries.end(), [&](const auto& e) { return e.ratio == ratio; });
  LEVIN_CHECK(found != entries.end(), "step: no entries of ratio {}", ratio);
  return *found;
}

Step step_of_rows(OpContext& ctx, const Step& step, View rows) {
  Step out = step;
  out.wanted.reset();
  out.rows_together = 1;
  for (View Step::* values :
       {&Step::tokens, &Step::positions, &Step::seq, &Step::slot, &Step::visible, &Step::window, &Step::faults}) {
    if (!(step.*values).empty()) out.*values = values_of(ctx, step.*values, rows);
  }
  for (StepEntries& e : out.entries) e.visible = values_of(ctx, e.visible, rows);
  return out;
}

}  // namespace levin
