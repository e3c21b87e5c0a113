#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/processors.h"
#include "base/recovery.h"

namespace levin {
namespace {

TEST(ThreadPoolTest, RunsTheBodyOnceOnEachThread) {
  for (const int n_threads : {1, 2, 3, 8}) {
    ThreadPool pool(n_threads);
    EXPECT_EQ(pool.n_threads(), n_threads);
    std::vector<int> calls(static_cast<size_t>(n_threads), 0);
    for (int round = 0; round < 1000; ++round) pool.run([&](int thread) { ++calls[thread]; });
    EXPECT_EQ(calls, std::vector<int>(static_cast<size_t>(n_threads), 1000));
  }
}

TEST(ThreadPoolTest, ChunksCoverTheLoopOnceAndInWholeGrains) {
  for (const int n_threads : {1, 2, 3, 7}) {
    ThreadPool pool(n_threads);
    for (const int64_t n : {0, 1, 5, 16, 17, 100, 1000}) {
      for (const int64_t grain : {1, 3, 16, 64}) {
        std::mutex mutex;
        std::vector<std::pair<int64_t, int64_t>> chunks;
        pool.parallel_for(n, grain, [&](int64_t begin, int64_t end, int) {
          const std::lock_guard lock(mutex);
          chunks.emplace_back(begin, end);
        });
        std::sort(chunks.begin(), chunks.end());
        int64_t covered = 0;
        for (const auto& [begin, end] : chunks) {
          ASSERT_EQ(begin, covered) << n << " items, grain " << grain << ", " << n_threads << " threads";
          ASSERT_LT(begin, end);
          ASSERT_TRUE(end == n || end % grain == 0);
          covered = end;
        }
        ASSERT_EQ(covered, n);
      }
    }
  }
}

TEST(ThreadPoolTest, ParallelForVisitsEachItemOnce) {
  for (const int n_threads : {1, 2, 3, 5}) {
    ThreadPool pool(n_threads);
    for (const int64_t n : {0, 1, 2, 7, 64, 1001}) {
      for (const int64_t grain : {1, 4, 5000}) {
        std::vector<int> visits(static_cast<size_t>(n), 0);
        pool.parallel_for(n, grain, [&](int64_t begin, int64_t end, int thread) {
          ASSERT_LT(thread, n_threads);
          for (int64_t i = begin; i < end; ++i) ++visits[i];
        });
        ASSERT_EQ(visits, std::vector<int>(static_cast<size_t>(n), 1)) << n << " items, grain " << grain;
      }
    }
  }
}

// Each thread's scratch memory is its own in every chunk it runs.
TEST(ThreadPoolTest, NoTwoCallsOfOneThreadAtATime) {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> inside(4);
  for (int round = 0; round < 2000; ++round) {
    pool.parallel_for(64, 1, [&](int64_t, int64_t, int thread) {
      ASSERT_EQ(inside[static_cast<size_t>(thread)].fetch_add(1), 0);
      inside[static_cast<size_t>(thread)].fetch_sub(1);
    });
  }
}

// The first chunk ends only when all others have: with shares that nobody else may take this would never end.
TEST(ThreadPoolTest, OthersTakeTheChunksOfAThreadThatIsHeldUp) {
  for (const int n_threads : {2, 5}) {
    ThreadPool pool(n_threads);
    for (int64_t held = 0; held < 100; held += 20) {
      std::atomic<int64_t> n_done{0};
      pool.parallel_for(100, 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) {
          if (i == held) {
            while (n_done < 100 - (end - i)) std::this_thread::yield();
          }
          ++n_done;
        }
      });
      EXPECT_EQ(n_done, 100);
    }
  }
}

