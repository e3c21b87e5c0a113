#include "ops/copies.h"

#include <cstring>

#include "base/check.h"
#include "ops/cpu/row_loops.h"
#include "ops/cpu_backend.h"

namespace levin {
namespace {

std::byte* row_bytes(const View& v, int64_t row) { return v.bytes() + row * v.stride(0) * dtype_bytes(v.dtype()); }

}  // namespace

void CpuBackend::copy_rows(const ops::CopyRows& a) {
  const int64_t n_from = a.x.dim(0), d = a.x.dim(1);
  const int64_t n_rows = a.rows.empty() ? n_from * a.repeat : a.rows.dim(0);
  pool_.parallel_for(n_rows, row_grain(n_rows, d), [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t from = a.rows.empty() ? i / a.repeat : a.rows.data<int32_t>()[i];
      LEVIN_CHECK(from >= 0 && from < n_from, "copy_rows: rows[{}] is {}, x is {}", i, from, a.x.describe());
      std::memcpy(row_bytes(a.out, i), row_bytes(a.x, from), static_cast<size_t>(d * dtype_bytes(a.x.dtype())));
    }
  });
}

void CpuBackend::scale_rows(const ops::ScaleRows& a) {
  const int64_t n_rows = a.x.dim(0), d = a.x.dim(1);
  pool_.parallel_for(n_rows, row_grain(n_rows, d), [&](int64_t begin, int64_t end, int) {
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

}  // namespace levin
