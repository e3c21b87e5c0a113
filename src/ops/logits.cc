#include "ops/logits.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/cpu/kernels.h"
#include "ops/check_view.h"
#include "ops/cuda_backend.h"
#include "ops/op_times.h"

namespace levin::ops {
namespace {

// Columns of a row that one thread looks at. Fixed, and merged in ascending order, so that threads cannot matter.
constexpr int64_t kPiece = 8192;

// As the kernels, for values of which some are NaN; has_nan: all are.
kernels::ArgmaxResult argmax_of_numbers(const float* x, int64_t n) {
  kernels::ArgmaxResult best{.value = 0, .index = 0, .has_nan = true};
  for (int64_t i = 0; i < n; ++i) {
    if (x[i] == x[i] && (best.has_nan || x[i] > best.value)) best = {.value = x[i], .index = i};
  }
  return best;
}

}  // namespace

void embed(OpContext& ctx, const Embed& a) {
  const OpTimer timer(ctx, OpKind::kEmbed);
  LEVIN_CHECK(a.table.rank() == 2 && (a.table.dtype() == DType::kF32 || a.table.dtype() == DType::kBF16),
              "embed: table is {}, expected f32 or bf16 [V, D]", a.table.describe());
  LEVIN_CHECK(a.ids.rank() == 1, "embed: ids is {}, expected i32 [T]", a.ids.describe());
  const int64_t n_rows = a.ids.dim(0), n_vocab = a.table.dim(0), d = a.table.dim(1);
  check_view({"embed", "ids", a.ids}, DType::kI32, {n_rows});
  check_view({"embed", "out", a.out}, DType::kF32, {n_rows, d});
  if (ctx.device == Device::kCuda) return ctx.cuda->embed(a);
  ctx.pool->parallel_for(n_rows, row_grain(n_rows, d), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t id = a.ids.data<int32_t>()[t];
      LEVIN_CHECK(id >= 0 && id < n_vocab, "embed: ids[{}] is {}, the table has {} rows", t, id, n_vocab);
      if (a.table.dtype() == DType::kF32) {
        std::memcpy(a.out.row<float>(t), a.table.row<float>(id), static_cast<size_t>(d) * sizeof(float));
      } else {
        ctx.cpu->rows.widen_bf16(a.table.row<uint16_t>(id), a.out.row<float>(t), d);
      }
    }
  });
}

void argmax(OpContext& ctx, const Argmax& a) {
  const OpTimer timer(ctx, OpKind::kArgmax);
  LEVIN_CHECK(a.x.rank() == 2 && a.x.dim(1) > 0, "argmax: x is {}, expected f32 [T, V]", a.x.describe());
  const int64_t n_rows = a.x.dim(0), n = a.x.dim(1), n_pieces = (n + kPiece - 1) / kPiece;
  check_view({"argmax", "x", a.x}, DType::kF32, {n_rows, n});
  check_view({"argmax", "out", a.out}, DType::kI32, {n_rows});
  if (ctx.device == Device::kCuda) return ctx.cuda->argmax(a);

  const ArenaScope scope(*ctx.arena);
  auto* best = reinterpret_cast<kernels::ArgmaxResult*>(
      ctx.arena->allocate_bytes(n_rows * n_pieces * static_cast<int64_t>(sizeof(kernels::ArgmaxResult))));
  ctx.pool->parallel_for(n_rows * n_pieces, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = i / n_pieces, column = i % n_pieces * kPiece;
      best[i] = ctx.cpu->rows.argmax(a.x.row<float>(t) + column, std::min(kPiece, n - column));
      if (best[i].has_nan) best[i] = argmax_of_numbers(a.x.row<float>(t) + column, std::min(kPiece, n - column));
      best[i].index += column;
    }
  });
  for (int64_t t = 0; t < n_rows; ++t) {
    kernels::ArgmaxResult row = best[t * n_pieces];
    for (int64_t piece = 0; piece < n_pieces; ++piece) {
      const kernels::ArgmaxResult& other = best[t * n_pieces + piece];
      if (!other.has_nan && (row.has_nan || other.value > row.value)) row = other;
    }
    a.out.data<int32_t>()[t] = row.has_nan ? 0 : static_cast<int32_t>(row.index);
  }
}

void mark_unusable(OpContext& ctx, const MarkUnusable& a) {
  const OpTimer timer(ctx, OpKind::kNorm);
  LEVIN_CHECK(a.x.rank() == 2, "mark_unusable: x is {}, expected f32 [T, D]", a.x.describe());
  const int64_t n_rows = a.x.dim(0), d = a.x.dim(1);
  check_view({"mark_unusable", "x", a.x}, DType::kF32, {n_rows, d});
  check_view({"mark_unusable", "faults", a.faults}, DType::kI32, {n_rows});
  if (ctx.device == Device::kCuda) return ctx.cuda->mark_unusable(a);
  ctx.pool->parallel_for(n_rows, row_grain(n_rows, d), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const float* row = a.x.row<float>(t);
      float sum = 0;  // of zeros, or NaN
      for (int64_t i = 0; i < d; ++i) sum += row[i] - row[i];
      if (sum != 0) mark_fault(a.faults, t);
    }
  });
}

}  // namespace levin::ops
