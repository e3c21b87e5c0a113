#include "ops/context.h"

#include "base/check.h"
#include "kernels/cpu/kernels.h"

namespace levin {

OpContext cpu_context(ThreadPool& pool, Arena& arena, Isa isa) {
  LEVIN_CHECK(cpu_info().supports(isa), "cpu_context: kernel set {}, this processor has at most {}", isa_name(isa),
              isa_name(cpu_info().best_isa()));
  return {.device = Device::kCpu, .pool = &pool, .arena = &arena, .cpu = &kernels::cpu_kernels(isa)};
}

}  // namespace levin
