#include "ops/matmul.h"

#include <fmt/format.h>

#include "base/check.h"
#include "ops/backend.h"
#include "ops/check_view.h"
#include "ops/op_times.h"
#include "ops/quantize.h"

namespace levin::ops {
namespace {

void check_rows(const char* op, const char* name, const View& v, std::initializer_list<int64_t> shape) {
  bool same = v.rank() == static_cast<int>(shape.size());
  int i = 0;
  for (const int64_t n : shape) same = same && v.dim(i++) == n;
  LEVIN_CHECK(same && v.stride(-1) == 1, "{}: {} is {}, expected [{}]", op, name, v.describe(),
              fmt::join(shape.begin(), shape.end(), ", "));
}

void check_input(const OpContext& ctx, const char* op, const View& x, const View& x_scale, const Matrix& w) {
  LEVIN_CHECK(w.device() == ctx.backend->device_id().kind,
              "{}: the weight [{}, {}] lies on another device than the context", op, w.n(), w.k());
  LEVIN_CHECK(x.dtype() == DType::kF32 || x.dtype() == DType::kBF16 || x.dtype() == DType::kF8E4M3,
              "{}: x is {}, expected f32, bf16 or f8_e4m3", op, x.describe());
  LEVIN_CHECK(x.dim(-1) == w.k(), "{}: x is {}, the weight is [{}, {}]", op, x.describe(), w.n(), w.k());
  LEVIN_CHECK(x_scale.empty() == (x.dtype() != DType::kF8E4M3), "{}: x is {}, its scale {}", op, x.describe(),
              x_scale.describe());
}

// As f32 first, then rounded.
void round_products(OpContext& ctx, const MatmulPerHead& a) {
  const ArenaScope scratch(*ctx.arena);
  const int64_t n_rows = a.x.dim(0), n_heads = a.x.dim(1), n = a.w[0].n();
  const View sums = ctx.arena->allocate(DType::kF32, {n_rows, n_heads, n});
  matmul_per_head(ctx, {.x = a.x, .w = a.w, .out = sums});
  if (!a.out.empty()) return round_to_bf16(ctx, {.x = sums.merged_first(), .out = a.out.merged_first()});
  quantize_fp8(ctx, {.x = sums.reshaped({n_rows, n_heads * n}),
                     .out = a.codes,
                     .scale = a.scale,
                     .scale_by_block = a.scale_by_block});
}

}  // namespace

void check_matmul(const OpContext& ctx, const Matmul& a) {
  LEVIN_CHECK(a.w != nullptr && !a.w->empty(), "matmul: no weight");
  LEVIN_CHECK(a.x.rank() == 2, "matmul: x is {}, expected [T, K]", a.x.describe());
  check_input(ctx, "matmul", a.x, a.x_scale, *a.w);
  check_rows("matmul", "out", a.out, {a.x.dim(0), a.w->n()});
  if (a.scale_by_block) {
    LEVIN_CHECK(ctx.backend->reads_scales_by_block(*a.w), "matmul: scales by block for weights [{}, {}] of {}",
                a.w->n(), a.w->k(), dtype_name(a.w->dtype()));
    check_scales_by_block("matmul", a.x_scale, a.x);
  }
}

void matmul(OpContext& ctx, const Matmul& a) {
  OpTimer timer(ctx, OpKind::kMatmul);
  check_matmul(ctx, a);
  if (a.x.dim(0) == 0) return;
  ctx.backend->matmul(a);
  timer.add([&] { return ctx.backend->work(a); });
}

void matmul_per_head(OpContext& ctx, const MatmulPerHead& a) {
  OpTimer timer(ctx, OpKind::kMatmulPerHead);
  const int64_t n_heads = static_cast<int64_t>(a.w.size());
  LEVIN_CHECK(n_heads > 0, "matmul_per_head: no weights");
  LEVIN_CHECK(a.x.rank() == 3 && a.x.dim(1) == n_heads, "matmul_per_head: x is {}, expected [T, {}, K]", a.x.describe(),
              n_heads);
  const int64_t n = a.w[0].n();
  check_input(ctx, "matmul_per_head", a.x, View(), a.w[0]);
  if (a.codes.empty()) {
    check_rows("matmul_per_head", "out", a.out, {a.x.dim(0), n_heads, n});
  } else {
    check_view({"matmul_per_head", "codes", a.codes}, DType::kF8E4M3, {a.x.dim(0), n_heads * n});
  }
  if (a.x.dim(0) == 0) return;
  const bool rounds = !a.codes.empty() || a.out.dtype() != DType::kF32;
  if (!rounds) {
    ctx.backend->matmul_per_head(a);
  } else if (!ctx.backend->matmul_per_head_rounded(a)) {
    round_products(ctx, a);
  }
  timer.add([&] { return ctx.backend->work(a); });
}

}  // namespace levin::ops
