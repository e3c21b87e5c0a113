// A tensor that does not own its memory: pointer, element type, and up to four dimensions with strides.
//
// Shapes are written outermost dimension first, [T, H, D]. The last dimension is contiguous; the others may have any
// stride, so a slice of columns (`slice_last`) is a View too. A default View is empty and means "not given".
//
// A View knows which device its memory belongs to. Host code passes views of CUDA memory on but must not dereference
// them: data() and row() abort the process, also for a wrong element type. The other functions work for both devices;
// slices and reshapes that do not fit the shape abort. dim(), stride() and row() do not check their indices.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "tensor/dtype.h"

namespace levin {

enum class Device : uint8_t { kCpu, kCuda };

class View {
 public:
  static constexpr int kMaxRank = 4;

  View() = default;
  View(void* data, DType dtype, std::initializer_list<int64_t> shape, Device device = Device::kCpu);  // contiguous

  template <class T>
  static View of(T* data, std::initializer_list<int64_t> shape) {
    return View(const_cast<std::remove_const_t<T>*>(data), DTypeOf<std::remove_const_t<T>>::value, shape);
  }

  bool empty() const { return data_ == nullptr; }
  Device device() const { return device_; }
  DType dtype() const { return dtype_; }
  int rank() const { return rank_; }
  int64_t dim(int i) const { return shape_[i < 0 ? rank_ + i : i]; }
  int64_t stride(int i) const { return strides_[i < 0 ? rank_ + i : i]; }  // in elements
  int64_t n_elements() const;
  bool contiguous() const;
  std::byte* bytes() const { return data_; }  // an address of device()

  // Typed access to host memory; the element type is checked. row<T>(i, j) points at element [i, j, 0, ...].
  template <class T>
  T* data() const {
    if (DTypeOf<T>::value != dtype_ || device_ != Device::kCpu) [[unlikely]]
      refuse_access(DTypeOf<T>::value);
    return reinterpret_cast<T*>(data_);
  }
  template <class T>
  T* row(int64_t i) const {
    return data<T>() + i * strides_[0];
  }
  template <class T>
  T* row(int64_t i, int64_t j) const {
    return data<T>() + i * strides_[0] + j * strides_[1];
  }

  View slice_first(int64_t begin, int64_t count) const;       // rows begin .. begin+count-1
  View slice_last(int64_t begin, int64_t count) const;        // the same range of columns in every row
  View reshaped(std::initializer_list<int64_t> shape) const;  // same elements; contiguous views only
  View split_last(int64_t outer, int64_t inner) const;        // [..., outer * inner] -> [..., outer, inner]
  View merged_first() const;  // [T, H, D] -> [T * H, D]; needs stride(0) == dim(1) * stride(1)

  std::string describe() const;  // "f32 [3, 576]", "f32 [3, 576] on cuda"

 private:
  [[noreturn]] void refuse_access(DType asked) const;

  std::byte* data_ = nullptr;
  DType dtype_ = DType::kF32;
  Device device_ = Device::kCpu;
  int rank_ = 0;
  std::array<int64_t, kMaxRank> shape_{};
  std::array<int64_t, kMaxRank> strides_{};
};

}  // namespace levin
