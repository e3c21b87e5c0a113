#include "ops/pool_windows.h"

#include "base/check.h"
#include "ops/backend.h"
#include "ops/check_view.h"
#include "ops/op_times.h"

namespace levin::ops {
namespace {

void check_tokens(std::string_view op, const WindowTokens& a) {
  LEVIN_CHECK(a.values.rank() == 2 && a.first_row.rank() == 1, "{}: values is {}, first_row {}, expected [T, C], [B]",
              op, a.values.describe(), a.first_row.describe());
  const int64_t n_tokens = a.values.dim(0), n_channels = a.values.dim(1), n_seqs = a.first_row.dim(0);
  check_view({op, "values", a.values}, DType::kF32, {n_tokens, n_channels});
  check_view({op, "gates", a.gates}, DType::kF32, {n_tokens, n_channels});
  check_view({op, "seq", a.seq}, DType::kI32, {n_tokens});
  check_view({op, "first_row", a.first_row}, DType::kI32, {n_seqs});
  check_view({op, "end_row", a.end_row}, DType::kI32, {n_seqs});
  check_view({op, "first_position", a.first_position}, DType::kI32, {n_seqs});
  check_view({op, "state.ids", a.state.ids}, DType::kI32, {n_seqs});
  LEVIN_CHECK(a.state.rings != nullptr && a.state.format.n_channels == n_channels && a.state.n_rows > 0,
              "{}: state has rings of {} rows of {} channels, the tokens have {}", op, a.state.n_rows,
              a.state.format.n_channels, n_channels);
}

}  // namespace

void pool_windows(OpContext& ctx, const PoolWindows& a) {
  const OpTimer timer(ctx, OpKind::kPoolWindows);
  check_tokens("pool_windows", a.tokens);
  LEVIN_CHECK(a.out.rank() == 2 && a.bias.rank() == 2, "pool_windows: out is {}, bias {}, expected [N, d], [ratio, C]",
              a.out.describe(), a.bias.describe());
  const int64_t n_entries = a.out.dim(0), d = a.out.dim(1), ratio = a.bias.dim(0);
  check_view({"pool_windows", "bias", a.bias}, DType::kF32, {ratio, a.tokens.values.dim(1)});
  check_view({"pool_windows", "seq", a.seq}, DType::kI32, {n_entries});
  check_view({"pool_windows", "slot", a.slot}, DType::kI32, {n_entries});
  check_view({"pool_windows", "out", a.out}, DType::kF32, {n_entries, d});
  LEVIN_CHECK(a.tokens.values.dim(1) == (a.overlap ? 2 * d : d), "pool_windows: {} channels for rows of {}{}",
              a.tokens.values.dim(1), d, a.overlap ? " that overlap" : "");
  ctx.backend->pool_windows(a);
}

void keep_state(OpContext& ctx, const WindowTokens& a) {
  const OpTimer timer(ctx, OpKind::kPoolWindows);
  check_tokens("keep_state", a);
  ctx.backend->keep_state(a);
}

}  // namespace levin::ops
