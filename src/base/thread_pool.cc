#include "base/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

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

struct ThreadPool::Workers {
  explicit Workers(int n);
  ~Workers();
  void run(Call new_call, const void* new_context);
  void work(int thread);

  std::vector<std::thread> threads;
  Call call = nullptr;
  const void* context = nullptr;
  std::atomic<uint32_t> round{0};  // bumped to start a loop
  std::atomic<int> n_running{0};   // workers that have not finished the current loop
  std::atomic<bool> stopping{false};
};

ThreadPool::Workers::Workers(int n) {
  threads.reserve(n);
  for (int thread = 1; thread <= n; ++thread) threads.emplace_back([this, thread] { work(thread); });
}

ThreadPool::Workers::~Workers() {
  stopping.store(true, std::memory_order_relaxed);
  round.fetch_add(1, std::memory_order_release);
  round.notify_all();
  for (std::thread& thread : threads) thread.join();
}

void ThreadPool::Workers::run(Call new_call, const void* new_context) {
  call = new_call;
  context = new_context;
  n_running.store(static_cast<int>(threads.size()), std::memory_order_relaxed);
  round.fetch_add(1, std::memory_order_release);
  round.notify_all();
  call(context, 0);
  for (int running = n_running.load(std::memory_order_acquire); running != 0;) {
    running = wait_for_change(n_running, running);
  }
}

void ThreadPool::Workers::work(int thread) {
  for (uint32_t seen = 0;;) {
    seen = wait_for_change(round, seen);
    if (stopping.load(std::memory_order_relaxed)) return;
    call(context, thread);
    if (n_running.fetch_sub(1, std::memory_order_acq_rel) == 1) n_running.notify_all();
  }
}

ThreadPool::ThreadPool(int n_threads) : n_threads_(n_threads) {
  LEVIN_CHECK(n_threads >= 1, "ThreadPool: n_threads is {}, expected at least 1", n_threads);
  if (n_threads > 1) workers_ = std::make_unique<Workers>(n_threads - 1);
}

ThreadPool::~ThreadPool() = default;

Share ThreadPool::share_of(int64_t n, int64_t grain, int thread) const {
  const int64_t n_grains = (n + grain - 1) / grain;
  const int64_t threads = n_threads();
  return {std::min(n, n_grains * thread / threads * grain), std::min(n, n_grains * (thread + 1) / threads * grain)};
}

void ThreadPool::run_erased(Call call, const void* context) {
  if (workers_ == nullptr) return call(context, 0);
  workers_->run(call, context);
}

}  // namespace levin
