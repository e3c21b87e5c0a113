#include "serve/process_figures.h"

#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

namespace levin::serve {
namespace {

double seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

// The word at `place`, counted from 0, after the program's name, which stands in brackets and may contain anything.
int64_t word_of_stat(int place) {
  std::ifstream file("/proc/self/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::istringstream words(text.substr(std::min(text.rfind(')') + 1, text.size())));
  std::string word;
  for (int i = 0; i <= place; ++i) words >> word;
  return std::atoll(word.c_str());
}

// Of "btime N" in /proc/stat: Unix time at which the system began.
double boot_time() {
  std::ifstream file("/proc/stat");
  std::string key, rest;
  for (double value = 0; file >> key; std::getline(file, rest)) {
    if (key == "btime" && file >> value) return value;
  }
  return 0;
}

double start_time() {
  constexpr int kStartTime = 19;  // in clock ticks since the system began
  static const double start =
      boot_time() + static_cast<double>(word_of_stat(kStartTime)) / static_cast<double>(sysconf(_SC_CLK_TCK));
  return start;
}

}  // namespace

ProcessFigures ProcessFigures::now() {
  ProcessFigures out;
  rusage usage{};
  if (getrusage(RUSAGE_SELF, &usage) == 0) out.cpu_s = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  int64_t n_virtual = 0, n_resident = 0;
  if (std::ifstream("/proc/self/statm") >> n_virtual >> n_resident) {
    out.n_virtual_bytes = n_virtual * sysconf(_SC_PAGESIZE);
    out.n_resident_bytes = n_resident * sysconf(_SC_PAGESIZE);
  }
  std::error_code ec;
  for (std::filesystem::directory_iterator fd("/proc/self/fd", ec), end; !ec && fd != end; fd.increment(ec))
    ++out.n_open_fds;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) out.n_max_fds = static_cast<int64_t>(limit.rlim_cur);
  out.start_s = start_time();
  return out;
}

}  // namespace levin::serve
