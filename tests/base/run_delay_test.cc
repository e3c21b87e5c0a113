#include "base/run_delay.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "base/processors.h"

namespace levin {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

TEST(RunDelayTest, OfNoThreadIsZero) {
  RunDelay none;
  EXPECT_EQ(none.since_last_call().count(), 0);
}

// Two threads that never sleep share a processor: together they wait all the time.
TEST(RunDelayTest, CountsTheTimeThatAnotherThreadHadTheProcessor) {
  if (!kernel_counts_run_delays()) GTEST_SKIP() << "this kernel does not count run delays";
  std::chrono::nanoseconds waited[2];
  milliseconds spun{0};
  std::thread parent([&] {  // the processor of the test's own thread stays as it is
    use_one_processor();
    std::atomic<int> n_started{0};
    const auto spin = [&](std::chrono::nanoseconds& out) {
      RunDelay delay = RunDelay::of_this_thread();
      ++n_started;
      while (n_started < 2) std::this_thread::yield();
      const auto begin = steady_clock::now();
      while (steady_clock::now() < begin + milliseconds(200)) {
      }
      out = delay.since_last_call();
      EXPECT_LT(delay.since_last_call(), out);  // counted once
    };
    const auto begin = steady_clock::now();
    std::thread other([&] { spin(waited[0]); });
    spin(waited[1]);
    other.join();
    spun = std::chrono::duration_cast<milliseconds>(steady_clock::now() - begin);
  });
  parent.join();
  // Of 200 ms, less a time slice at the begin and the end of each.
  EXPECT_GE(waited[0] + waited[1], milliseconds(150));
  EXPECT_LE(waited[0] + waited[1], 2 * spun);
}

TEST(RunDelayTest, StaysReadableWhenMovedAndWhenTheThreadIsGone) {
  RunDelay delay;
  std::thread([&] { delay = RunDelay::of_this_thread(); }).join();
  RunDelay moved = std::move(delay);
  EXPECT_EQ(moved.since_last_call().count(), 0);
}

}  // namespace
}  // namespace levin
