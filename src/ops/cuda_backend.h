// The ops on a CUDA device, and the ways in and out of its memory.
//
//   auto cuda = open_cuda({.device_index = 0});      // or one line that says what is missing
//   OpContext ctx = op_context(*cuda.value());
//   ops::sparse_attention(ctx, ...);                 // the same calls as on the CPU, with tensors of the device
//   cuda.value()->synchronize();
//
// An interface, because a build without the CUDA toolkit has nobody who implements it: open_cuda() then fails, and no op
// needs a second version.
//
// Sets      kPlain runs every op, of any shape and type, with the bits of the CPU's plain kernels. kSm90 has tuned kernels for
//           some ops and forms (why_not_sm90(), ops/kernel_registry.h), which op headers name under CUDA, and the plain ones
//           for the others; what runs a row does not depend on how many there are
// Order     everything is enqueued on one stream, in the order of the calls; a CopyStream has one of its own
// Errors    none; a row with a NaN that an op cannot rank is marked in the row status that it is given
// Memory    scratch comes from arena(): one block reserved at the start, whose addresses never change
// Threads   one at a time
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "base/result.h"
#include "ops/backend.h"
#include "tensor/cuda/probe.h"
#include "tensor/device_memory.h"
#include "tensor/matrix.h"
#include "tensor/view.h"

namespace levin {

namespace ops {
struct ExpertStack;
}  // namespace ops

struct CudaOptions {
  cuda::KernelSet kernels = cuda::KernelSet::kSm90;
  int device_index = 0;
  int64_t scratch_bytes = int64_t{1} << 30;  // of the tuned kernels, in addition to arena()
};

// One expert as checkpoints hold it.
struct ExpertRows {
  RowMajorWeights gate;  // [F, D]
  RowMajorWeights up;    // [F, D]
  RowMajorWeights down;  // [D, F]
};

// Work of a backend's stream that runs again with the addresses it was recorded with. Not to outlive the backend.
class RecordedWork {
 public:
  virtual ~RecordedWork() = default;
  virtual void replay() = 0;  // puts all of it on the stream
  // Launches, copies and fills that it consists of, and launches among them; 0 where nobody counts.
  virtual int64_t n_parts() const { return 0; }
  virtual int64_t n_kernels() const { return 0; }
};

class CudaBackend : public Backend, public DeviceMemory {
 public:
  virtual const cuda::DeviceInfo& device() const = 0;

  DeviceId device_id() const override { return {.kind = Device::kCuda, .index = device().index}; }
  Status synchronize() override = 0;  // of both bases

  // Records the ops that `enqueue` calls instead of running them. The same calls have run before, from the same place of the
  // arena: nothing is allocated, copied in or waited for meanwhile.
  virtual Result<std::unique_ptr<RecordedWork>> record(const std::function<void()>& enqueue) = 0;
  // The same of work over a step's rows, which a replay leaves out if all of them are padding by then: seq [T] i32 negative. What
  // the work gives is then what was there.
  virtual Result<std::unique_ptr<RecordedWork>> record_for_rows(const View& seq,
                                                                const std::function<void()>& enqueue) = 0;

  virtual Result<std::unique_ptr<WorkMark>> make_mark() = 0;

  // Between host and device; contiguous views of one type and shape. `from` may change once copy_in returns; copy_out
  // waits for the stream.
  virtual void copy_in(const View& to, const View& from) = 0;
  virtual Status copy_out(const View& to, const View& from) = 0;

  // Writes the device's clock in nanoseconds to `out`, of the device or in pinned memory, when all work so far is done. May be
  // recorded.
  virtual void stamp_time(int64_t* out) = 0;

  // How fast the device reads its memory: the best of a few passes over more than its caches hold. Waits; 0 where there is no
  // room for that.
  virtual double measure_read_gb_per_s() { return 0; }

  // Weights in the layout of the products: row major as they come, f16 as f32. kSm90: mxfp4 as kernels/cuda/gemm/gemm_mxfp4.h
  // packs it where N and K are multiples of 8.
  virtual Result<Matrix> upload(const RowMajorWeights& source) = 0;
  // The experts of a layer, all of one type and shape, stacked for the grouped products of kSm90. F a multiple of 128 for
  // e4m3. An error of kPlain, whose experts are matrices of one memory, one after another (model/place_weights.h).
  virtual Result<ops::ExpertStack> upload_experts(std::span<const ExpertRows> experts) = 0;
};

// The device ready for ops; otherwise an error of kind kNoDevice or kOutOfMemory that says in one line what is missing: a
// build with CUDA kernels, a driver, a newer one, a device, one that the kernel set runs on, memory.
Result<std::unique_ptr<CudaBackend>> open_cuda(const CudaOptions& options);

}  // namespace levin
