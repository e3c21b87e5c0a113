#include "base/parking_policy.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>

namespace levin {
namespace {

using std::chrono::milliseconds;
using Duration = ParkingPolicy::Clock::duration;
using Seconds = std::chrono::duration<double>;

// A pool that runs loops all the time, on a clock of its own.
class ParkingPolicyTest : public testing::Test {
 protected:
  void start(int n_threads) { policy_ = ParkingPolicy(n_threads, now_); }

  // Loops until the policy looks; `n_waiting` threads are without a processor meanwhile. Returns the number of threads
  // that take part from then on.
  int next_window(double n_waiting) {
    const ParkingPolicy::Time begin = now_;
    while (!policy_.is_due(now_)) now_ += std::chrono::microseconds(50);
    look(n_waiting, begin);
    return policy_.n_active();
  }

  void look(double n_waiting, ParkingPolicy::Time begin) {
    policy_.look({.now = now_, .waited = std::chrono::duration_cast<Duration>(n_waiting * Seconds(now_ - begin))});
  }

  void late_loop() {
    now_ += milliseconds(1);
    policy_.look({.now = now_, .was_late = true, .waited = milliseconds(1)});
  }

  // How long until a parked thread is tried; nobody waits meanwhile.
  milliseconds until_trial() {
    const ParkingPolicy::Time begin = now_;
    const int n_active = policy_.n_active();
    while (next_window(0) == n_active && now_ < begin + std::chrono::seconds(10)) {
    }
    return std::chrono::duration_cast<milliseconds>(now_ - begin);
  }

  ParkingPolicy::Time now_{std::chrono::hours(1)};
  ParkingPolicy policy_{1, now_};
};

TEST_F(ParkingPolicyTest, ParksNobodyWhileNobodyWaits) {
  for (const int n_threads : {1, 2, 64}) {
    start(n_threads);
    for (int i = 0; i < 1000; ++i) ASSERT_EQ(next_window(0), n_threads);
  }
}

TEST_F(ParkingPolicyTest, KeepsAsManyThreadsAsHadAProcessor) {
  struct Case {
    int n_threads;
    double n_waiting;
    int n_active;
  };
  for (const Case& c : {Case{2, 0.5, 1},  // one busy neighbour on two processors
                        Case{2, 1, 1},    // two pools of two threads
                        Case{64, 0.5, 63}, Case{8, 6, 2}, Case{8, 7.5, 1}, Case{1, 0.9, 1}, Case{2, 0.3, 2},
                        Case{4, 0.15, 4}, Case{64, 0.09, 64}}) {  // too little to act on
    start(c.n_threads);
    EXPECT_EQ(next_window(c.n_waiting), c.n_active) << c.n_threads << " threads, " << c.n_waiting << " waiting";
  }
}

// A pause between two requests makes a window long: what was waited for meanwhile is little of it.
TEST_F(ParkingPolicyTest, ParksNobodyForAFewWaitsInALongTime) {
  start(2);
  now_ += std::chrono::seconds(5);
  policy_.look({.now = now_, .waited = milliseconds(30)});
  EXPECT_EQ(policy_.n_active(), 2);
}

TEST_F(ParkingPolicyTest, ParksOneThreadAfterALateLoop) {
  start(8);
  late_loop();
  EXPECT_EQ(policy_.n_active(), 7);
}

TEST_F(ParkingPolicyTest, TriesAgainLessAndLessOftenWhileTrialsFail) {
  start(2);
  ASSERT_EQ(next_window(0.9), 1);
  const int64_t window_ms = 23;  // at most: a trial waits for the end of the current one
  for (const int64_t hold_ms : {50, 200, 800, 1600, 1600}) {
    const milliseconds waited = until_trial();
    ASSERT_EQ(policy_.n_active(), 2);
    EXPECT_GE(waited.count(), hold_ms);
    EXPECT_LE(waited.count(), hold_ms + window_ms);
    ASSERT_EQ(next_window(0.9), 1);
  }
}

TEST_F(ParkingPolicyTest, TakesAllThreadsBackOnceTheProcessorsAreFree) {
  start(16);
  ASSERT_EQ(next_window(12.5), 3);
  for (int i = 0; i < 1000 && policy_.n_active() < 16; ++i) {
    const int before = policy_.n_active();
    ASSERT_GE(next_window(0), before);
  }
  EXPECT_EQ(policy_.n_active(), 16);
  // Long after, a neighbour is news: the first hold is the shortest again.
  for (int i = 0; i < 1000; ++i) next_window(0);
  ASSERT_EQ(next_window(0.5), 15);
  EXPECT_LE(until_trial(), milliseconds(50 + 36));
}

// What a neighbour that stays costs: windows in which two threads share what is left of two processors.
TEST_F(ParkingPolicyTest, SpendsFewWindowsOnTrials) {
  start(2);
  int n_contended = 0, n_windows = 0;
  for (const auto end = now_ + std::chrono::seconds(10); now_ < end; ++n_windows) {
    const bool contended = policy_.n_active() == 2;
    n_contended += contended ? 1 : 0;
    next_window(contended ? 0.5 : 0);
  }
  EXPECT_LE(n_contended, 0.03 * n_windows);
}

}  // namespace
}  // namespace levin
