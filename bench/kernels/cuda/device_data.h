// Data for benchmarks: operands that must not lie in a cache, a pattern again and again; rows of the groups of a product.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/cuda/device_array.h"

namespace levin::bench {

// Fills `device` by repeating `pattern`.
template <class T>
void repeat(const cuda::Stream& stream, const cuda::DeviceArray<T>& device, const std::vector<T>& pattern) {
  const auto n_pattern = static_cast<int64_t>(pattern.size());
  for (int64_t at = 0; at < device.size(); at += n_pattern) {
    const int64_t n = std::min(n_pattern, device.size() - at);
    cuda::copy_to_device(stream, reinterpret_cast<std::byte*>(device.data() + at), pattern.data(),
                         n * static_cast<int64_t>(sizeof(T)));
  }
  cuda::must(stream.synchronize());
}

// Rows of each group: as many, or as chance shares them out.
struct GroupRows {
  int n_groups, mean;
  bool by_chance = false;

  int n_rows() const { return n_groups * mean; }
  const char* kind() const { return by_chance ? " by chance" : ""; }

  // [n_groups + 1]: the first row of each group, and the end of the last.
  std::vector<int32_t> begin() const {
    std::vector<int32_t> at(static_cast<size_t>(n_groups) + 1, 0);
    uint64_t state = 9;
    for (int row = 0; row < n_rows(); ++row) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      const int group = by_chance ? static_cast<int>((state >> 33) % static_cast<uint64_t>(n_groups)) : row / mean;
      ++at[static_cast<size_t>(group) + 1];
    }
    for (size_t g = 0; g + 1 < at.size(); ++g) at[g + 1] += at[g];
    return at;
  }
};

}  // namespace levin::bench
