// Starting a kernel whose blocks wait for each other: all of them are on the device at the same time, whatever else runs there.
#pragma once

#include <type_traits>
#include <utility>

#include "kernels/cuda/prims/launch.h"

namespace levin::cuda {

// A launch that the device has no room for is refused, see clusters_at_once().
void launch_pointer_together(const void* kernel, const Launch& l, void** params);

template <class... Params, class... Args>
void launch_together(void (*kernel)(Params...), const Launch& l, Args&&... args) {
  static_assert(sizeof...(Params) == sizeof...(Args), "one argument for each kernel parameter");
  [&](std::remove_cv_t<Params>... values) {
    void* pointers[] = {static_cast<void*>(&values)..., nullptr};
    launch_pointer_together(reinterpret_cast<const void*>(kernel), l, pointers);
  }(std::forward<Args>(args)...);
}

}  // namespace levin::cuda
