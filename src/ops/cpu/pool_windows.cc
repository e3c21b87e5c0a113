#include "ops/pool_windows.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "kernels/cpu/kernels.h"
#include "ops/cpu/row_loops.h"
#include "ops/cpu_backend.h"

namespace levin {
namespace {

// The rows of a sequence in this step.
Share rows_of(const ops::WindowTokens& a, int64_t seq) {
  return {a.first_row.data<int32_t>()[seq], a.end_row.data<int32_t>()[seq]};
}

struct TokenRow {
  const float* values = nullptr;
  const float* gates = nullptr;
};

TokenRow row_of(const ops::WindowTokens& a, int64_t seq, int64_t position) {
  const int64_t step_row = position - a.first_position.data<int32_t>()[seq];
  if (step_row < 0) {
    const float* row = a.state.row(seq, position);
    return {row, row + a.state.format.n_channels};
  }
  const Share rows = rows_of(a, seq);
  LEVIN_CHECK(rows.begin + step_row < rows.end, "pool_windows: position {} of seq {} lies after this step", position,
              seq);
  return {a.values.row<float>(rows.begin + step_row), a.gates.row<float>(rows.begin + step_row)};
}

// The slots of one entry as rows of d channels.
struct Slots {
  std::vector<const float*> values, gates, biases;

  void add(const ops::PoolWindows& a, int64_t seq, int64_t first_position, int64_t channel) {
    for (int64_t i = 0; i < a.bias.dim(0); ++i) {
      const TokenRow row = row_of(a.tokens, seq, first_position + i);
      values.push_back(row.values + channel);
      gates.push_back(row.gates + channel);
      biases.push_back(a.bias.row<float>(i) + channel);
    }
  }
};

void pool_entry(const kernels::CpuKernels& cpu, const ops::PoolWindows& a, int64_t n) {
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

void keep_row(const ops::WindowTokens& a, int64_t t, float* out) {
  const int64_t n_channels = a.values.dim(1);
  std::copy_n(a.values.row<float>(t), n_channels, out);
  std::copy_n(a.gates.row<float>(t), n_channels, out + n_channels);
}

void keep_rows(const ops::WindowTokens& a, int64_t seq) {
  const Share rows = rows_of(a, seq);
  for (int64_t t = rows.begin; t < rows.end; ++t) {
    const int64_t position = a.first_position.data<int32_t>()[seq] + t - rows.begin;
    if (t >= rows.end - a.state.n_rows) keep_row(a, t, a.state.row(seq, position));
    if (float* end = a.state.end_row(seq, position)) keep_row(a, t, end);
  }
}

}  // namespace

void CpuBackend::pool_windows(const ops::PoolWindows& a) {
  const int64_t n_entries = a.out.dim(0);
  for (int64_t n = 0; n < n_entries; ++n) {
    const int64_t seq = a.seq.data<int32_t>()[n];
    LEVIN_CHECK(
        seq >= 0 && seq < a.tokens.first_row.dim(0) && a.first_token + a.slot.data<int32_t>()[n] * a.bias.dim(0) >= 0,
        "pool_windows: entry {} is slot {} of seq {}", n, a.slot.data<int32_t>()[n], seq);
  }
  pool_.parallel_for(n_entries, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t n = begin; n < end; ++n) pool_entry(kernels_, a, n);
  });
}

void CpuBackend::keep_state(const ops::WindowTokens& a) {
  pool_.parallel_for(a.first_row.dim(0), 1, [&](int64_t seq_begin, int64_t seq_end, int) {
    for (int64_t seq = seq_begin; seq < seq_end; ++seq) keep_rows(a, seq);
  });
}

}  // namespace levin
