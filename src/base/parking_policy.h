// How many threads of a pool take part in its loops while other programs want processors too.
//
// Loops wait for their last thread, so a thread without a processor costs more than it adds. Two things show that there
// are more threads than free processors: the threads waited for processors during a window of time, or a loop was late
// because it waited for a thread that was preempted in the middle of its work. Threads are then parked for a while.
// Afterwards some take part again for a window; if that fails, the next while is longer.
#pragma once

#include <chrono>

namespace levin {

class ParkingPolicy {
 public:
  using Clock = std::chrono::steady_clock;
  using Time = Clock::time_point;

  struct Look {
    Time now;
    bool was_late = false;      // the loop that ends now was late
    Clock::duration waited{0};  // for processors since the last look, the sum over all threads
  };

  ParkingPolicy(int n_threads, Time now);  // at least 1; all take part

  int n_active() const { return n_active_; }  // at least 1, at most n_threads
  bool is_due(Time now) const { return now >= next_look_; }
  // To be called when a loop was late, and when is_due().
  void look(const Look& look);

 private:
  void park(Time now, int n_active);

  int n_threads_;
  int n_active_;
  Clock::duration window_;
  Time last_look_;
  Time next_look_;
  Time next_trial_;       // when parked threads are tried again
  Clock::duration hold_;  // how long the last ones were parked
};

}  // namespace levin
