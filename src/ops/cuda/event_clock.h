// The time of ops on a stream, by events before and after each of them. Internal to ops/cuda.
#pragma once

#include <vector>

#include "ops/op_times.h"
#include "tensor/cuda/device.h"

namespace levin {

class EventClock final : public OpClock {
 public:
  explicit EventClock(const cuda::Stream& stream) : stream_(stream) {}

  void start() override;
  void stop(double* seconds) override;
  void add_times();  // of all that was stopped; the stream has been waited for

 private:
  const cuda::Event& next_event();

  const cuda::Stream& stream_;
  std::vector<cuda::Event> events_;  // in pairs: of start and stop
  std::vector<double*> seconds_;     // of each pair
  size_t n_used_ = 0;                // of the events
};

}  // namespace levin
