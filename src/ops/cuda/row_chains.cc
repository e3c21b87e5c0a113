#include "kernels/cuda/row_chains.h"

#include "base/check.h"
#include "ops/cuda/ops_on_cuda.h"
#include "ops/row_chains.h"

namespace levin {
namespace {

constexpr int kAnyNormWidth = 16;

// Rows whose values in one row are dense.
cuda::InputRows input_rows(std::string_view op, const View& x) {
  return {.data = device_bytes(op, "x", x), .is_f32 = x.dtype() == DType::kF32, .ld = x.stride(0)};
}

cuda::Rotation rotation(std::string_view op, const ops::Rotation& r) {
  LEVIN_CHECK(2 * r.cos.dim(1) == cuda::kRopeWidth, "{}: rotated parts on CUDA are {} wide, not {}", op,
              cuda::kRopeWidth, 2 * r.cos.dim(1));
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

void check_index_width(std::string_view op, int64_t d_index) {
  check_supported(op,
                  cuda::chain_support(kAnyNormWidth, cuda::kLatentWidth, cuda::kRopeWidth, static_cast<int>(d_index)));
}

}  // namespace

// The forms of a chain that have a tuned kernel; the plain set has the others.

void OpsOnCuda::norm_rows(const ops::NormRows& a) {
  const bool to_f32 = !a.normed.empty() && a.normed.dtype() == DType::kF32;
  if (to_f32 || a.weight.empty()) return PlainCuda::norm_rows(a);
  constexpr std::string_view kOp = "norm_rows";
  const int64_t d = a.x.dim(1);
  check_supported(kOp,
                  cuda::chain_support(static_cast<int>(d), cuda::kLatentWidth, cuda::kRopeWidth, cuda::kIndexWidth));
  cuda::NormRows rows;
  rows.x = input_rows(kOp, a.x);
  if (!a.residual.empty()) rows.residual = dense_data<float>(kOp, "residual", a.residual);
  rows.weight = dense_data<float>(kOp, "weight", a.weight);
  rows.eps = a.eps;
  if (!a.normed.empty()) rows.normed = dense_data<uint16_t>(kOp, "normed", a.normed);
  if (!a.codes.empty()) rows.rounded = rounded_rows(kOp, a.codes, a.scale);
  rows.n_tokens = static_cast<int>(a.x.dim(0));
  rows.d = static_cast<int>(d);
  cuda::norm_rows(rows, stream_.handle());
}

void OpsOnCuda::rotate_queries(const ops::RotateQueries& a) {
  if (a.out.dtype() == DType::kF32) return PlainCuda::rotate_queries(a);
  constexpr std::string_view kOp = "rotate_queries";
  cuda::RotateQueries rows;
  rows.x = input_rows(kOp, a.x);
  rows.head_stride = a.x.stride(1);
  rows.rotation = rotation(kOp, a.rotation);
  rows.out = dense_data<uint16_t>(kOp, "out", a.out);
  rows.n_tokens = static_cast<int>(a.x.dim(0));
  rows.n_heads = static_cast<int>(a.x.dim(1));
  cuda::rotate_queries(rows, stream_.handle());
}

void OpsOnCuda::write_latent(const ops::WriteLatent& a) {
  if (a.weight.empty() || a.weight.dim(0) != a.format.d_latent) return PlainCuda::write_latent(a);
  constexpr std::string_view kOp = "write_latent";
  LEVIN_CHECK(a.format.dtype == CacheDType::kFp8 && !a.format.rope_in_value,
              "{}: cache rows on CUDA are fp8 latent rows, not {}{}", kOp, cache_dtype_name(a.format.dtype),
              a.format.rope_in_value ? " key-value rows" : "");
  check_supported(kOp, cuda::chain_support(kAnyNormWidth, static_cast<int>(a.format.d_latent),
                                           static_cast<int>(a.format.d_rope), cuda::kIndexWidth));
  cuda::WriteLatent rows;
  rows.x = input_rows(kOp, a.x);
  rows.weight = dense_data<float>(kOp, "weight", a.weight);
  rows.eps = a.eps;
  rows.rotation = rotation(kOp, a.rotation);
  rows.to = cache_slots(kOp, a.seq, a.slot, a.cache);
  rows.n_tokens = static_cast<int>(a.x.dim(0));
  cuda::write_latent(rows, stream_.handle());
}

void OpsOnCuda::index_queries(const ops::IndexQueries& a) {
  if (a.q.dtype() != DType::kF8E4M3 || a.rope_column != 0 || a.fp4) return PlainCuda::index_queries(a);
  constexpr std::string_view kOp = "index_queries";
  check_index_width(kOp, a.x.dim(2));
  LEVIN_CHECK(a.x.dim(1) == 1 || a.x.stride(1) == a.x.dim(2),
              "{}: heads of x are {} elements apart; on CUDA they are dense", kOp, a.x.stride(1));
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
  cuda::index_queries(rows, stream_.handle());
}

void OpsOnCuda::write_index_keys(const ops::WriteIndexKeys& a) {
  if (a.bias.empty() || a.rope_column != 0 || a.fp4) return PlainCuda::write_index_keys(a);
  constexpr std::string_view kOp = "write_index_keys";
  LEVIN_CHECK(a.format.dtype == CacheDType::kFp8, "{}: index keys on CUDA are fp8, not {}", kOp,
              cache_dtype_name(a.format.dtype));
  check_index_width(kOp, a.format.d_index);
  cuda::WriteIndexKeys rows;
  rows.x = input_rows(kOp, a.x);
  rows.weight = dense_data<float>(kOp, "weight", a.weight);
  rows.bias = dense_data<float>(kOp, "bias", a.bias);
  rows.eps = a.eps;
  rows.rotation = rotation(kOp, a.rotation);
  rows.hadamard = a.hadamard;
  rows.to = cache_slots(kOp, a.seq, a.slot, a.cache);
  rows.n_tokens = static_cast<int>(a.x.dim(0));
  cuda::write_index_keys(rows, stream_.handle());
}

}  // namespace levin