// A worker that is late again and again is parked; later it may take part again.
TEST(ThreadPoolTest, ParksAWorkerThatIsLateAndTriesItAgain) {
  ThreadPool pool(2);
  const auto loop = [&](std::chrono::milliseconds of_worker) {
    pool.parallel_for(2, 1, [&](int64_t, int64_t, int thread) {
      std::this_thread::sleep_for(thread == 0 ? std::chrono::milliseconds(0) : of_worker);
      if (thread == 0) std::this_thread::sleep_for(std::chrono::microseconds(50));  // so that the worker gets a chunk
    });
  };
  for (int i = 0; i < 10'000 && pool.n_active() == 2; ++i) loop(std::chrono::milliseconds(5));
  ASSERT_EQ(pool.n_active(), 1);
  for (int i = 0; i < 100'000 && pool.n_active() == 1; ++i) loop(std::chrono::milliseconds(0));
  EXPECT_EQ(pool.n_active(), 2);
}

// Two threads that may only use one processor: no loop is late, but one of the threads always waits.
TEST(ThreadPoolTest, ParksAWorkerWithoutAProcessor) {
  if (!kernel_counts_run_delays()) GTEST_SKIP() << "this kernel does not count run delays";
  std::thread([] {
    use_one_processor();
    ThreadPool pool(2);
    std::atomic<bool> stop{false};
    const auto begin = std::chrono::steady_clock::now();
    while (pool.n_active() == 2 && std::chrono::steady_clock::now() < begin + std::chrono::seconds(20)) {
      pool.parallel_for(64, 1, [&](int64_t, int64_t, int) {
        const auto chunk = std::chrono::steady_clock::now();
        while (std::chrono::steady_clock::now() < chunk + std::chrono::microseconds(2)) {
        }
      });
    }
    EXPECT_EQ(pool.n_active(), 1);
  }).join();
}

// Loops right after each other, then pauses longer than the workers spin.
TEST(ThreadPoolTest, WakesUpAfterSleeping) {
  ThreadPool pool(3);
  int64_t total = 0;
  std::vector<int64_t> sums(3, 0);
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(round % 4 == 0 ? 3 : 0));
    pool.parallel_for(300, 1, [&](int64_t begin, int64_t end, int thread) {
      for (int64_t i = begin; i < end; ++i) sums[thread] += i;
    });
    total += 299 * 300 / 2;
  }
  EXPECT_EQ(std::accumulate(sums.begin(), sums.end(), int64_t{0}), total);
}

TEST(ThreadPoolTest, EndsWhileItsWorkersSleepOrHaveNeverRun) {
  {
    const ThreadPool unused(4);
  }
  ThreadPool pool(4);
  pool.run([](int) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

// On whichever thread, when all are through.
TEST(ThreadPoolTest, WhatABodyThrowsComesToTheCaller) {
  for (const int n_threads : {1, 2, 3, 5}) {
    ThreadPool pool(n_threads);
    for (int thrower = 0; thrower < n_threads; ++thrower) {
      std::atomic<int> n_calls = 0, n_running = 0;
      const auto body = [&](int i) {
        ++n_running;
        ++n_calls;
        std::this_thread::sleep_for(std::chrono::milliseconds(i == thrower ? 0 : 2));
        --n_running;
        if (i == thrower) throw std::runtime_error("the body of " + std::to_string(i));
      };
      EXPECT_THROW(pool.run(body), std::runtime_error);
      EXPECT_EQ(n_running, 0);
      EXPECT_GE(n_calls, thrower + 1);
      n_calls = 0;
      pool.run([&](int) { ++n_calls; });
      EXPECT_EQ(n_calls, n_threads);
    }
  }
}

// So that the caller can recover from it, if it does.
TEST(ThreadPoolTest, AFailedCheckOfABodyIsThrown) {
  ThreadPool pool(3);
  const Recovery recovery;
  EXPECT_THROW(pool.run([](int i) { LEVIN_CHECK(i != 2, "item {}", i); }), CheckFailed);
}

TEST(ThreadPoolDeathTest, RefusesAPoolWithoutThreads) { EXPECT_DEATH(ThreadPool(0), "n_threads is 0"); }

}  // namespace
}  // namespace levin
