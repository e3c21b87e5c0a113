// Threads that have to share a processor, for tests of what happens then.
#pragma once

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

namespace levin {

// Binds the calling thread, and those that it starts from now on, to one of the processors that it may use.
inline void use_one_processor() {
  cpu_set_t allowed, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  int first = 0;
  while (!CPU_ISSET(first, &allowed)) ++first;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
}

inline bool kernel_counts_run_delays() { return access("/proc/thread-self/schedstat", R_OK) == 0; }

}  // namespace levin
