#include "ops/norm.h"

#include "base/check.h"
#include "kernels/cpu/kernels.h"
#include "ops/cpu/row_loops.h"
#include "ops/cpu_backend.h"

namespace levin {
namespace {

// Rows [begin, end) of what `a` describes.
kernels::NormRows rows_of(const ops::LayerNorm& a, int64_t begin, int64_t end) {
  return {.x = a.x.row<float>(begin),
          .x_stride = a.x.stride(0),
          .weight = a.weight.empty() ? nullptr : a.weight.data<float>(),
          .bias = a.bias.empty() ? nullptr : a.bias.data<float>(),
          .eps = a.eps,
          .out = a.out.row<float>(begin),
          .out_stride = a.out.stride(0),
          .n_rows = end - begin,
          .d = a.x.dim(1)};
}

}  // namespace

void CpuBackend::rms_norm(const ops::RmsNorm& a) {
  const int64_t n_rows = a.x.dim(0), d = a.x.dim(1);
  const ops::LayerNorm rows{.x = a.x, .weight = a.weight, .bias = {}, .eps = a.eps, .out = a.out};
  pool_.parallel_for(n_rows, row_grain(n_rows, d),
                     [&](int64_t begin, int64_t end, int) { kernels_.rows.rms_norm(rows_of(rows, begin, end)); });
}

void CpuBackend::layer_norm(const ops::LayerNorm& a) {
  const int64_t n_rows = a.x.dim(0), d = a.x.dim(1);
  pool_.parallel_for(n_rows, row_grain(n_rows, d),
                     [&](int64_t begin, int64_t end, int) { kernels_.rows.layer_norm(rows_of(a, begin, end)); });
}

void CpuBackend::add_into(const ops::AddInto& a) {
  const int64_t n_rows = a.x.dim(0), d = a.x.dim(1);
  pool_.parallel_for(n_rows, row_grain(n_rows, d), [&](int64_t begin, int64_t end, int) {
    kernels_.rows.add_into({.x = a.x.row<float>(begin),
                            .x_stride = a.x.stride(0),
                            .y = a.y.row<float>(begin),
                            .y_stride = a.y.stride(0),
                            .n_rows = end - begin,
                            .d = d});
  });
}

}  // namespace levin
