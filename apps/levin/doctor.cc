// levin doctor: what this machine has, what would run on it, and what to change.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <memory>
#include <vector>

#include "apps/levin/commands.h"
#include "apps/levin/kernel_text.h"
#include "base/cpu.h"
#include "base/memory.h"
#include "io/json.h"
#include "tensor/cuda/probe.h"

namespace levin::app {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

struct Gpu {
  cuda::DriverFacts facts;
  std::string text;     // the device, or what is missing
  std::string kernels;  // of a usable one
  bool usable = false;
  bool is_tuned = false;  // has the kernels of cuda-sm90
};

struct Diagnosis {
  CpuInfo cpu;
  MemoryInfo memory;
  Gpu gpu;
  std::vector<std::string> advice;
};

std::string tuned_kernels_text() {
  return fmt::format("{} with --numerics official, the default there, for shapes that levin inspect names: {}",
                     cuda::kernel_set_name(cuda::KernelSet::kSm90), fmt::join(sm90_ops(), ", "));
}

Gpu find_gpu() {
  Gpu gpu{.facts = cuda::ask_driver(0)};
  const Result<cuda::DeviceInfo> device = cuda::usable_device(gpu.facts, 0, cuda::KernelSet::kPlain);
  gpu.usable = device.ok();
  if (device.ok()) {
    gpu.is_tuned = cuda::usable_device(gpu.facts, 0, cuda::KernelSet::kSm90).ok();
    gpu.text = fmt::format("{}, sm_{}, {} SMs, {:.1f} GiB; models run there with --device cuda", device->name,
                           device->arch, device->n_sms, static_cast<double>(device->memory_bytes) / kGiB);
    gpu.kernels = std::string(cuda::kernel_set_name(cuda::KernelSet::kPlain)) + ": every op";
    if (gpu.is_tuned) gpu.kernels = tuned_kernels_text() + "; " + gpu.kernels;
  } else {
    gpu.text = device.error().message;
  }
  return gpu;
}

std::vector<std::string> advise(const Diagnosis& d) {
  std::vector<std::string> advice;
  if (!d.cpu.avx2)
    advice.emplace_back(
        "this processor lacks AVX2, so the plain kernels are used, which are about ten times slower; use a processor "
        "from 2014 or later");
  if (d.memory.huge_pages == "never") {
    advice.emplace_back(
        "huge pages are off, so large weights cause many TLB misses; switch them on: echo madvise > "
        "/sys/kernel/mm/transparent_hugepage/enabled");
  }
  if (d.memory.group_limit_bytes > 0 && d.memory.group_limit_bytes < d.memory.total_bytes / 2) {
    advice.push_back(fmt::format(
        "the control group allows {:.1f} of {:.1f} GiB; raise its memory limit for larger models",
        static_cast<double>(d.memory.group_limit_bytes) / kGiB, static_cast<double>(d.memory.total_bytes) / kGiB));
  }
  if (!d.gpu.usable && d.gpu.facts.load_error.empty()) advice.push_back(d.gpu.text);
  if (!is_usable(d.cpu.best_isa())) {
    advice.push_back(fmt::format("The kernels for {} were not built: build with it in the CMake list LEVIN_ISAS.",
                                 isa_name(d.cpu.best_isa())));
  }
  return advice;
}

Diagnosis diagnose() {
  Diagnosis d{.cpu = cpu_info(), .memory = memory_info(), .gpu = find_gpu()};
  d.advice = advise(d);
  return d;
}

struct Feature {
  const char* name;
  bool present;
};

std::vector<Feature> features(const CpuInfo& cpu) {
  return {{"avx2", cpu.avx2},
          {"avx512", cpu.avx512},
          {"avx512-vbmi", cpu.avx512_vbmi},
          {"avx512-bf16", cpu.avx512_bf16},
          {"avx512-vnni", cpu.avx512_vnni},
          {"amx-bf16", cpu.amx_bf16}};
}

void print_text(const Diagnosis& d) {
  std::string have, lack;
  for (const Feature& f : features(d.cpu)) (f.present ? have : lack) += std::string(" ") + f.name;
  fmt::print(
      "processor   {}, {} usable by this process{}\n", d.cpu.model_name, d.cpu.n_usable_cores(),
      d.cpu.quota > 0 ? fmt::format(" ({} by affinity, control group quota {:.3g})", d.cpu.n_cores, d.cpu.quota) : "");
  fmt::print("has        {}{}{}\n", have.empty() ? " none of the known sets" : have, lack.empty() ? "" : "; not", lack);
  fmt::print("kernels     {}\n", kernel_text(d.cpu.preferred_isa()));
  fmt::print("by op       {}\n", kernels_by_op_text(cpu_kernel_set(d.cpu.preferred_isa())));
  fmt::print("others      ");
  for (const Isa isa : built_isas()) {
    if (d.cpu.supports(isa) && isa != d.cpu.preferred_isa()) fmt::print("--isa {}  ", isa_name(isa));
  }
  fmt::print("\nmemory      {:.1f} GiB, {:.1f} GiB available{}\n", static_cast<double>(d.memory.total_bytes) / kGiB,
             static_cast<double>(d.memory.available_bytes) / kGiB,
             d.memory.group_limit_bytes > 0 ? fmt::format(" (control group limit {:.1f} GiB)",
                                                          static_cast<double>(d.memory.group_limit_bytes) / kGiB)
                                            : "");
  fmt::print("huge pages  {}\n", d.memory.huge_pages.empty() ? "not supported by this kernel" : d.memory.huge_pages);
  fmt::print("gpu         {}\n", d.gpu.text);
  if (d.gpu.usable) fmt::print("  by op     {}\n", d.gpu.kernels);
  if (d.advice.empty()) fmt::print("\nNothing to change.\n");
  for (const std::string& line : d.advice) fmt::print("\nadvice      {}\n", line);
}

void print_json(const Diagnosis& d) {
  io::JsonObject sets, by_op;
  for (const KernelRow& row : cpu_kernel_set(d.cpu.preferred_isa()).rows) by_op.set(row.op, row.name);
  for (const Feature& f : features(d.cpu)) sets.set(f.name, f.present);
  const io::JsonObject out = {{"processor", d.cpu.model_name},
                              {"n_cores", d.cpu.n_cores},
                              {"cpu_quota", d.cpu.quota},
                              {"instruction_sets", std::move(sets)},
                              {"kernels", isa_name(d.cpu.preferred_isa())},
                              {"kernels_text", kernel_text(d.cpu.preferred_isa())},
                              {"kernels_by_op", std::move(by_op)},
                              {"memory_bytes", d.memory.total_bytes},
                              {"available_bytes", d.memory.available_bytes},
                              {"group_limit_bytes", d.memory.group_limit_bytes},
                              {"huge_pages", d.memory.huge_pages},
                              {"cuda_built", d.gpu.facts.built_for_cuda != 0},
                              {"nvidia_driver", d.gpu.facts.load_error.empty()},
                              {"gpus", d.gpu.facts.n_devices},
                              {"gpu", d.gpu.text},
                              {"gpu_kernels", d.gpu.kernels},
                              {"advice", io::JsonArray(d.advice.begin(), d.advice.end())}};
  fmt::print("{}\n", io::dump_json(out));
}

}  // namespace

void add_doctor(CommandLine& line) {
  Command& command = line.add({.name = "doctor",
                               .purpose = "Print what this machine has, what can run, and what to change",
                               .examples = "  levin doctor\n  levin doctor --json\n"});
  const auto json = std::make_shared<bool>(false);
  command.option({.names = "--json", .purpose = "Print one JSON object", .group = "Output"}, set_flag(json.get()));
  command.action([json]() -> Status {
    const Diagnosis diagnosis = diagnose();
    *json ? print_json(diagnosis) : print_text(diagnosis);
    return {};
  });
}

}  // namespace levin::app
