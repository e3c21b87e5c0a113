// A fixed set of threads for data-parallel loops, on a machine that may have other work to do.
//
// A loop is cut into one contiguous share per active thread, and a share into a few chunks. Each thread takes the chunks
// of its own share in order; one that is through takes chunks of threads that are late, so a thread that has no
// processor just then holds up no more than the chunk it is in. Which thread computes what never shows in a result:
// lanes run along outputs, every reduction has one fixed order, and no sum is atomic (docs/numerics.md).
//
// Workers spin between loops, because a decode step has hundreds of them, and sleep between requests. Where there are
// more threads than free processors, the pool parks workers (parking_policy.h).
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <latch>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

#include "base/parking_policy.h"
#include "base/run_delay.h"

namespace levin {

// Items [begin, end) of a loop.
struct Share {
  int64_t begin = 0;
  int64_t end = 0;
};

class ThreadPool {
 public:
  explicit ThreadPool(int n_threads);  // at least 1; the caller's thread is one of them
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int n_threads() const { return static_cast<int>(workers_.size()) + 1; }
  int n_active() const { return n_active_.load(std::memory_order_relaxed); }  // threads that are not parked

  // Calls body(i) once for each i = 0..n_threads-1, on as many threads as have a processor, and returns when all calls
  // are done; throws what body threw first. One loop at a time; body must not call the pool again or wait for another call.
  template <class Body>
  void run(const Body& body) {
    const auto call = [](const void* context, Share items, int) {
      for (int64_t i = items.begin; i < items.end; ++i) (*static_cast<const Body*>(context))(static_cast<int>(i));
    };
    run_erased({.call = +call, .context = &body, .n = n_threads(), .grain = 1, .n_shares = n_threads_now()});
  }

  // Calls body(begin, end, thread) for chunks that cover 0..n-1 once, where `thread` is the one that runs the call: it
  // may index scratch memory of n_threads parts. Chunks are multiples of `grain` items (the last one excepted), so that
  // a thread never splits what a kernel wants whole; a thread may run several.
  template <class Body>
  void parallel_for(int64_t n, int64_t grain, const Body& body) {
    if (n <= 0) return;
    const int n_shares = n_threads_now();
    if (n_shares == 1 || n <= grain) return body(int64_t{0}, n, 0);
    const auto call = [](const void* context, Share items, int thread) {
      (*static_cast<const Body*>(context))(items.begin, items.end, thread);
    };
    run_erased({.call = +call, .context = &body, .n = n, .grain = grain, .n_shares = n_shares});
  }

 private:
  using Clock = ParkingPolicy::Clock;
  using Call = void (*)(const void* context, Share items, int thread);

  struct Loop {
    Call call = nullptr;
    const void* context = nullptr;
    int64_t n = 0;
    int64_t grain = 1;
    int n_shares = 1;
  };
  // The same, where workers may read it while the next one is written; what they read then they cannot use (take()).
  struct SharedLoop {
    std::atomic<Call> call{nullptr};
    std::atomic<const void*> context{nullptr};
    std::atomic<int64_t> n{0}, grain{1};
    std::atomic<int> n_shares{1};

    void store(const Loop& loop);
    Loop load() const;
  };
  // Which chunks of a share are taken: the loop's round, the next chunk and the number of chunks in one word.
  struct alignas(64) Chunks {
    std::atomic<uint64_t> word{0};
  };

  // How many threads the next loop is cut for. Only a pool with parked workers looks at the clock for it.
  int n_threads_now() {
    if (n_active() < n_threads()) note_loop(Clock::now(), false);
    return n_active();
  }
  void run_erased(const Loop& loop);
  void work(int thread);
  int run_share(const Loop& loop, uint32_t round, int share, int thread);
  int run_shares_of_others(const Loop& loop, uint32_t round, int thread);
  void finish(int n_done);
  void note_loop(Clock::time_point now, bool was_late);
  Clock::duration waited_since_last_look();

  std::vector<std::thread> workers_;
  std::unique_ptr<Chunks[]> chunks_;  // [n_threads]
  SharedLoop loop_;
  alignas(64) std::atomic<uint32_t> round_{0};  // bumped to start a loop
  alignas(64) std::atomic<int> n_left_{0};      // chunks of the current loop that are not finished
  alignas(64) std::atomic<int> n_active_{1};    // threads 0 .. n_active-1 are not parked
  std::atomic<bool> stopping_{false};

  // Of the caller's thread alone.
  ParkingPolicy policy_;
  pid_t caller_ = 0;
  std::vector<RunDelay> run_delays_;  // [n_threads], the first of caller_
  std::latch workers_ready_;          // for run_delays_
};

}  // namespace levin
