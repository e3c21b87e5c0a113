#include "ops/engram.h"

#include "base/check.h"
#include "ops/backend.h"
#include "ops/check_view.h"
#include "ops/op_times.h"

namespace levin::ops {
namespace {

// The shape of `rows`, [T, J].
void check_rows(std::string_view op, const View& rows, const MappedTable& table) {
  LEVIN_CHECK(rows.rank() == 2, "{}: rows is {}, expected i32 [T, J]", op, rows.describe());
  check_view({op, "rows", rows}, DType::kI32, {rows.dim(0), rows.dim(1)});
  LEVIN_CHECK(table.d > 0 && table.block > 0, "{}: table has rows of {} columns, {} to a scale", op, table.d,
              table.block);
}

}  // namespace

void ngram_rows(OpContext& ctx, const NgramRows& a) {
  const OpTimer timer(ctx, OpKind::kEmbed);
  LEVIN_CHECK(a.tokens.values.rank() == 2, "ngram_rows: values is {}, expected f32 [T, 1]", a.tokens.values.describe());
  const int64_t n_tokens = a.tokens.values.dim(0), n_columns = std::ssize(a.hash.primes);
  const int64_t n_lengths = std::ssize(a.hash.multipliers) - 1;
  check_view({"ngram_rows", "values", a.tokens.values}, DType::kF32, {n_tokens, 1});
  LEVIN_CHECK(n_lengths > 0 && n_columns % n_lengths == 0 && std::ssize(a.hash.offsets) == n_columns,
              "ngram_rows: {} multipliers, {} primes, {} offsets", a.hash.multipliers.size(), a.hash.primes.size(),
              a.hash.offsets.size());
  LEVIN_CHECK(a.tokens.state.format.n_channels == 1 && a.tokens.state.format.n_tokens > n_lengths,
              "ngram_rows: rings of {} channels of {} tokens, of n-grams of {}", a.tokens.state.format.n_channels,
              a.tokens.state.format.n_tokens, n_lengths + 1);
  check_view({"ngram_rows", "out", a.out}, DType::kI32, {n_tokens, n_columns});
  ctx.backend->ngram_rows(a);
}

void table_rows(OpContext& ctx, const TableRows& a) {
  const OpTimer timer(ctx, OpKind::kEmbed);
  check_rows("table_rows", a.rows, a.table);
  check_view({"table_rows", "out", a.out}, DType::kF32, {a.rows.dim(0), a.rows.dim(1) * a.table.d});
  ctx.backend->table_rows(a);
}

void read_table_soon(OpContext& ctx, const ReadTableSoon& a) {
  const OpTimer timer(ctx, OpKind::kEmbed);
  check_rows("read_table_soon", a.rows, a.table);
  ctx.backend->read_table_soon(a);
}

void gate_streams(OpContext& ctx, const GateStreams& a) {
  const OpTimer timer(ctx, OpKind::kStreams);
  LEVIN_CHECK(a.streams.rank() == 3, "gate_streams: streams is {}, expected f32 [T, M, D]", a.streams.describe());
  const int64_t n_tokens = a.streams.dim(0), n_streams = a.streams.dim(1), d_model = a.streams.dim(2);
  check_view({"gate_streams", "streams", a.streams}, DType::kF32, {n_tokens, n_streams, d_model});
  check_view({"gate_streams", "keys", a.keys}, DType::kF32, {n_tokens, n_streams, d_model});
  check_view({"gate_streams", "value", a.value}, DType::kF32, {n_tokens, d_model});
  check_view({"gate_streams", "weight", a.weight}, DType::kF32, {n_streams, d_model});
  ctx.backend->gate_streams(a);
}

}  // namespace levin::ops
