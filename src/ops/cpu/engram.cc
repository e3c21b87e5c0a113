#include "ops/engram.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/memory.h"
#include "base/numbers.h"
#include "kernels/cpu/gate_stream.h"
#include "ops/cpu/row_loops.h"
#include "ops/cpu_backend.h"

namespace levin {
namespace {

// The class of the token at `position` of a sequence, in the step or before it.
int64_t class_at(const ops::NgramRows& a, int64_t seq, int64_t position) {
  if (position < 0) return a.hash.pad;
  const ops::WindowTokens& tokens = a.tokens;
  const int64_t in_step = position - tokens.first_position.data<int32_t>()[seq];
  const float* row = in_step < 0 ? tokens.state.row(seq, position)
                                 : tokens.values.row<float>(tokens.first_row.data<int32_t>()[seq] + in_step);
  return static_cast<int64_t>(row[0]);
}

void hash_token(const ops::NgramRows& a, int64_t t) {
  const int64_t seq = a.tokens.seq.data<int32_t>()[t], n_lengths = std::ssize(a.hash.multipliers) - 1;
  const int64_t n_hashes = std::ssize(a.hash.primes) / n_lengths;
  const int64_t position = a.tokens.first_position.data<int32_t>()[seq] + t - a.tokens.first_row.data<int32_t>()[seq];
  int32_t* out = a.out.row<int32_t>(t);
  int64_t mixed = class_at(a, seq, position) * a.hash.multipliers[0];
  for (int64_t n = 1; n <= n_lengths; ++n) {
    mixed ^= class_at(a, seq, position - n) * a.hash.multipliers[static_cast<size_t>(n)];
    for (int64_t j = (n - 1) * n_hashes; j < n * n_hashes; ++j) {
      const auto column = static_cast<size_t>(j);
      out[j] = static_cast<int32_t>(a.hash.offsets[column] + mixed % a.hash.primes[column]);
    }
  }
}

void check_row(const ops::MappedTable& table, int64_t row) {
  LEVIN_CHECK(row >= 0 && row < table.n_rows, "row {} of a table of {}", row, table.n_rows);
}

void decode_row(const ops::MappedTable& table, int64_t row, float* out) {
  check_row(table, row);
  const std::byte* codes = table.codes + row * table.d;
  const std::byte* scales = table.scales + row * table.n_scales();
  for (int64_t i = 0; i < table.d; ++i) {
    out[i] = e4m3_to_f32(static_cast<uint8_t>(codes[i])) * e8m0_to_f32(static_cast<uint8_t>(scales[i / table.block]));
  }
}

}  // namespace

void CpuBackend::ngram_rows(const ops::NgramRows& a) {
  const int64_t n_tokens = a.out.dim(0);
  pool_.parallel_for(n_tokens, row_grain(n_tokens, a.out.dim(1)), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) hash_token(a, t);
  });
}

void CpuBackend::table_rows(const ops::TableRows& a) {
  const int64_t n_tokens = a.rows.dim(0), n_columns = a.rows.dim(1);
  pool_.parallel_for(n_tokens, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      float* out = a.out.row<float>(t);
      if (a.table.codes == nullptr) {
        std::fill_n(out, n_columns * a.table.d, 0.0f);
        continue;
      }
      for (int64_t j = 0; j < n_columns; ++j) decode_row(a.table, a.rows.row<int32_t>(t)[j], out + j * a.table.d);
    }
  });
}

// By ascending row, so that rows of one memory page are asked for once.
void CpuBackend::read_table_soon(const ops::ReadTableSoon& a) {
  if (a.table.codes == nullptr) return;
  std::vector<int32_t> rows;
  for (int64_t t = 0; t < a.rows.dim(0); ++t)
    rows.insert(rows.end(), a.rows.row<int32_t>(t), a.rows.row<int32_t>(t) + a.rows.dim(1));
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  for (const int64_t row : rows) {
    check_row(a.table, row);
    read_soon({a.table.codes + row * a.table.d, static_cast<size_t>(a.table.d)});
    read_soon({a.table.scales + row * a.table.n_scales(), static_cast<size_t>(a.table.n_scales())});
  }
}

void CpuBackend::gate_streams(const ops::GateStreams& a) {
  const int64_t n_tokens = a.streams.dim(0), n_streams = a.streams.dim(1), d = a.streams.dim(2);
  pool_.parallel_for(n_tokens, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t k = 0; k < n_streams; ++k) {
        kernels::gate_stream({.stream = a.streams.row<float>(t) + k * d,
                              .key = a.keys.row<float>(t) + k * d,
                              .value = a.value.row<float>(t),
                              .weight = a.weight.row<float>(k),
                              .d = d,
                              .eps = a.eps});
      }
    }
  });
}

}  // namespace levin
