// Times kernels on the device as a decode step runs them: replays of one graph of many launches, weights cold.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "kernels/cuda/device_array.h"

namespace levin::bench {

// One H200, as docs/performance.md has measured it.
constexpr double kCopyBytesPerSecond = 4.27e12;
constexpr double kFp8FlopPerSecond = 1.37e15;
constexpr double kBf16FlopPerSecond = 0.79e15;

struct GraphTiming {
  int n_launches = 32;  // in the graph; launch i gets its number, to choose cold inputs by
  int n_replays = 15;   // the median counts
  int rest_ms = 0;      // idle time before each replay: long kernels in a row are held back by the card's power limit
  int idle_ms = 0;      // before the first replay: what ran before may have left the card at its power limit
  int warm_ms = 0;      // replays before those that count: clocks settle where the kernel's own power draw puts them
};

// Microseconds of one launch. The launches follow each other without gaps, as inside a step.
inline double time_in_graph(const cuda::Stream& stream, const GraphTiming& t, const std::function<void(int)>& launch) {
  const cuda::Graph graph = cuda::must(cuda::Graph::capture(stream, [&] {
    for (int i = 0; i < t.n_launches; ++i) launch(i);
  }));
  const cuda::Event begin = cuda::must(cuda::Event::create()), end = cuda::must(cuda::Event::create());
  if (t.idle_ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(t.idle_ms));
  const auto warm_end = std::chrono::steady_clock::now() + std::chrono::milliseconds(t.warm_ms);
  do {
    graph.launch(stream);
    cuda::must(stream.synchronize());
  } while (std::chrono::steady_clock::now() < warm_end);
  std::vector<double> us;
  for (int i = 0; i < t.n_replays; ++i) {
    if (t.rest_ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(t.rest_ms));
    begin.record(stream);
    graph.launch(stream);
    end.record(stream);
    cuda::must(end.synchronize());
    us.push_back(double{end.ms_since(begin)} * 1000 / t.n_launches);
  }
  std::nth_element(us.begin(), us.begin() + t.n_replays / 2, us.end());
  return us[static_cast<size_t>(t.n_replays / 2)];
}

}  // namespace levin::bench
