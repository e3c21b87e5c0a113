// Many copies from the host to the device at once, as weights come there.
#pragma once

#include <span>

#include "base/result.h"
#include "base/thread_pool.h"
#include "tensor/cuda/device.h"
#include "tensor/device_memory.h"

namespace levin::cuda {

// DeviceMemory::copy_all_in() by way of `stream` of device `device_index`. Every thread fills pinned parts of its own and
// enqueues them, so that pages of mapped files are read, copied and sent at the same time; it waits for a part that is still
// being sent and for nothing else. Errors: no pinned memory, or the device failed.
Status upload(const Stream& stream, int device_index, std::span<const CopyIn> copies, ThreadPool& pool);

}  // namespace levin::cuda
