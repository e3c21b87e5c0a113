// The recorded outputs of an independent implementation, and how far ours are from them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "io/safetensors.h"
#include "support/fixture.h"
#include "support/must.h"

namespace levin::test {

class Oracle {
 public:
  explicit Oracle(const std::string& fixture)
      : file_(must(io::Checkpoint::open(fixture_folder(fixture) / "oracle.safetensors"))) {}

  bool has(const std::string& name) const { return file_.find(name) != nullptr; }

  template <class T>
  std::vector<T> values(const std::string& name) const {
    const io::StoredTensor* tensor = file_.find(name);
    LEVIN_CHECK(tensor != nullptr, "the oracle has no {}", name);
    std::vector<T> out(tensor->bytes.size() / sizeof(T));
    std::memcpy(out.data(), tensor->bytes.data(), tensor->bytes.size());
    return out;
  }

 private:
  io::Checkpoint file_;
};

// Largest difference, as a share of the expected tensor's largest magnitude.
inline double relative_error(std::span<const float> found, std::span<const float> expected) {
  LEVIN_CHECK(found.size() == expected.size(), "{} values, {} expected", found.size(), expected.size());
  double largest = 0, worst = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    largest = std::max(largest, std::abs(double{expected[i]}));
    worst = std::max(worst, std::abs(double{found[i]} - expected[i]));
    if (std::isnan(found[i])) return INFINITY;
  }
  return worst / largest;
}

// Share of the expected top-k indices that were found, row by row.
inline double shared_topk(std::span<const int32_t> found, std::span<const int32_t> expected, int64_t n_topk) {
  LEVIN_CHECK(found.size() == expected.size(), "{} top-k indices, {} expected", found.size(), expected.size());
  int64_t n_shared = 0, n_expected = 0;
  for (size_t row = 0; row < expected.size(); row += n_topk) {
    const std::set<int32_t> picked(found.begin() + row, found.begin() + row + n_topk);
    for (int64_t i = 0; i < n_topk; ++i) {
      if (expected[row + i] < 0) continue;
      ++n_expected;
      n_shared += static_cast<int64_t>(picked.count(expected[row + i]));
    }
  }
  return static_cast<double>(n_shared) / static_cast<double>(n_expected);
}

}  // namespace levin::test
