#include "apps/levin/machine_load.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>

namespace levin::app {
namespace {

constexpr double kIdleProcessors = 0.1;  // what a quiet system's services use
constexpr double kIdleShare = 0.02;      // of all processors, where there are many

double seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

std::optional<CpuTimes> now() {
  std::ifstream file("/proc/stat");
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  std::optional<CpuTimes> times = parse_proc_stat(line, static_cast<double>(sysconf(_SC_CLK_TCK)));
  rusage own{};
  if (!times || getrusage(RUSAGE_SELF, &own) != 0) return std::nullopt;
  times->own_s = seconds(own.ru_utime) + seconds(own.ru_stime);
  return times;
}

}  // namespace

std::optional<CpuTimes> parse_proc_stat(std::string_view text, double ticks_per_s) {
  enum Column { kUser, kNice, kSystem, kIdle, kWaiting, kInterrupts, kSoftInterrupts, kStolen, kColumns };
  std::istringstream words{std::string(text)};
  std::string name;
  std::array<double, kColumns> ticks{};
  if (!(words >> name) || name != "cpu") return std::nullopt;
  for (double& each : ticks) {
    if (!(words >> each)) return std::nullopt;
  }
  const double busy = ticks[kUser] + ticks[kNice] + ticks[kSystem] + ticks[kInterrupts] + ticks[kSoftInterrupts];
  return CpuTimes{.busy_s = busy / ticks_per_s, .stolen_s = ticks[kStolen] / ticks_per_s};
}

double busy_elsewhere(const CpuTimes& begin, const CpuTimes& end, double wall_s) {
  const double others_s = (end.busy_s - begin.busy_s) - (end.own_s - begin.own_s) + (end.stolen_s - begin.stolen_s);
  return wall_s > 0 ? std::max(0.0, others_s / wall_s) : 0;
}

MachineLoad::MachineLoad() : begin_(now()), start_(std::chrono::steady_clock::now()) {}

std::optional<double> MachineLoad::busy_elsewhere() const {
  const std::optional<CpuTimes> end = now();
  if (!begin_ || !end) return std::nullopt;
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - start_;
  return app::busy_elsewhere(*begin_, *end, wall.count());
}

std::string load_warning(double busy_elsewhere, int n_processors) {
  if (busy_elsewhere < std::max(kIdleProcessors, kIdleShare * n_processors)) return "";
  return fmt::format(
      "the machine was not idle: other programs kept {:.1f} of its {} processors busy during the run, so its figures "
      "may "
      "be too low; repeat it when they are done",
      busy_elsewhere, n_processors);
}

}  // namespace levin::app
