// What every op needs besides its tensors: who runs it, with which scratch memory, and where its time goes.
//
// On the CPU an op has run when it returns. On a CUDA device it is on the backend's stream then, and its tensors must lie on
// that device. What the headers of ops say under CUDA is of the tuned kernels, which run the forms named there; the plain ones
// run all others and give the bits of the CPU's plain set (ops/cuda_backend.h).
//
// Row status, [T] i32: not 0 if a value of the row could not be used because it was NaN. Ops that rank values write a
// defined result for such a row, mark it there, and leave all other rows as they are; they never clear a mark. An empty
// view: nobody asks.
#pragma once

#include "tensor/buffer.h"
#include "tensor/view.h"

namespace levin {

struct OpTimes;
class Backend;

// One device of the machine.
struct DeviceId {
  Device kind = Device::kCpu;
  int index = 0;  // among those of its kind
  bool operator==(const DeviceId&) const = default;
};

struct OpContext {
  Backend* backend = nullptr;  // device, its memory and kernels (ops/backend.h)
  Arena* arena = nullptr;      // the backend's scratch; ops release what they take
  OpTimes* times = nullptr;    // where ops add the time they take (ops/op_times.h); may be null
};

}  // namespace levin
