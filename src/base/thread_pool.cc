#include "base/thread_pool.h"

#include <unistd.h>

#include <algorithm>
#include <exception>

#include "base/check.h"
#include "base/recovery.h"

namespace levin {
namespace {

using std::chrono::microseconds;

// Spinning covers the gap between two loops of a step, looking on what the engine does between two passes: waking a
// thread that sleeps takes tens of microseconds. While it looks on, a thread offers its processor to others.
constexpr microseconds kSpinTime{30};
constexpr microseconds kLookTime{200};
constexpr int kPausesPerLook = 8;  // at the clock; a pause is 10 to 140 cycles

constexpr int kChunksPerShare = 4;
constexpr int kPausesBeforeHelping = 16;  // a thread that is not late is through by then

// A loop is late if it waited this long, and as long as the caller worked on it, for chunks that others had begun. A
// thread that was preempted is away for a time slice, some milliseconds.
constexpr microseconds kLate{300};

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

// How a loop is cut: shares of whole grains, chunks of whole grains of them.
class Cut {
 public:
  Cut(int64_t n, int64_t grain, int n_shares)
      : n_(n), grain_(grain), n_grains_((n + grain - 1) / grain), n_shares_(n_shares) {}

  int n_chunks(int share) const {
    return static_cast<int>(std::min<int64_t>(kChunksPerShare, first_grain(share + 1) - first_grain(share)));
  }
  Share chunk(int share, int i) const {
    const int64_t first = first_grain(share), count = first_grain(share + 1) - first, n = n_chunks(share);
    return {std::min(n_, (first + count * i / n) * grain_), std::min(n_, (first + count * (i + 1) / n) * grain_)};
  }

 private:
  int64_t first_grain(int share) const { return n_grains_ * share / n_shares_; }

  int64_t n_, grain_, n_grains_;
  int n_shares_;
};

// The body of a loop, which keeps its first failure for the caller: other threads are at work on what the caller has.
class GuardedBody {
 public:
  using Call = void (*)(const void* context, Share items, int thread);
  GuardedBody(Call call, const void* context) : call_(call), context_(context) {}

  static void run(const void* self, Share items, int thread) {
    static_cast<const GuardedBody*>(self)->run(items, thread);
  }
  // Once all threads are through.
  void rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  void run(Share items, int thread) const {
    try {
      call_(context_, items, thread);
    } catch (...) {
      if (!has_failed_.exchange(true, std::memory_order_relaxed)) failure_ = std::current_exception();
    }
  }

  Call call_;
  const void* context_;
  mutable std::atomic<bool> has_failed_{false};  // who sets it writes failure_
  mutable std::exception_ptr failure_;
};

// The word of Chunks.
struct Claim {
  uint32_t round = 0;
  uint16_t next = 0;
  uint16_t end = 0;

