// machine_limits: prints what this machine can do at most, on one thread and on all: the best of a second of samples,
// which is what it does when nobody else uses it, and their average.
#include "ops/machine_limits.h"

#include <fmt/core.h>

#include <set>

#include "base/cpu.h"

int main() {
  const levin::CpuInfo cpu = levin::cpu_info();
  fmt::print("processor   {}\ncores       {}\nkernel set  {}\n\n", cpu.model_name, cpu.n_cores,
             levin::isa_name(cpu.best_isa()));
  fmt::print("{:>7} {:>8} {:>11} {:>16} {:>17} {:>18}\n", "threads", "", "read GB/s", "f32 FMA GFLOP/s",
             "bf16 dot GFLOP/s", "bf16 tile GFLOP/s");
  for (const int n_threads : std::set<int>{1, cpu.n_cores}) {
    levin::ThreadPool pool(n_threads);
    levin::LimitProbe probe(pool);
    for (int i = 0; i < 300; ++i) probe.sample();
    const auto print = [&](const char* what, const levin::MachineLimits& m) {
      fmt::print("{:>7} {:>8} {:>11.1f} {:>16.1f} {:>17.1f} {:>18.1f}\n", n_threads, what, m.read_gb_per_s,
                 m.fma_gflop_per_s, m.dot_gflop_per_s, m.tile_gflop_per_s);
    };
    print("best", probe.best());
    print("average", probe.limits());
  }
  return 0;
}
