#include "base/thread_pool.h"

#include <algorithm>
#include <chrono>

#include "base/check.h"

namespace levin {
namespace {

// Spinning covers the gap between two loops of a step, looking on what the engine does between two passes: waking a
// thread that sleeps takes tens of microseconds. While it looks on, a thread offers its processor to others: if the one
// it waits for has none, that is how it gets one.
constexpr std::chrono::microseconds kSpinTime{30};
constexpr std::chrono::microseconds kLookTime{200};
constexpr int kPausesPerLook = 8;  // at the clock; a pause is 10 to 140 cycles

inline void pause() { __builtin_ia32_pause(); }

// Waits until `value` differs from `old`: spins, then looks on, then sleeps in the kernel.
template <class T>
T wait_for_change(const std::atomic<T>& value, T old) {
  const auto start = std::chrono::steady_clock::now();
  for (auto now = start; now < start + kLookTime; now = std::chrono::steady_clock::now()) {
    for (int i = 0; i < kPausesPerLook; ++i) {
      if (const T found = value.load(std::memory_order_acquire); found != old) return found;
      pause();
    }
    if (now > start + kSpinTime) std::this_thread::yield();
  }
  value.wait(old, std::memory_order_acquire);
  return value.load(std::memory_order_acquire);
}

}  // namespace

ThreadPool::ThreadPool(int n_threads) {
  LEVIN_CHECK(n_threads >= 1, "ThreadPool: n_threads is {}, expected at least 1", n_threads);
  workers_.reserve(n_threads - 1);
  for (int thread = 1; thread < n_threads; ++thread) workers_.emplace_back([this, thread] { work(thread); });
}

ThreadPool::~ThreadPool() {
  stopping_.store(true, std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

Share ThreadPool::share_of(int64_t n, int64_t grain, int thread) const {
  const int64_t n_grains = (n + grain - 1) / grain;
  const int64_t threads = n_threads();
  return {std::min(n, n_grains * thread / threads * grain), std::min(n, n_grains * (thread + 1) / threads * grain)};
}

void ThreadPool::run_erased(Call call, const void* context) {
  if (workers_.empty()) return call(context, 0);
  call_ = call;
  context_ = context;
  n_running_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  call(context, 0);
  for (int running = n_running_.load(std::memory_order_acquire); running != 0;) {
    running = wait_for_change(n_running_, running);
  }
}

void ThreadPool::work(int thread) {
  for (uint32_t seen = 0;;) {
    seen = wait_for_change(round_, seen);
    if (stopping_.load(std::memory_order_relaxed)) return;
    call_(context_, thread);
    if (n_running_.fetch_sub(1, std::memory_order_acq_rel) == 1) n_running_.notify_all();
  }
}

}  // namespace levin
