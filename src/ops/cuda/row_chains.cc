#include "kernels/cuda/row_chains.h"

#include "base/check.h"
#include "ops/cuda/ops_on_cuda.h"
#include "ops/kernel_registry.h"
#include "ops/row_chains.h"

namespace levin {
namespace {

// Rows whose values in one row are dense.
cuda::InputRows input_rows(std::string_view op, const View& x) {
  return {.data = device_bytes(op, "x", x), .is_f32 = x.dtype() == DType::kF32, .ld = x.stride(0)};
}

// Or not given.
bool is_dense(const View& rows) { return rows.empty() || (rows.contiguous() && is_aligned_16(rows.bytes())); }

bool rotates(const ops::Rotation& r) { return !r.cos.empty() && 2 * r.cos.dim(1) == cuda::kRopeWidth; }

cuda::Rotation rotation(std::string_view op, const ops::Rotation& r) {
  return {.cos = dense_data<float>(op, "cos", r.cos),
          .sin = dense_data<float>(op, "sin", r.sin),
          .half_split = r.pairing == ops::RopePairing::kHalfSplit};
}

cuda::CacheSlots cache_slots(std::string_view op, const View& seq, const View& slot, const PagedRows& cache) {
  return {.slot = dense_data<int32_t>(op, "slot", slot),
          .tables = page_tables(op, cache),
          .table_row = dense_data<int32_t>(op, "seq", seq),
          .pages = cache.pages,
          .page_bytes = cache.page_bytes};
}

}  // namespace

// The plain set has what the tuned kernels of a chain do not take, with the same bits.

void OpsOnCuda::norm_rows(const ops::NormRows& a) {
  constexpr std::string_view kOp = "norm_rows";
  const int64_t d = a.x.dim(1);
  const bool fits = d % 16 == 0 && d <= cuda::kMaxNormWidth && has_aligned_rows(a.x) && is_dense(a.residual) &&
                    is_dense(a.weight) && is_dense(a.normed) && (a.codes.empty() || has_aligned_rows(a.codes));
  if (a.weight.empty() || !fits) return PlainCuda::norm_rows(a);
  cuda::NormRows rows;
  rows.x = input_rows(kOp, a.x);
  if (!a.residual.empty()) rows.residual = dense_data<float>(kOp, "residual", a.residual);
  rows.weight = dense_data<float>(kOp, "weight", a.weight);
  rows.eps = a.eps;
  if (!a.normed.empty()) {
    if (a.normed.dtype() == DType::kF32)
      rows.normed_f32 = dense_data<float>(kOp, "normed", a.normed);
    else
      rows.normed = dense_data<uint16_t>(kOp, "normed", a.normed);
  }
  if (!a.codes.empty()) rows.rounded = rounded_rows(kOp, a.codes, a.scale, a.scale_by_block);
  rows.n_tokens = static_cast<int>(a.x.dim(0));
  rows.d = static_cast<int>(d);
  rows.pdl = true;
  cuda::norm_rows(rows, stream_.handle());
}

void OpsOnCuda::rotate_queries(const ops::RotateQueries& a) {
  constexpr std::string_view kOp = "rotate_queries";
  if (a.out.dtype() == DType::kF32 || !rotates(a.rotation)) return PlainCuda::rotate_queries(a);
  cuda::RotateQueries rows;
  rows.x = input_rows(kOp, a.x);
  rows.head_stride = a.x.stride(1);
  rows.rotation = rotation(kOp, a.rotation);
  rows.out = dense_data<uint16_t>(kOp, "out", a.out);
  rows.n_tokens = static_cast<int>(a.x.dim(0));
  rows.n_heads = static_cast<int>(a.x.dim(1));
  rows.pdl = true;
  cuda::rotate_queries(rows, stream_.handle());
}

void OpsOnCuda::write_latent(const ops::WriteLatent& a) {
  constexpr std::string_view kOp = "write_latent";
  const bool norms_latent = !a.weight.empty() && a.weight.dim(0) == a.format.d_latent;
  const OpForm form{.op = kOp, .rows = a.format};
  if (!norms_latent || !rotates(a.rotation) || !has_aligned_rows(a.x) || !why_not_sm90(form).empty())
    return PlainCuda::write_latent(a);
  cuda::WriteLatent rows;
  rows.x = input_rows(kOp, a.x);
  rows.weight = dense_data<float>(kOp, "weight", a.weight);
  rows.eps = a.eps;
  rows.rotation = rotation(kOp, a.rotation);
  rows.to = cache_slots(kOp, a.seq, a.slot, a.cache);
  rows.n_tokens = static_cast<int>(a.x.dim(0));
  rows.pdl = true;
  cuda::write_latent(rows, stream_.handle());
}

void OpsOnCuda::index_queries(const ops::IndexQueries& a) {
  constexpr std::string_view kOp = "index_queries";
  const bool has_width = a.x.dim(2) == cuda::kIndexWidth && (a.x.dim(1) == 1 || a.x.stride(1) == cuda::kIndexWidth);
  const bool is_fp8 = a.q.dtype() == DType::kF8E4M3 && !a.fp4;
  if (!is_fp8 || !has_width || a.rope_column != 0 || !rotates(a.rotation) || !has_aligned_rows(a.x))
    return PlainCuda::index_queries(a);
  cuda::IndexQueries rows;
  rows.x = input_rows(kOp, a.x);
  rows.w = reinterpret_cast<const float*>(device_bytes(kOp, "w", a.w));
  rows.w_ld = a.w.stride(0);
  rows.factor = a.factor;
  rows.rotation = rotation(kOp, a.rotation);
  rows.hadamard = a.hadamard;
  rows.codes = dense_data<uint8_t>(kOp, "q", a.q);
  rows.weights = dense_data<float>(kOp, "weights", a.weights);
  rows.n_tokens = static_cast<int>(a.x.dim(0));
  rows.n_heads = static_cast<int>(a.x.dim(1));
  rows.pdl = true;
  cuda::index_queries(rows, stream_.handle());
}

void OpsOnCuda::write_index_keys(const ops::WriteIndexKeys& a) {
  constexpr std::string_view kOp = "write_index_keys";
  const OpForm form{.op = kOp, .keys = a.format, .fp4 = a.fp4};
  if (a.bias.empty() || a.rope_column != 0 || !rotates(a.rotation) || !has_aligned_rows(a.x) ||
      !why_not_sm90(form).empty())
    return PlainCuda::write_index_keys(a);
  cuda::WriteIndexKeys rows;
  rows.x = input_rows(kOp, a.x);
  rows.weight = dense_data<float>(kOp, "weight", a.weight);
  rows.bias = dense_data<float>(kOp, "bias", a.bias);
  rows.eps = a.eps;
  rows.rotation = rotation(kOp, a.rotation);
  rows.hadamard = a.hadamard;
  rows.to = cache_slots(kOp, a.seq, a.slot, a.cache);
  rows.n_tokens = static_cast<int>(a.x.dim(0));
  rows.pdl = true;
  cuda::write_index_keys(rows, stream_.handle());
}

}  // namespace levin
