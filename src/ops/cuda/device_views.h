// Views as arguments of kernels: their addresses, once it is sure that they lie on the device. Internal to ops/cuda.
#pragma once

#include <string_view>

#include "base/check.h"
#include "tensor/view.h"

namespace levin {

// The address of a view that must lie on the device. `dense`: without gaps between its rows.
std::byte* device_bytes(std::string_view op, std::string_view name, const View& v);
std::byte* dense_bytes(std::string_view op, std::string_view name, const View& v);

// The same, typed; rows may have any stride.
template <class T>
T* device_data(std::string_view op, std::string_view name, const View& v) {
  LEVIN_CHECK(v.dtype() == DTypeOf<T>::value, "{}: {} is {}", op, name, v.describe());
  return reinterpret_cast<T*>(device_bytes(op, name, v));
}
template <class T>
T* dense_data(std::string_view op, std::string_view name, const View& v) {
  LEVIN_CHECK(v.dtype() == DTypeOf<T>::value, "{}: {} is {}", op, name, v.describe());
  return reinterpret_cast<T*>(dense_bytes(op, name, v));
}

// Null for an empty view.
template <class T>
T* optional_data(std::string_view op, std::string_view name, const View& v) {
  return v.empty() ? nullptr : dense_data<T>(op, name, v);
}

}  // namespace levin
