#include "ops/matmul.h"

#include <vector>

#include "base/check.h"
#include "ops/check_view.h"
#include "ops/cpu/products.h"
#include "ops/cpu_backend.h"
#include "tensor/formats.h"

namespace levin {

void CpuBackend::matmul(const ops::Matmul& a) {
  const ArenaScope scope(arena_);
  PreparedRows x = {
      .input = {.x = a.x.bytes(), .dtype = a.x.dtype(), .stride = a.x.stride(0), .n_rows = a.x.dim(0), .k = a.w->k()},
      .dtype = operand_dtype(*this, a.x.dtype(), *a.w)};
  if (!a.x_scale.empty()) {
    ops::check_view({"matmul", "x_scale", a.x_scale}, DType::kF32,
                    {a.x.dim(0), (a.w->k() + kQuantBlock - 1) / kQuantBlock});
    x.input.scale = a.x_scale.data<float>();
    x.input.scale_stride = a.x_scale.stride(0);
  }
  prepare_rows(*this, {&x, 1});
  const Product product = {.x = &x, .w = a.w, .out = a.out.data<float>(), .out_stride = a.out.stride(0)};
  run_products(*this, {&product, 1});
}

void CpuBackend::matmul_per_head(const ops::MatmulPerHead& a) {
  const int64_t n_heads = static_cast<int64_t>(a.w.size());
  const int64_t n = a.w[0].n(), k = a.w[0].k();
  const ArenaScope scope(arena_);
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
                   .dtype = operand_dtype(*this, a.x.dtype(), w)};
    products[h] = {.x = &operands[h], .w = &w, .out = a.out.row<float>(0, h), .out_stride = a.out.stride(0)};
  }
  prepare_rows(*this, operands);
  run_products(*this, products);
}

OpWork CpuBackend::work(const ops::Matmul& a) const {
  return product_work(operand_dtype(*this, a.x.dtype(), *a.w), *a.w, a.x.dim(0));
}

OpWork CpuBackend::work(const ops::MatmulPerHead& a) const {
  OpWork work;
  for (const Matrix& w : a.w) work += product_work(operand_dtype(*this, a.x.dtype(), w), w, a.x.dim(0));
  return work;
}

}  // namespace levin
