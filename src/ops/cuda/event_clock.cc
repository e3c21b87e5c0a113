#include "ops/cuda/event_clock.h"

#include <utility>

#include "tensor/device_memory.h"

namespace levin {

const cuda::Event& EventClock::next_event() {
  if (n_used_ == events_.size()) {
    Result<cuda::Event> event = cuda::Event::create();
    if (!event.ok()) throw DeviceFault(event.error());
    events_.push_back(std::move(event).value());
  }
  return events_[n_used_++];
}

void EventClock::start() { next_event().record(stream_); }

void EventClock::stop(double* seconds) {
  next_event().record(stream_);
  seconds_.push_back(seconds);
}

void EventClock::add_times() {
  for (size_t i = 0; i < seconds_.size(); ++i) {
    *seconds_[i] += 1e-3 * static_cast<double>(events_[2 * i + 1].ms_since(events_[2 * i]));
  }
  seconds_.clear();
  n_used_ = 0;
}

}  // namespace levin
