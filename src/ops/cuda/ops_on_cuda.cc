#include "ops/cuda/ops_on_cuda.h"

#include <cstring>
#include <utility>

#include "base/check.h"
#include "kernels/cuda/sparse_mla.h"

namespace levin {

cuda::PageTables page_tables(std::string_view op, const PagedRows& cache, const int32_t* row_of_request) {
  return {.data = reinterpret_cast<const int32_t*>(device_bytes(op, "cache.tables", cache.tables)),
          .stride = cache.tables.stride(0),
          .row_of_request = row_of_request};
}

void check_supported(std::string_view op, const std::string& refused) {
  LEVIN_CHECK(refused.empty(), "{}: {}", op, refused);
}

Result<std::unique_ptr<CudaBackend>> OpsOnCuda::create(const CudaOptions& options, cuda::DeviceInfo device) {
  std::unique_ptr<OpsOnCuda> ops(new OpsOnCuda);
  LEVIN_TRY(ops->open(std::move(device)));
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
