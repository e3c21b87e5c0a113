#include "base/parking_policy.h"

#include <algorithm>
#include <cmath>

namespace levin {
namespace {

using std::chrono::milliseconds;
using Seconds = std::chrono::duration<double>;

// Some time slices of the kernel's scheduler, so that a window of a contended machine has its share of them. It grows
// with the threads because reading how long one has waited takes a microsecond.
constexpr milliseconds kShortestWindow{20};
constexpr milliseconds kWindowPerThread{1};

// How long threads stay parked: longer each time that a trial fails. A failed trial costs most of a window, so the longest
// hold bounds what trials cost next to a neighbour that stays.
constexpr milliseconds kShortestHold{50};
constexpr milliseconds kLongestHold{1600};
constexpr int kHoldGrowth = 4;

// How many threads may be without a processor, on average over a window, before one is parked. While one is preempted its
// loop soon stands still, so this is also the share of the pool's speed that is lost. Parking a thread costs a share of
// 1/n where threads scale perfectly; they share caches and memory, so parking pays from a little below that. Less than a
// tenth is what services of an idle system use.
double tolerated(int n_active) { return std::max(0.1, 0.7 / n_active); }

}  // namespace

ParkingPolicy::ParkingPolicy(int n_threads, Time now)
    : n_threads_(n_threads),
      n_active_(n_threads),
      window_(kShortestWindow + n_threads * kWindowPerThread),
      last_look_(now),
      next_look_(now + window_),
      next_trial_(now - kShortestHold),  // long enough ago
      hold_(kShortestHold) {}

void ParkingPolicy::look(const Look& look) {
  const bool window_over = is_due(look.now);
  const double n_waiting = Seconds(look.waited) / std::max(Seconds(look.now - last_look_), Seconds(1e-6));
  last_look_ = look.now;
  next_look_ = look.now + window_;
  if (n_active_ > 1 && window_over && n_waiting >= tolerated(n_active_)) {
    park(look.now, static_cast<int>(std::floor(n_active_ - n_waiting)));  // as many as had a processor
  } else if (n_active_ > 1 && look.was_late) {
    park(look.now, n_active_ - 1);
  } else if (n_active_ < n_threads_ && look.now >= next_trial_) {
    next_trial_ = look.now + kShortestHold;
    n_active_ = std::min(n_threads_, n_active_ + std::max(1, n_active_ / 4));
  }
}

void ParkingPolicy::park(Time now, int n_active) {
  const bool soon_again = now < next_trial_ + hold_;
  hold_ = soon_again ? std::min<Clock::duration>(kHoldGrowth * hold_, kLongestHold) : kShortestHold;
  next_trial_ = now + hold_;
  n_active_ = std::clamp(n_active, 1, n_active_ - 1);
}

}  // namespace levin
