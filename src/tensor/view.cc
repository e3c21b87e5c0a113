#include "tensor/view.h"

#include <fmt/ranges.h>

#include <cstdlib>
#include <vector>

#include "base/check.h"

namespace levin {

View::View(void* data, DType dtype, std::initializer_list<int64_t> shape, Device device)
    : data_(static_cast<std::byte*>(data)), dtype_(dtype), device_(device), rank_(static_cast<int>(shape.size())) {
  LEVIN_CHECK(rank_ >= 1 && rank_ <= kMaxRank, "view of rank {}, expected 1 to {}", rank_, kMaxRank);
  int i = 0;
  for (const int64_t n : shape) shape_[i++] = n;
  int64_t stride = 1;
  for (i = rank_ - 1; i >= 0; --i) {
    strides_[i] = stride;
    stride *= shape_[i];
  }
}

int64_t View::n_elements() const {
  if (rank_ == 0) return 0;
  int64_t n = 1;
  for (int i = 0; i < rank_; ++i) n *= shape_[i];
  return n;
}

bool View::contiguous() const {
  int64_t stride = 1;
  for (int i = rank_ - 1; i >= 0; --i) {
    if (shape_[i] != 1 && strides_[i] != stride) return false;
    stride *= shape_[i];
  }
  return true;
}

View View::slice_first(int64_t begin, int64_t count) const {
  LEVIN_CHECK(begin >= 0 && count >= 0 && begin + count <= shape_[0], "rows {}..{} of {}", begin, begin + count,
              describe());
  View out = *this;
  out.data_ += begin * strides_[0] * dtype_bytes(dtype_);
  out.shape_[0] = count;
  return out;
}

View View::slice_last(int64_t begin, int64_t count) const {
  LEVIN_CHECK(begin >= 0 && count >= 0 && begin + count <= dim(-1), "columns {}..{} of {}", begin, begin + count,
              describe());
  View out = *this;
  out.data_ += begin * dtype_bytes(dtype_);
  out.shape_[rank_ - 1] = count;
  return out;
}

View View::reshaped(std::initializer_list<int64_t> shape) const {
  LEVIN_CHECK(contiguous(), "reshape of a strided {}", describe());
  View out(data_, dtype_, shape, device_);
  LEVIN_CHECK(out.n_elements() == n_elements(), "reshape of {} to {}", describe(), out.describe());
  return out;
}

View View::split_last(int64_t outer, int64_t inner) const {
  LEVIN_CHECK(rank_ < kMaxRank && outer * inner == dim(-1), "split of the last dimension of {} into {} x {}",
              describe(), outer, inner);
  View out = *this;
  out.rank_ = rank_ + 1;
  out.shape_[rank_ - 1] = outer;
  out.strides_[rank_ - 1] = inner;
  out.shape_[rank_] = inner;
  out.strides_[rank_] = 1;
  return out;
}

View View::merged_first() const {
  LEVIN_CHECK(rank_ >= 2 && (shape_[0] <= 1 || strides_[0] == shape_[1] * strides_[1]),
              "the first two dimensions of {} do not lie at one stride", describe());
  View out = *this;
  out.rank_ = rank_ - 1;
  out.shape_[0] = shape_[0] * shape_[1];
  out.strides_[0] = strides_[1];
  for (int i = 1; i < out.rank_; ++i) {
    out.shape_[i] = shape_[i + 1];
    out.strides_[i] = strides_[i + 1];
  }
  return out;
}

void View::refuse_access(DType asked) const {
  LEVIN_CHECK(asked == dtype_ && device_ == Device::kCpu, "view is {}, not {} of the host", describe(),
              dtype_name(asked));
  std::abort();  // not reached: data() saw the check fail
}

std::string View::describe() const {
  if (rank_ == 0) return "(none)";
  const std::vector<int64_t> shape(shape_.begin(), shape_.begin() + rank_);
  return fmt::format("{} [{}]{}", dtype_name(dtype_), fmt::join(shape, ", "),
                     device_ == Device::kCuda ? " on cuda" : "");
}

}  // namespace levin
