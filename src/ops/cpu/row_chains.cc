// On the CPU a chain is the ops it is made of.
#include "ops/row_chains.h"

#include "base/check.h"
#include "base/numbers.h"
#include "ops/cache_rows.h"
#include "ops/cpu/row_loops.h"
#include "ops/cpu_backend.h"
#include "ops/norm.h"
#include "ops/quantize.h"

namespace levin {
namespace {

// x [T, H, D] as f32 values of its own, dense.
View widened(CpuBackend& cpu, const View& x) {
  const View out = cpu.arena().allocate(DType::kF32, {x.dim(0), x.dim(1), x.dim(2)});
  cpu.pool().parallel_for(x.dim(0), row_grain(x.dim(0), x.dim(1) * x.dim(2)), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t h = 0; h < x.dim(1); ++h) {
        float* to = out.row<float>(t, h);
        for (int64_t i = 0; i < x.dim(2); ++i) {
          to[i] = x.dtype() == DType::kF32 ? x.row<float>(t, h)[i] : bf16_to_f32(x.row<uint16_t>(t, h)[i]);
        }
      }
    }
  });
  return out;
}

View widened_rows(CpuBackend& cpu, const View& x) { return widened(cpu, x.split_last(1, x.dim(1))).merged_first(); }

void rotate(CpuBackend& cpu, const View& x, const ops::Rotation& r) {
  cpu.rope({.x = x, .cos = r.cos, .sin = r.sin, .pairing = r.pairing});
}

}  // namespace

void CpuBackend::norm_rows(const ops::NormRows& a) {
  const ArenaScope scope(arena_);
  View x = widened_rows(*this, a.x);
  if (!a.residual.empty()) {
    add_into({.x = a.residual, .y = x});
    rms_norm({.x = a.residual, .weight = a.weight, .eps = a.eps, .out = x});
  } else {
    rms_norm({.x = x, .weight = a.weight, .eps = a.eps, .out = x});
  }
  if (!a.normed.empty()) round_to_bf16({.x = x, .out = a.normed});
  if (!a.codes.empty()) quantize_fp8({.x = x, .out = a.codes, .scale = a.scale});
}

void CpuBackend::rotate_queries(const ops::RotateQueries& a) {
  const ArenaScope scope(arena_);
  const View x = widened(*this, a.x);
  rotate(*this, x, a.rotation);
  round_to_bf16({.x = x.merged_first(), .out = a.out.merged_first()});
}

void CpuBackend::write_latent(const ops::WriteLatent& a) {
  const int64_t d_latent = a.format.d_latent, d_rope = a.format.d_rope;
  const ArenaScope scope(arena_);
  const View x = widened_rows(*this, a.x);
  const View latent = x.slice_last(0, d_latent), rope = x.slice_last(d_latent, d_rope);
  rms_norm({.x = latent, .weight = a.weight, .eps = a.eps, .out = latent});
  rotate(*this, rope.split_last(1, d_rope), a.rotation);
  append_latent({.c_kv = latent, .k_rope = rope, .seq = a.seq, .slot = a.slot, .format = a.format, .cache = a.cache});
}

void CpuBackend::index_queries(const ops::IndexQueries& a) {
  const int64_t n_rows = a.x.dim(0), n_heads = a.x.dim(1), d = a.x.dim(2);
  const int64_t d_rope = 2 * a.rotation.cos.dim(1);
  LEVIN_CHECK(d <= kQuantBlock, "index_queries: heads of {} with one scale, at most {} columns share one", d,
              kQuantBlock);
  const ArenaScope scope(arena_);
  const View x = widened(*this, a.x), scale = arena_.allocate(DType::kF32, {n_rows * n_heads, 1});
  rotate(*this, x.slice_last(0, d_rope), a.rotation);
  if (a.hadamard) hadamard({.x = x});
  quantize_fp8({.x = x.merged_first(), .out = a.codes.merged_first(), .scale = scale});
  for (int64_t t = 0; t < n_rows; ++t) {
    for (int64_t h = 0; h < n_heads; ++h) {
      a.weights.row<float>(t)[h] = a.w.row<float>(t)[h] * a.factor * scale.data<float>()[t * n_heads + h];
    }
  }
}

void CpuBackend::write_index_keys(const ops::WriteIndexKeys& a) {
  const int64_t d = a.format.d_index;
  const int64_t d_rope = 2 * a.rotation.cos.dim(1);
  const ArenaScope scope(arena_);
  const View x = widened_rows(*this, a.x);
  layer_norm({.x = x, .weight = a.weight, .bias = a.bias, .eps = a.eps, .out = x});
  rotate(*this, x.slice_last(0, d_rope).split_last(1, d_rope), a.rotation);
  if (a.hadamard) hadamard({.x = x.split_last(1, d)});
  append_index_keys({.keys = x, .seq = a.seq, .slot = a.slot, .format = a.format, .cache = a.cache});
}

}  // namespace levin
