#include "base/cpu.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <utility>

#include "base/control_group.h"

namespace levin {
namespace {

constexpr std::array<std::pair<Isa, std::string_view>, 5> kNames = {{
    {Isa::kPlain, "plain"},
    {Isa::kAvx2, "avx2"},
    {Isa::kAvx512, "avx512"},
    {Isa::kAvx512Bf16, "avx512-bf16"},
    {Isa::kAmxBf16, "amx-bf16"},
}};

constexpr Isa kBuilt[] = {LEVIN_BUILT_ISAS};

std::string read_model_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name")) continue;
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

int count_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  const int n_cores = CPU_COUNT(&set);
  return n_cores > 0 ? n_cores : 1;
}

// Tiles are 8 KiB of state that the kernel saves only for processes that asked for it.
bool may_use_tiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM of asm/prctl.h, since Linux 5.16
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

std::string_view isa_name(Isa isa) {
  for (const auto& [value, name] : kNames) {
    if (value == isa) return name;
  }
  return "unknown";
}

std::span<const Isa> built_isas() { return kBuilt; }

std::vector<Isa> usable_isas() {
  const CpuInfo cpu = cpu_info();
  std::vector<Isa> usable;
  for (const Isa isa : built_isas()) {
    if (cpu.supports(isa)) usable.push_back(isa);
  }
  return usable;
}

bool is_usable(Isa isa) {
  const std::vector<Isa> usable = usable_isas();
  return std::ranges::find(usable, isa) != usable.end();
}

int CpuInfo::n_usable_cores() const {
  return quota > 0 ? std::clamp(static_cast<int>(std::min<double>(quota, n_cores)), 1, n_cores) : n_cores;
}

Isa CpuInfo::best_isa() const {
  if (amx_bf16) return Isa::kAmxBf16;
  if (avx512_bf16) return Isa::kAvx512Bf16;
  if (avx512) return Isa::kAvx512;
  if (avx2) return Isa::kAvx2;
  return Isa::kPlain;
}

Isa CpuInfo::preferred_isa(std::span<const Isa> built) const {
  const bool avx512_built = std::ranges::find(built, Isa::kAvx512) != built.end();
  Isa preferred = Isa::kPlain;
  for (const Isa isa : built) {
    const bool slower = isa == Isa::kAvx512Bf16 && half_rate_bf16_dot && avx512_built;
    if (supports(isa) && !slower) preferred = std::max(preferred, isa);
  }
  return preferred;
}

CpuInfo cpu_info() {
  CpuInfo info;
  info.model_name = read_model_name();
  info.n_cores = count_cores();
  info.quota = cpu_quota().value_or(0);
  __builtin_cpu_init();
  info.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  info.avx512 = info.avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  info.avx512_vbmi = info.avx512 && __builtin_cpu_supports("avx512vbmi");
  info.avx512_bf16 = info.avx512_vbmi && __builtin_cpu_supports("avx512bf16");
  info.avx512_vnni = info.avx512 && __builtin_cpu_supports("avx512vnni");
  info.amx_bf16 =
      info.avx512_bf16 && __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16") && may_use_tiles();
  info.half_rate_bf16_dot = __builtin_cpu_is("intel");
  return info;
}

}  // namespace levin
