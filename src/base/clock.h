// The clock that durations are measured with.
#pragma once

#include <chrono>

namespace levin {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace levin