  static Claim of(uint64_t word) {
    return {static_cast<uint32_t>(word >> 32), static_cast<uint16_t>(word >> 16), static_cast<uint16_t>(word)};
  }
  uint64_t word() const { return uint64_t{round} << 32 | uint64_t{next} << 16 | end; }
};

// The next chunk of a share, for the thread that asks; -1: none is left, or the loop is over. As a share's last chunk is taken
// before its loop ends, a worker that comes late, and may have read half of the next loop, gets nothing.
int take(std::atomic<uint64_t>& word, uint32_t round) {
  uint64_t seen = word.load(std::memory_order_acquire);
  for (;;) {
    Claim claim = Claim::of(seen);
    if (claim.round != round || claim.next >= claim.end) return -1;
    const int chunk = claim.next++;
    if (word.compare_exchange_weak(seen, claim.word(), std::memory_order_acq_rel)) return chunk;
  }
}

}  // namespace

void ThreadPool::SharedLoop::store(const Loop& loop) {
  call.store(loop.call, std::memory_order_relaxed);
  context.store(loop.context, std::memory_order_relaxed);
  n.store(loop.n, std::memory_order_relaxed);
  grain.store(loop.grain, std::memory_order_relaxed);
  n_shares.store(loop.n_shares, std::memory_order_relaxed);
}

ThreadPool::Loop ThreadPool::SharedLoop::load() const {
  return {.call = call.load(std::memory_order_relaxed),
          .context = context.load(std::memory_order_relaxed),
          .n = n.load(std::memory_order_relaxed),
          .grain = grain.load(std::memory_order_relaxed),
          .n_shares = n_shares.load(std::memory_order_relaxed)};
}

ThreadPool::ThreadPool(int n_threads)
    : policy_(n_threads, Clock::now()),
      run_delays_(static_cast<size_t>(std::max(0, n_threads))),
      workers_ready_(std::max(0, n_threads - 1)) {
  LEVIN_CHECK(n_threads >= 1, "ThreadPool: n_threads is {}, expected at least 1", n_threads);
  chunks_ = std::make_unique<Chunks[]>(static_cast<size_t>(n_threads));
  n_active_.store(n_threads, std::memory_order_relaxed);
  workers_.reserve(n_threads - 1);
  for (int thread = 1; thread < n_threads; ++thread) workers_.emplace_back([this, thread] { work(thread); });
  workers_ready_.wait();
}

ThreadPool::~ThreadPool() {
  stopping_.store(true, std::memory_order_relaxed);
  n_active_.store(n_threads(), std::memory_order_release);
  n_active_.notify_all();
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run_erased(const Loop& asked) {
  if (workers_.empty()) return asked.call(asked.context, {0, asked.n}, 0);
  const GuardedBody body(asked.call, asked.context);
  Loop loop = asked;
  loop.call = GuardedBody::run, loop.context = &body;
  const Clock::time_point begun = Clock::now();
  const uint32_t round = round_.load(std::memory_order_relaxed) + 1;
  const Cut cut(loop.n, loop.grain, loop.n_shares);
  loop_.store(loop);
  int n_chunks = 0;
  for (int share = 0; share < loop.n_shares; ++share) n_chunks += cut.n_chunks(share);
  n_left_.store(n_chunks, std::memory_order_relaxed);
  for (int share = 0; share < loop.n_shares; ++share) {
    const Claim claim{round, 0, static_cast<uint16_t>(cut.n_chunks(share))};
    chunks_[static_cast<size_t>(share)].word.store(claim.word(), std::memory_order_release);
  }
  round_.store(round, std::memory_order_release);
  round_.notify_all();
  finish(run_share(loop, round, 0, 0));
  finish(run_shares_of_others(loop, round, 0));
  const Clock::time_point through = Clock::now();
  for (int left = n_left_.load(std::memory_order_acquire); left != 0;) left = wait_for_change(n_left_, left);
  const Clock::time_point now = Clock::now();
  note_loop(now, now - through > std::max<Clock::duration>(kLate, through - begun));
  body.rethrow();
}

// Runs what is left of a share; returns the number of chunks.
int ThreadPool::run_share(const Loop& loop, uint32_t round, int share, int thread) {
  std::atomic<uint64_t>& word = chunks_[static_cast<size_t>(share)].word;
  int n_done = 0;
  for (int chunk = take(word, round); chunk >= 0; chunk = take(word, round)) {
    loop.call(loop.context, Cut(loop.n, loop.grain, loop.n_shares).chunk(share, chunk), thread);
    ++n_done;
  }
  return n_done;
}

int ThreadPool::run_shares_of_others(const Loop& loop, uint32_t round, int thread) {
  for (int i = 0; i < kPausesBeforeHelping; ++i) {
    if (n_left_.load(std::memory_order_relaxed) == 0 || round_.load(std::memory_order_relaxed) != round) return 0;
    pause();
  }
  int n_done = 0;
  for (int i = 1; i < loop.n_shares; ++i) n_done += run_share(loop, round, (thread + i) % loop.n_shares, thread);
  return n_done;
}

void ThreadPool::finish(int n_done) {
  if (n_done > 0 && n_left_.fetch_sub(n_done, std::memory_order_acq_rel) == n_done) n_left_.notify_all();
}

void ThreadPool::work(int thread) {
  const Recovery recovery;  // by the caller
  run_delays_[static_cast<size_t>(thread)] = RunDelay::of_this_thread();
  workers_ready_.count_down();
  for (uint32_t seen = 0;;) {
    for (int active = n_active(); active <= thread; active = n_active()) {
      n_active_.wait(active, std::memory_order_acquire);
    }
    seen = wait_for_change(round_, seen);
    if (stopping_.load(std::memory_order_relaxed)) return;
    const Loop loop = loop_.load();
    if (thread >= loop.n_shares) continue;
    finish(run_share(loop, seen, thread, thread));
    finish(run_shares_of_others(loop, seen, thread));
  }
}

// Parks workers, or lets parked ones try again.
void ThreadPool::note_loop(Clock::time_point now, bool was_late) {
  if (!was_late && !policy_.is_due(now)) return;
  policy_.look({.now = now, .was_late = was_late, .waited = waited_since_last_look()});
  if (n_active_.exchange(policy_.n_active(), std::memory_order_acq_rel) < policy_.n_active()) n_active_.notify_all();
}

ThreadPool::Clock::duration ThreadPool::waited_since_last_look() {
  if (const pid_t caller = gettid(); caller != caller_) {
    caller_ = caller;
    run_delays_[0] = RunDelay::of_this_thread();
  }
  Clock::duration waited{0};
  for (RunDelay& delay : run_delays_) waited += delay.since_last_call();
  return waited;
}

}  // namespace levin
