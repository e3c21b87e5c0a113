#include "ops/cuda/ops_on_cuda.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kernels/cuda/sparse_mla/sparse_mla.h"

namespace levin {

cuda::PageTables page_tables(std::string_view op, const PagedRows& cache) {
  return {.data = reinterpret_cast<const int32_t*>(device_bytes(op, "cache.tables", cache.tables)),
          .stride = cache.tables.stride(0),
          .row_of_request = nullptr};
}

bool is_aligned_16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

bool has_aligned_rows(const View& rows) {
  return is_aligned_16(rows.bytes()) && rows.stride(0) * dtype_bytes(rows.dtype()) % 16 == 0;
}

int64_t even_step(int64_t n_rows, int64_t most) {
  const int64_t at_most = std::max<int64_t>(most, 1), n_slices = (n_rows + at_most - 1) / at_most;
  return n_slices <= 1 ? at_most : (n_rows + n_slices - 1) / n_slices;
}

Result<std::unique_ptr<CudaBackend>> OpsOnCuda::create(const CudaOptions& options, cuda::DeviceInfo device) {
  std::unique_ptr<OpsOnCuda> ops(new OpsOnCuda);
  LEVIN_TRY(ops->open(std::move(device)));
  LEVIN_ASSIGN(ops->arena_, cuda::DeviceArena::create(options.scratch_bytes));
  ops->scratch_bytes_ = options.scratch_bytes;
  LEVIN_ASSIGN(ops->attention_scratch_, cuda::DeviceBuffer::create(cuda::sparse_mla_scratch_bytes()));
  cuda::clear_sparse_mla_scratch(ops->attention_scratch_.data(), ops->stream_.handle());
  LEVIN_ASSIGN(ops->score_counts_, cuda::DeviceBuffer::create(kScoreCountBytes));
  cuda::fill_bytes(ops->stream_, ops->score_counts_.data(), 0, kScoreCountBytes);
  LEVIN_TRY(ops->stream_.synchronize());
  return std::unique_ptr<CudaBackend>(std::move(ops));
}

View OpsOnCuda::aligned_rows(const View& rows) {
  if (has_aligned_rows(rows)) return rows;
  LEVIN_CHECK(rows.dim(1) * dtype_bytes(rows.dtype()) % 16 == 0, "rows of {} cannot be aligned", rows.describe());
  const View out = arena_.allocate(rows.dtype(), {rows.dim(0), rows.dim(1)});
  copy_view(rows, out);
  return out;
}

View OpsOnCuda::dense_out(const View& out) {
  if (out.contiguous() && is_aligned_16(out.bytes())) return out;
  return arena_.allocate(out.dtype(), {out.dim(0), out.dim(1)});
}

void OpsOnCuda::finish(const View& written, const View& out) {
  if (written.bytes() != out.bytes()) copy_view(written, out);
}

void OpsOnCuda::copy_view(const View& from, const View& to) {  // [T, N] each, of one type
  const int64_t bytes = dtype_bytes(from.dtype());
  cuda::copy_rows_on_device(stream_, {.to = device_bytes("copy", "to", to),
                                      .to_pitch = to.stride(0) * bytes,
                                      .from = device_bytes("copy", "from", from),
                                      .from_pitch = from.stride(0) * bytes,
                                      .row_bytes = from.dim(1) * bytes,
                                      .n_rows = from.dim(0)});
}

}  // namespace levin
