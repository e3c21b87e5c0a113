// Rows of several tensors under each other: [N, W], in host memory.
#pragma once

#include <span>
#include <vector>

#include "tensor/view.h"

namespace levin {

template <class T>
class RowGather {
 public:
  RowGather(std::vector<T>& storage, int64_t width) : storage_(storage), width_(width) {}
  void add(View rows) {
    for (int64_t r = 0; r < rows.dim(0); ++r) storage_.insert(storage_.end(), rows.row<T>(r), rows.row<T>(r) + width_);
  }
  bool empty() const { return storage_.empty(); }
  View view() { return View::of(storage_.data(), {static_cast<int64_t>(storage_.size()) / width_, width_}); }

 private:
  std::vector<T>& storage_;
  int64_t width_;
};

inline std::span<const float> row_span(View rows, int64_t r) {
  return {rows.row<float>(r), static_cast<size_t>(rows.dim(1))};
}

}  // namespace levin
