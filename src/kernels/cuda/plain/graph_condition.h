// Lets a number in device memory decide whether a part of a graph runs.
#pragma once

#include <cstdint>

#include "kernels/cuda/plain/paged_cache.h"

namespace levin::cuda::plain {

// Enqueued into a graph before its conditional part: that part runs if *value is not 0.
void set_condition(uint64_t handle, const int32_t* value, StreamHandle stream);

}  // namespace levin::cuda::plain
