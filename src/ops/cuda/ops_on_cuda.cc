#include "ops/cuda/ops_on_cuda.h"

#include <cstring>
#include <utility>

#include "base/check.h"
#include "kernels/cuda/sparse_mla.h"

namespace levin {

std::byte* device_bytes(std::string_view op, std::string_view name, const View& v) {
  LEVIN_CHECK(v.device() == Device::kCuda, "{}: {} is {}, expected it on cuda", op, name, v.describe());
  return v.bytes();
}

std::byte* dense_bytes(std::string_view op, std::string_view name, const View& v) {
  LEVIN_CHECK(v.contiguous(), "{}: {} is {} with gaps between its rows; on CUDA it is dense", op, name, v.describe());
  return device_bytes(op, name, v);
}

cuda::PageTables page_tables(std::string_view op, const PagedRows& cache, const int32_t* row_of_request) {
  return {.data = reinterpret_cast<const int32_t*>(device_bytes(op, "cache.tables", cache.tables)),
          .stride = cache.tables.stride(0),
          .row_of_request = row_of_request};
}

void check_supported(std::string_view op, const std::string& refused) {
  LEVIN_CHECK(refused.empty(), "{}: {}", op, refused);
}

Result<std::unique_ptr<CudaBackend>> open_cuda(const CudaOptions& options) {
  LEVIN_ASSIGN(const cuda::DeviceInfo device, cuda::find_device(options.device_index));
  return OpsOnCuda::create(options, device);
}

Result<std::unique_ptr<CudaBackend>> OpsOnCuda::create(const CudaOptions& options, cuda::DeviceInfo device) {
  LEVIN_TRY(cuda::use_device(options.device_index));
  std::unique_ptr<OpsOnCuda> ops(new OpsOnCuda);
  ops->device_ = std::move(device);
  LEVIN_ASSIGN(ops->stream_, cuda::Stream::create());
  LEVIN_ASSIGN(ops->arena_, cuda::DeviceArena::create(options.scratch_bytes));
  ops->scratch_bytes_ = options.scratch_bytes;
  LEVIN_ASSIGN(ops->attention_scratch_, cuda::DeviceBuffer::create(cuda::sparse_mla_scratch_bytes()));
  LEVIN_ASSIGN(ops->faults_, cuda::DeviceBuffer::create(sizeof(Faults)));
  LEVIN_ASSIGN(ops->faults_host_, cuda::PinnedBuffer::create(sizeof(Faults)));
  cuda::fill_bytes(ops->stream_, ops->attention_scratch_.data(), 0, ops->attention_scratch_.n_bytes());
  const Faults none;
  cuda::copy_to_device(ops->stream_, ops->faults_.data(), &none, sizeof(none));
  LEVIN_TRY(ops->stream_.synchronize());
  return std::unique_ptr<CudaBackend>(std::move(ops));
}

Result<Buffer> OpsOnCuda::allocate(int64_t n_bytes) {
  LEVIN_ASSIGN(cuda::DeviceBuffer buffer, cuda::DeviceBuffer::create(n_bytes));
  if (n_bytes > 0) cuda::fill_bytes(stream_, buffer.data(), 0, n_bytes);
  return std::move(buffer).to_buffer();
}

void OpsOnCuda::copy_in(const View& to, const View& from) {
  LEVIN_CHECK(from.device() == Device::kCpu && from.contiguous() && from.dtype() == to.dtype() &&
                  from.n_elements() == to.n_elements(),
              "copy_in: from {} to {}", from.describe(), to.describe());
  cuda::copy_to_device(stream_, dense_bytes("copy_in", "to", to), from.bytes(),
                       from.n_elements() * dtype_bytes(from.dtype()));
}

Status OpsOnCuda::copy_out(const View& to, const View& from) {
  LEVIN_CHECK(to.device() == Device::kCpu && to.contiguous() && from.dtype() == to.dtype() &&
                  from.n_elements() == to.n_elements(),
              "copy_out: from {} to {}", from.describe(), to.describe());
  cuda::copy_to_host(stream_, to.bytes(), dense_bytes("copy_out", "from", from),
                     to.n_elements() * dtype_bytes(to.dtype()));
  return synchronize();
}

Status OpsOnCuda::synchronize() {
  cuda::copy_to_host(stream_, faults_host_.data(), faults_.data(), sizeof(Faults));
  LEVIN_TRY(stream_.synchronize());
  Faults found;
  std::memcpy(&found, faults_host_.data(), sizeof(found));
  LEVIN_CHECK(found.nan_score == 0, "index_topk or select_topk: a score is NaN");
  LEVIN_CHECK(found.nan_row == kNoRow, "route_experts: a score of row {} is NaN", found.nan_row);
  return {};
}

}  // namespace levin
