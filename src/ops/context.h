// What every op needs besides its tensors: where to run, on how many threads, with which scratch memory.
//
// On the CPU an op has run when it returns. On a CUDA device it is on the context's stream then, and its tensors must lie on
// that device. What the headers of ops say under CUDA is of the tuned kernels; the plain ones take whatever the CPU takes,
// laid out as there, and give the bits of its plain set (ops/cuda_backend.h).
#pragma once

#include "base/cpu.h"
#include "base/thread_pool.h"
#include "tensor/buffer.h"

namespace levin {

namespace kernels {
struct CpuKernels;
}

struct OpTimes;
class CudaBackend;

struct OpContext {
  Device device = Device::kCpu;
  ThreadPool* pool = nullptr;
  Arena* arena = nullptr;                    // scratch; ops release what they take
  const kernels::CpuKernels* cpu = nullptr;  // chosen once for the processor (kernels/cpu/kernels.h)
  CudaBackend* cuda = nullptr;               // device, stream and kernels (ops/cuda_backend.h), instead of pool and cpu
  OpTimes* times = nullptr;                  // where ops add the time they take (ops/op_times.h); may be null
};

// How many rows a thread takes at least in a loop over n_rows rows of `width` values each: all of them where waking
// another thread would take longer.
constexpr int64_t kFewValues = 16 * 1024;
inline int64_t row_grain(int64_t n_rows, int64_t width) { return n_rows * width <= kFewValues ? n_rows : 1; }

// Row status, [T] i32: not 0 if a value of the row could not be used because it was NaN. Ops that rank values write a
// defined result for such a row, mark it here, and leave all other rows as they are; they never clear a mark. An empty
// view: nobody asks.
inline void mark_fault(const View& faults, int64_t row) {
  if (!faults.empty()) faults.data<int32_t>()[row] = 1;
}

OpContext cpu_context(ThreadPool& pool, Arena& arena, Isa isa);

}  // namespace levin
