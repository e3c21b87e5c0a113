// Whether a machine was idle but for us while something was measured.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace levin::app {

// Processor seconds since the system and this process began.
struct CpuTimes {
  double busy_s = 0;    // of all processors, by anybody, guests and the kernel included
  double stolen_s = 0;  // that a hypervisor gave to other machines while work waited here
  double own_s = 0;     // of this process, threads and kernel included
};

// The first line of /proc/stat; empty where it is none.
std::optional<CpuTimes> parse_proc_stat(std::string_view text, double ticks_per_s);

// Processors that others kept busy, or took from this machine, while a process used own_s of them: 0.5 is half of one.
double busy_elsewhere(const CpuTimes& begin, const CpuTimes& end, double wall_s);

class MachineLoad {
 public:
  MachineLoad();  // begins to look
  // Since then; empty where the system does not say.
  std::optional<double> busy_elsewhere() const;

 private:
  std::optional<CpuTimes> begin_;
  std::chrono::steady_clock::time_point start_;
};

// A warning for the figures measured meanwhile; empty where the machine was idle enough.
std::string load_warning(double busy_elsewhere, int n_processors);

}  // namespace levin::app
