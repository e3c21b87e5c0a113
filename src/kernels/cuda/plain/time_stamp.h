// The device's clock, to see how long it has nothing to do.
#pragma once

#include <cstdint>

#include "kernels/cuda/plain/paged_cache.h"

namespace levin::cuda::plain {

// Writes nanoseconds since some moment to `out`, which may be pinned memory of the host, when the stream is there. The clock
// steps by about a microsecond.
void stamp_time(int64_t* out, StreamHandle stream);

}  // namespace levin::cuda::plain
