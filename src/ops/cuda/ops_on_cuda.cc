#include "ops/cuda/ops_on_cuda.h"

#include <utility>

#include "base/check.h"
#include "kernels/cuda/sparse_mla.h"

namespace levin {

cuda::PageTables page_tables(std::string_view op, const PagedRows& cache, const int32_t* row_of_request) {
  return {.data = reinterpret_cast<const int32_t*>(device_bytes(op, "cache.tables", cache.tables)),
          .stride = cache.tables.stride(0),
          .row_of_request = row_of_request};
}

bool is_aligned_16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

bool has_aligned_rows(const View& rows) {
  return is_aligned_16(rows.bytes()) && rows.stride(0) * dtype_bytes(rows.dtype()) % 16 == 0;
}

Result<std::unique_ptr<CudaBackend>> OpsOnCuda::create(const CudaOptions& options, cuda::DeviceInfo device) {
  std::unique_ptr<OpsOnCuda> ops(new OpsOnCuda);
  LEVIN_TRY(ops->open(std::move(device)));
  LEVIN_ASSIGN(ops->arena_, cuda::DeviceArena::create(options.scratch_bytes));
  ops->scratch_bytes_ = options.scratch_bytes;
  LEVIN_ASSIGN(ops->attention_scratch_, cuda::DeviceBuffer::create(cuda::sparse_mla_scratch_bytes()));
  cuda::fill_bytes(ops->stream_, ops->attention_scratch_.data(), 0, ops->attention_scratch_.n_bytes());
  LEVIN_TRY(ops->stream_.synchronize());
  return std::unique_ptr<CudaBackend>(std::move(ops));
}

View OpsOnCuda::aligned_rows(const View& rows) {
  if (has_aligned_rows(rows)) return rows;
  const int64_t row_bytes = rows.dim(1) * dtype_bytes(rows.dtype());
  LEVIN_CHECK(row_bytes % 16 == 0, "rows of {} cannot be aligned", rows.describe());
  const View out = arena_.allocate(rows.dtype(), {rows.dim(0), rows.dim(1)});
  cuda::copy_rows_on_device(stream_, {.to = out.bytes(),
                                      .to_pitch = row_bytes,
                                      .from = rows.bytes(),
                                      .from_pitch = rows.stride(0) * dtype_bytes(rows.dtype()),
                                      .row_bytes = row_bytes,
                                      .n_rows = rows.dim(0)});
  return out;
}

}  // namespace levin
