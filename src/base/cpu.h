// What this processor can do, and which kernel set that selects.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace levin {

// Kernel sets for the CPU, each a superset of the one before. kPlain is portable C++ and the oracle of the others.
enum class Isa { kPlain, kAvx2, kAvx512, kAvx512Bf16, kAmxBf16 };

std::string_view isa_name(Isa isa);  // "plain", "avx2", "avx512", "avx512-bf16", "amx-bf16"

// The kernel sets of this build, ascending and kPlain among them (CMake: LEVIN_ISAS).
std::span<const Isa> built_isas();

struct CpuInfo {
  std::string model_name;    // as the kernel prints it, or "unknown"
  int n_cores = 1;           // logical processors this process may run on
  double quota = 0;          // of their time that control groups grant, in processors; 0: all of it
  bool avx2 = false;         // with fma and f16c
  bool avx512 = false;       // f, bw, vl, dq
  bool avx512_vbmi = false;  // with the above
  bool avx512_bf16 = false;  // with the above
  bool avx512_vnni = false;
  bool amx_bf16 = false;            // with avx512_bf16, and granted by the kernel to this process
  bool half_rate_bf16_dot = false;  // VDPBF16PS does half the operations per second of f32 fused multiply-adds: Intel's

  // Threads that can run all the time, at least one. A quota counts in whole processors: a process that has used up its
  // part of a period stands still until the next one, all threads at once.
  int n_usable_cores() const;

  Isa best_isa() const;  // the widest that the processor has
  bool supports(Isa isa) const { return isa <= best_isa(); }
  // The fastest of the sets that were built, which runs where nothing else is asked for.
  Isa preferred_isa(std::span<const Isa> built = built_isas()) const;
};

// Asks the kernel for the state of the matrix unit, which a process has to before it uses it.
CpuInfo cpu_info();

// The kernel sets that can run here: built, and supported by the processor. Ascending.
std::vector<Isa> usable_isas();
bool is_usable(Isa isa);

}  // namespace levin
