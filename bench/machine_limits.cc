// machine_limits: prints what this machine can do at most, on one thread and on all.
#include "support/machine_limits.h"

#include <fmt/format.h>

#include <set>

int main() {
  const levin::CpuInfo cpu = levin::cpu_info();
  fmt::print("processor        {}\nlogical cores    {}\nkernel set       {}\n", cpu.model_name, cpu.n_cores,
             levin::isa_name(cpu.best_isa()));
  fmt::print("{:>7} {:>11} {:>16} {:>20}\n", "threads", "read GB/s", "f32 FMA GFLOP/s", "bf16 dot GFLOP/s");
  for (const int n_threads : std::set<int>{1, cpu.n_cores}) {
    const levin::bench::MachineLimits m = levin::bench::measure_machine(n_threads);
    fmt::print("{:>7} {:>11.1f} {:>16.1f} {:>20.1f}\n", n_threads, m.read_gb_per_s, m.fma_gflop_per_s,
               m.dot_gflop_per_s);
  }
  return 0;
}
