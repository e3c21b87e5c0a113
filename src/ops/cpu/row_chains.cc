// On the CPU a chain is the ops it is made of; rows of bf16 are widened first.
#include "ops/row_chains.h"

#include "base/numbers.h"
#include "ops/cpu/row_loops.h"
#include "ops/cpu_backend.h"
#include "ops/quantize.h"
#include "ops/rope.h"

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

// The chain on rows of f32.
template <class Chain>
Chain on_f32(CpuBackend& cpu, const Chain& a) {
  if (a.x.dtype() == DType::kF32) return a;
  Chain wide = a;
  wide.x = a.x.rank() == 3 ? widened(cpu, a.x) : widened(cpu, a.x.split_last(1, a.x.dim(1))).merged_first();
  return wide;
}

}  // namespace

void CpuBackend::norm_rows(const ops::NormRows& a) {
  const ArenaScope scratch(arena_);
  Backend::norm_rows(on_f32(*this, a));
}

void CpuBackend::rotate_queries(const ops::RotateQueries& a) {
  if (a.out.dtype() == DType::kF32) return Backend::rotate_queries(a);
  const ArenaScope scratch(arena_);
  const View x = widened(*this, a.x);
  rope({.x = x, .cos = a.rotation.cos, .sin = a.rotation.sin, .pairing = a.rotation.pairing});
  round_to_bf16({.x = x.merged_first(), .out = a.out.merged_first()});
}

void CpuBackend::write_latent(const ops::WriteLatent& a) {
  const ArenaScope scratch(arena_);
  Backend::write_latent(on_f32(*this, a));
}

void CpuBackend::index_queries(const ops::IndexQueries& a) {
  const ArenaScope scratch(arena_);
  Backend::index_queries(on_f32(*this, a));
}

void CpuBackend::write_index_keys(const ops::WriteIndexKeys& a) {
  const ArenaScope scratch(arena_);
  Backend::write_index_keys(on_f32(*this, a));
}

}  // namespace levin
