#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

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

TEST(ThreadPoolTest, SharesCoverTheLoopOnceInOrderAndInWholeGrains) {
  for (const int n_threads : {1, 2, 3, 7}) {
    const ThreadPool pool(n_threads);
    for (const int64_t n : {0, 1, 5, 16, 17, 100, 1000}) {
      for (const int64_t grain : {1, 3, 16, 64}) {
        int64_t end = 0;
        for (int thread = 0; thread < n_threads; ++thread) {
          const Share share = pool.share_of(n, grain, thread);
          ASSERT_EQ(share.begin, end) << n << " items, grain " << grain << ", thread " << thread << " of " << n_threads;
          ASSERT_LE(share.begin, share.end);
          ASSERT_TRUE(share.end == n || share.end % grain == 0);
          end = share.end;
        }
        ASSERT_EQ(end, n);
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

TEST(ThreadPoolDeathTest, RefusesAPoolWithoutThreads) { EXPECT_DEATH(ThreadPool(0), "n_threads is 0"); }

}  // namespace
}  // namespace levin
