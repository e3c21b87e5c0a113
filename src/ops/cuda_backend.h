// The ops on a CUDA device: what stands behind an OpContext whose device is kCuda.
//
//   auto cuda = open_cuda({.device_index = 0});      // or one line that says what is missing
//   OpContext ctx = cuda_context(*cuda.value());
//   ops::sparse_attention(ctx, ...);                 // the same calls as on the CPU, with tensors of the device
//   cuda.value()->synchronize();
//
// An interface, because a build without the CUDA toolkit has nobody who implements it: open_cuda() then fails, and no op
// needs a second version. Each op checks shapes first, as on the CPU, then hands its arguments over.
//
// Order     everything is enqueued on one stream, in the order of the calls
// Errors    what the kernels lack, and NaN where an op forbids it, stops the process; NaN is found by synchronize()
// Memory    scratch comes from one block reserved at the start, whose addresses never change; a step that needs more than
//           that stops the process and names both numbers
// Threads   one at a time
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/result.h"
#include "ops/context.h"
#include "tensor/cuda/probe.h"
#include "tensor/matrix.h"
#include "tensor/view.h"

namespace levin {

namespace ops {
struct CopyRows;
struct ExpertFfn;
struct ExpertStack;
struct Ffn;
struct IndexQueries;
struct IndexScores;
struct IndexTopk;
struct MarkUnusable;
struct Matmul;
struct NormRows;
struct QuantizeFp8;
struct RotateQueries;
struct RouteExperts;
struct ScaleRows;
struct SelectTopk;
struct SparseAttention;
struct TakeAll;
struct WriteIndexKeys;
struct WriteLatent;
}  // namespace ops

struct CudaOptions {
  int device_index = 0;
  int64_t scratch_bytes = int64_t{1} << 30;
};

// One expert as checkpoints hold it.
struct ExpertRows {
  RowMajorWeights gate;  // [F, D]
  RowMajorWeights up;    // [F, D]
  RowMajorWeights down;  // [D, F]
};

class CudaBackend {
 public:
  virtual ~CudaBackend() = default;

  virtual const cuda::DeviceInfo& device() const = 0;

  // Memory of the device, cleared.
  virtual Result<Buffer> allocate(int64_t n_bytes) = 0;
  // Between host and device; contiguous views of one type and shape. `from` may change once copy_in returns; copy_out
  // waits for the stream.
  virtual void copy_in(const View& to, const View& from) = 0;
  virtual Status copy_out(const View& to, const View& from) = 0;
  // Waits for the stream; a fault of the device is an error.
  virtual Status synchronize() = 0;

  // Weights in the layout of the products. e4m3 with scales: row major, as it comes, N a multiple of 8 and K of 16;
  // mxfp4: as kernels/cuda/gemm_mxfp4.h packs it, N and K multiples of 8. Other types and shapes are an error.
  virtual Result<Matrix> upload(const RowMajorWeights& source) = 0;
  // The experts of a layer, all of one type and shape, stacked for the grouped products. F a multiple of 128 for e4m3.
  virtual Result<ops::ExpertStack> upload_experts(std::span<const ExpertRows> experts) = 0;

  virtual void index_scores(const ops::IndexScores& a) = 0;
  virtual void index_topk(const ops::IndexTopk& a) = 0;
  virtual void select_topk(const ops::SelectTopk& a) = 0;
  virtual void take_all(const ops::TakeAll& a) = 0;
  virtual void take_most_recent(const ops::TakeAll& a) = 0;
  virtual void extend_picks(const ops::TakeAll& a) = 0;
  virtual void copy_rows(const ops::CopyRows& a) = 0;
  virtual void scale_rows(const ops::ScaleRows& a) = 0;
  virtual void mark_unusable(const ops::MarkUnusable& a) = 0;
  virtual void sparse_attention(const ops::SparseAttention& a) = 0;
  virtual void quantize_fp8(const ops::QuantizeFp8& a) = 0;
  virtual void matmul(const ops::Matmul& a) = 0;
  virtual void route_experts(const ops::RouteExperts& a) = 0;
  virtual void ffn(const ops::Ffn& a) = 0;
  virtual void expert_ffn(const ops::ExpertFfn& a) = 0;
  virtual void norm_rows(const ops::NormRows& a) = 0;
  virtual void rotate_queries(const ops::RotateQueries& a) = 0;
  virtual void write_latent(const ops::WriteLatent& a) = 0;
  virtual void index_queries(const ops::IndexQueries& a) = 0;
  virtual void write_index_keys(const ops::WriteIndexKeys& a) = 0;
};

// The device ready for ops; otherwise an error of kind kNoDevice or kOutOfMemory that says in one line what is missing: a
// build with CUDA kernels, a driver, a newer one, a device, an sm_90 device, memory.
Result<std::unique_ptr<CudaBackend>> open_cuda(const CudaOptions& options);

inline OpContext cuda_context(CudaBackend& backend) { return {.device = Device::kCuda, .cuda = &backend}; }

}  // namespace levin
