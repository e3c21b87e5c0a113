// A fixed set of threads for data-parallel loops.
//
// Work is cut statically: thread i of n gets the i-th contiguous share. Which thread computes what never shows in a
// result (design: lanes run along outputs, reductions have one fixed tree), so there is no work stealing and no atomic
// in any sum. Workers spin between loops, because a decode step has hundreds of them, and sleep between requests.
#pragma once

#include <cstdint>
#include <memory>

namespace levin {

// The share [begin, end) of thread `thread` in a loop over n items cut for n_threads.
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

  int n_threads() const { return n_threads_; }

  // Calls body(thread) once on each thread, thread = 0..n_threads-1, and returns when all are done. One loop at a time;
  // body must not call the pool again and must not throw.
  template <class Body>
  void run(const Body& body) {
    const auto call = [](const void* context, int thread) { (*static_cast<const Body*>(context))(thread); };
    run_erased(+call, &body);
  }

  // Calls body(begin, end, thread) on each thread that has a share of 0..n-1. Shares are multiples of `grain` items
  // (the last one excepted), so that a thread never splits what a kernel wants whole.
  template <class Body>
  void parallel_for(int64_t n, int64_t grain, const Body& body) {
    if (n <= 0) return;
    if (n_threads() == 1 || n <= grain) return body(int64_t{0}, n, 0);
    run([&](int thread) {
      const Share share = share_of(n, grain, thread);
      if (share.begin < share.end) body(share.begin, share.end, thread);
    });
  }

  Share share_of(int64_t n, int64_t grain, int thread) const;

 private:
  using Call = void (*)(const void* context, int thread);

  struct Workers;

  void run_erased(Call call, const void* context);

  int n_threads_ = 1;
  std::unique_ptr<Workers> workers_;  // the threads besides the caller's; null if there are none
};

}  // namespace levin
