// How long a thread has waited for a processor: it could run, and another one ran instead.
#pragma once

#include <chrono>

namespace levin {

class RunDelay {
 public:
  RunDelay() = default;              // of no thread: always zero
  static RunDelay of_this_thread();  // any thread of the process may read it
  ~RunDelay();
  RunDelay(RunDelay&& other) noexcept;
  RunDelay& operator=(RunDelay&& other) noexcept;

  // The time waited since the last call, or since of_this_thread(). A wait counts once it is over. About a microsecond;
  // zero where the kernel does not count it.
  std::chrono::nanoseconds since_last_call();

 private:
  std::chrono::nanoseconds total() const;

  int file_ = -1;  // the thread's schedstat file in /proc
  std::chrono::nanoseconds last_total_{0};
};

}  // namespace levin
