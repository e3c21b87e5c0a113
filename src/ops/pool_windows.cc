#include "ops/pool_windows.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "kernels/cpu/kernels.h"
#include "ops/check_view.h"
#include "ops/cuda_backend.h"
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

// The rows of a sequence in this step.
Share rows_of(const WindowTokens& a, int64_t seq) {
  return {a.first_row.data<int32_t>()[seq], a.end_row.data<int32_t>()[seq]};
}

struct TokenRow {
  const float* values = nullptr;
  const float* gates = nullptr;
};

TokenRow row_of(const WindowTokens& a, int64_t seq, int64_t position) {
  const int64_t step_row = position - a.first_position.data<int32_t>()[seq];
  if (step_row < 0) {
    const float* row = a.state.row(seq, position);
    return {row, row + a.state.format.n_channels};
  }
  const Share rows = rows_of(a, seq);
  LEVIN_CHECK(rows.begin + step_row < rows.end, "pool_windows: position {} of seq {} lies behind this step", position,
              seq);
  return {a.values.row<float>(rows.begin + step_row), a.gates.row<float>(rows.begin + step_row)};
}

// The slots of one entry as rows of d channels.
struct Slots {
  std::vector<const float*> values, gates, biases;

  void add(const PoolWindows& a, int64_t seq, int64_t first_position, int64_t channel) {
    for (int64_t i = 0; i < a.bias.dim(0); ++i) {
      const TokenRow row = row_of(a.tokens, seq, first_position + i);
      values.push_back(row.values + channel);
      gates.push_back(row.gates + channel);
      biases.push_back(a.bias.row<float>(i) + channel);
    }
  }
};

void pool_entry(const kernels::CpuKernels& cpu, const PoolWindows& a, int64_t n) {
  const int64_t seq = a.seq.data<int32_t>()[n], d = a.out.dim(1);
  const int64_t first = a.first_token + a.slot.data<int32_t>()[n] * a.bias.dim(0);
  Slots slots;
  if (a.overlap && first > 0) slots.add(a, seq, first - a.bias.dim(0), 0);
  slots.add(a, seq, first, a.overlap ? d : 0);
  cpu.rows.pool({.values = slots.values.data(),
                 .gates = slots.gates.data(),
                 .biases = slots.biases.data(),
                 .n_slots = static_cast<int64_t>(slots.values.size()),
                 .d = d,
                 .out = a.out.row<float>(n)});
}

void keep_row(const WindowTokens& a, int64_t t, float* out) {
  const int64_t n_channels = a.values.dim(1);
  std::copy_n(a.values.row<float>(t), n_channels, out);
  std::copy_n(a.gates.row<float>(t), n_channels, out + n_channels);
}

void keep_rows(const WindowTokens& a, int64_t seq) {
  const Share rows = rows_of(a, seq);
  for (int64_t t = rows.begin; t < rows.end; ++t) {
    const int64_t position = a.first_position.data<int32_t>()[seq] + t - rows.begin;
    if (t >= rows.end - a.state.n_rows) keep_row(a, t, a.state.row(seq, position));
    if (float* end = a.state.end_row(seq, position)) keep_row(a, t, end);
  }
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
  LEVIN_CHECK(a.first_token == 0 || ctx.device == Device::kCpu, "pool_windows: first_token is {} on cuda",
              a.first_token);
  if (ctx.device == Device::kCuda) return ctx.cuda->pool_windows(a);
  for (int64_t n = 0; n < n_entries; ++n) {
    const int64_t seq = a.seq.data<int32_t>()[n];
    LEVIN_CHECK(seq >= 0 && seq < a.tokens.first_row.dim(0) && a.first_token + a.slot.data<int32_t>()[n] * ratio >= 0,
                "pool_windows: entry {} is slot {} of seq {}", n, a.slot.data<int32_t>()[n], seq);
  }
  ctx.pool->parallel_for(n_entries, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t n = begin; n < end; ++n) pool_entry(*ctx.cpu, a, n);
  });
}

void keep_state(OpContext& ctx, const WindowTokens& a) {
  const OpTimer timer(ctx, OpKind::kPoolWindows);
  check_tokens("keep_state", a);
  if (ctx.device == Device::kCuda) return ctx.cuda->keep_state(a);
  ctx.pool->parallel_for(a.first_row.dim(0), 1, [&](int64_t seq_begin, int64_t seq_end, int) {
    for (int64_t seq = seq_begin; seq < seq_end; ++seq) keep_rows(a, seq);
  });
}

}  // namespace levin::ops
