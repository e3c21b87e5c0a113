#include "ops/copies.h"

#include <cstring>

#include "base/check.h"
#include "ops/check_view.h"
#include "ops/cuda_backend.h"
#include "ops/op_times.h"

namespace levin::ops {
namespace {

std::byte* row_bytes(const View& v, int64_t row) { return v.bytes() + row * v.stride(0) * dtype_bytes(v.dtype()); }

}  // namespace

void copy_rows(OpContext& ctx, const CopyRows& a) {
  const OpTimer timer(ctx, OpKind::kCopies);
  LEVIN_CHECK(a.x.rank() == 2 && (a.x.dtype() == DType::kF32 || a.x.dtype() == DType::kI32),
              "copy_rows: x is {}, expected f32 or i32 [T, D]", a.x.describe());
  LEVIN_CHECK(a.repeat >= 1, "copy_rows: repeat is {}", a.repeat);
  const int64_t n_from = a.x.dim(0), d = a.x.dim(1);
  const int64_t n_rows = a.rows.empty() ? n_from * a.repeat : a.rows.dim(0);
  if (!a.rows.empty()) check_view({"copy_rows", "rows", a.rows}, DType::kI32, {n_rows});
  check_view({"copy_rows", "out", a.out}, a.x.dtype(), {n_rows, d});
  if (ctx.device == Device::kCuda) return ctx.cuda->copy_rows(a);
  ctx.pool->parallel_for(n_rows, row_grain(n_rows, d), [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t from = a.rows.empty() ? i / a.repeat : a.rows.data<int32_t>()[i];
      LEVIN_CHECK(from >= 0 && from < n_from, "copy_rows: rows[{}] is {}, x is {}", i, from, a.x.describe());
      std::memcpy(row_bytes(a.out, i), row_bytes(a.x, from), static_cast<size_t>(d * dtype_bytes(a.x.dtype())));
    }
  });
}

void scale_rows(OpContext& ctx, const ScaleRows& a) {
  const OpTimer timer(ctx, OpKind::kCopies);
  LEVIN_CHECK(a.x.rank() == 2, "scale_rows: x is {}, expected f32 [T, D]", a.x.describe());
  const int64_t n_rows = a.x.dim(0), d = a.x.dim(1);
  check_view({"scale_rows", "x", a.x}, DType::kF32, {n_rows, d});
  if (!a.scale.empty()) check_view({"scale_rows", "scale", a.scale}, DType::kF32, {n_rows, d});
  check_view({"scale_rows", "out", a.out}, DType::kF32, {n_rows, d});
  if (ctx.device == Device::kCuda) return ctx.cuda->scale_rows(a);
  ctx.pool->parallel_for(n_rows, row_grain(n_rows, d), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const float* x = a.x.row<float>(t);
      const float* scale = a.scale.empty() ? nullptr : a.scale.row<float>(t);
      float* out = a.out.row<float>(t);
      for (int64_t i = 0; i < d; ++i) {
        const float scaled = x[i] * a.factor;
        out[i] = scale != nullptr ? scaled * scale[i] : scaled;
      }
    }
  });
}

}  // namespace levin::ops
