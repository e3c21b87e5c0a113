#include "ops/rope.h"

#include "base/check.h"
#include "base/math.h"
#include "kernels/cpu/kernels.h"
#include "ops/cpu/row_loops.h"
#include "ops/cpu_backend.h"

namespace levin {
namespace {

constexpr int64_t kSinCosCost = 32;  // of an exact sine and cosine, in values rotated

}  // namespace

void CpuBackend::rope(const ops::Rope& a) {
  const int64_t n_rows = a.x.dim(0), n_heads = a.x.dim(1), d = a.x.dim(2);
  const auto rotate =
      a.pairing == ops::RopePairing::kInterleaved ? kernels_.rows.rope_interleaved : kernels_.rows.rope_half_split;
  pool_.parallel_for(n_rows, row_grain(n_rows, n_heads * d), [&](int64_t begin, int64_t end, int) {
    rotate({.x = a.x.row<float>(begin),
            .row_stride = a.x.stride(0),
            .head_stride = a.x.stride(1),
            .cos = a.cos.row<float>(begin),
            .cos_stride = a.cos.stride(0),
            .sin = a.sin.row<float>(begin),
            .sin_stride = a.sin.stride(0),
            .n_rows = end - begin,
            .n_heads = n_heads,
            .d = d});
  });
}

void CpuBackend::rope_table(const ops::RopeTable& a) {
  const int64_t n_rows = a.positions.dim(0), n_pairs = static_cast<int64_t>(a.frequencies->size());
  pool_.parallel_for(n_rows, row_grain(n_rows, kSinCosCost * n_pairs), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const float position = static_cast<float>(a.positions.data<int32_t>()[t]);
      for (int64_t j = 0; j < n_pairs; ++j) {
        const float angle = position * (*a.frequencies)[j];
        const SinCos exact = sin_cos_exact(angle);
        a.cos.row<float>(t)[j] = static_cast<float>(exact.cos);
        a.sin.row<float>(t)[j] = static_cast<float>(exact.sin);
      }
    }
  });
}

}  // namespace levin
