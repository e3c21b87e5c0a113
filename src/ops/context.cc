#include "ops/context.h"

#include "base/check.h"
#include "kernels/cpu/kernels.h"

namespace levin {

OpContext cpu_context(ThreadPool& pool, Arena& arena, Isa isa) {
  LEVIN_CHECK(is_usable(isa), "cpu_context: kernel set {}, this build and processor have at most {}", isa_name(isa),
              isa_name(usable_isas().back()));
  return {.device = Device::kCpu, .pool = &pool, .arena = &arena, .cpu = &kernels::cpu_kernels(isa)};
}

}  // namespace levin
