#include "ops/matmul.h"

#include <fmt/format.h>

#include <array>
#include <vector>

#include "base/check.h"
#include "ops/check_view.h"
#include "ops/cuda_backend.h"
#include "ops/op_times.h"
#include "ops/products.h"
#include "tensor/formats.h"

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
  LEVIN_CHECK(w.device() == ctx.device, "{}: the weight [{}, {}] lies on another device than the context", op, w.n(),
              w.k());
  LEVIN_CHECK(x.dtype() == DType::kF32 || x.dtype() == DType::kBF16 || x.dtype() == DType::kF8E4M3,
              "{}: x is {}, expected f32, bf16 or f8_e4m3", op, x.describe());
  LEVIN_CHECK(x.dim(-1) == w.k(), "{}: x is {}, the weight is [{}, {}]", op, x.describe(), w.n(), w.k());
  LEVIN_CHECK(x_scale.empty() == (x.dtype() != DType::kF8E4M3), "{}: x is {}, its scale {}", op, x.describe(),
              x_scale.describe());
  if (!x_scale.empty() && ctx.device == Device::kCpu) {
    check_rows(op, "x_scale", x_scale, {x.dim(0), (w.k() + kQuantBlock - 1) / kQuantBlock});
    LEVIN_CHECK(x_scale.dtype() == DType::kF32, "{}: x_scale is {}, expected f32", op, x_scale.describe());
  }
}

}  // namespace

void matmul(OpContext& ctx, const Matmul& a) {
  OpTimer timer(ctx, OpKind::kMatmul);
  LEVIN_CHECK(a.w != nullptr && !a.w->empty(), "matmul: no weight");
  LEVIN_CHECK(a.x.rank() == 2, "matmul: x is {}, expected [T, K]", a.x.describe());
  check_input(ctx, "matmul", a.x, a.x_scale, *a.w);
  check_rows("matmul", "out", a.out, {a.x.dim(0), a.w->n()});
  if (a.x.dim(0) == 0) return;
  if (ctx.device == Device::kCuda) return ctx.cuda->matmul(a);

  const ArenaScope scope(*ctx.arena);
  PreparedRows x = {
      .input = {.x = a.x.bytes(), .dtype = a.x.dtype(), .stride = a.x.stride(0), .n_rows = a.x.dim(0), .k = a.w->k()},
      .dtype = operand_dtype(ctx, a.x.dtype(), *a.w)};
  if (!a.x_scale.empty()) {
    x.input.scale = a.x_scale.data<float>();
    x.input.scale_stride = a.x_scale.stride(0);
  }
  prepare_rows(ctx, {&x, 1});
  const Product product = {.x = &x, .w = a.w, .out = a.out.data<float>(), .out_stride = a.out.stride(0)};
  run_products(ctx, {&product, 1});
  timer.add([&] { return product_work(x.dtype, *a.w, a.x.dim(0)); });
}

void matmul_per_head(OpContext& ctx, const MatmulPerHead& a) {
  OpTimer timer(ctx, OpKind::kMatmulPerHead);
  const int64_t n_heads = static_cast<int64_t>(a.w.size());
  LEVIN_CHECK(n_heads > 0, "matmul_per_head: no weights");
  LEVIN_CHECK(a.x.rank() == 3 && a.x.dim(1) == n_heads, "matmul_per_head: x is {}, expected [T, {}, K]", a.x.describe(),
              n_heads);
  const int64_t n = a.w[0].n(), k = a.w[0].k();
  check_input(ctx, "matmul_per_head", a.x, View(), a.w[0]);
  check_rows("matmul_per_head", "out", a.out, {a.x.dim(0), n_heads, n});
  if (a.x.dim(0) == 0) return;
  if (ctx.device == Device::kCuda) return ctx.cuda->matmul_per_head(a);

  const ArenaScope scope(*ctx.arena);
  std::vector<PreparedRows> operands(a.w.size());
  std::vector<Product> products(a.w.size());
  for (int64_t h = 0; h < n_heads; ++h) {
    const Matrix& w = a.w[h];
    LEVIN_CHECK(w.n() == n && w.k() == k, "matmul_per_head: head {} is [{}, {}], head 0 [{}, {}]", h, w.n(), w.k(), n,
                k);
    operands[h] = {.input = {.x = a.x.bytes() + h * a.x.stride(1) * dtype_bytes(a.x.dtype()),
                             .dtype = a.x.dtype(),
                             .stride = a.x.stride(0),
                             .n_rows = a.x.dim(0),
                             .k = k},
                   .dtype = operand_dtype(ctx, a.x.dtype(), w)};
    products[h] = {.x = &operands[h], .w = &w, .out = a.out.row<float>(0, h), .out_stride = a.out.stride(0)};
  }
  prepare_rows(ctx, operands);
  run_products(ctx, products);
  timer.add([&] {
    OpWork work;
    for (int64_t h = 0; h < n_heads; ++h) work += product_work(operands[h].dtype, a.w[h], a.x.dim(0));
    return work;
  });
}

}  // namespace levin::ops
