#include "ops/cpu_backend.h"

#include "base/check.h"
#include "kernels/cpu/kernels.h"

namespace levin {
namespace {

const kernels::CpuKernels& usable_kernels(Isa isa) {
  LEVIN_CHECK(is_usable(isa), "CpuBackend: kernel set {}, this build and processor have at most {}", isa_name(isa),
              isa_name(usable_isas().back()));
  return kernels::cpu_kernels(isa);
}

}  // namespace

CpuBackend::CpuBackend(ThreadPool& pool, Arena& arena, Isa isa) : CpuBackend(pool, arena, usable_kernels(isa)) {}

CpuBackend::CpuBackend(ThreadPool& pool, Arena& arena, const kernels::CpuKernels& kernels)
    : pool_(pool), arena_(arena), kernels_(kernels) {}

}  // namespace levin
