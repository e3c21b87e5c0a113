#include "kernels/cuda/rows/row_chains.h"

#include <optional>

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

// ---- chains as the tuned kernels take them; none where they do not ----

std::optional<cuda::NormRows> tuned(const ops::NormRows& a) {
  constexpr std::string_view kOp = "norm_rows";
  const int64_t d = a.x.dim(1);
  const bool fits = d % 16 == 0 && d <= cuda::kMaxNormWidth && has_aligned_rows(a.x) && is_dense(a.residual) &&
                    is_dense(a.weight) && is_dense(a.normed) && (a.codes.empty() || has_aligned_rows(a.codes));
  if (a.weight.empty() || !fits) return std::nullopt;
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
  return rows;
}

std::optional<cuda::RotateQueries> tuned(const ops::RotateQueries& a) {
  constexpr std::string_view kOp = "rotate_queries";
  if (a.out.dtype() == DType::kF32 || !rotates(a.rotation)) return std::nullopt;
  cuda::RotateQueries rows;
  rows.x = input_rows(kOp, a.x);
  rows.head_stride = a.x.stride(1);
  rows.rotation = rotation(kOp, a.rotation);
  rows.out = dense_data<uint16_t>(kOp, "out", a.out);
  rows.n_tokens = static_cast<int>(a.x.dim(0));
  rows.n_heads = static_cast<int>(a.x.dim(1));
  rows.pdl = true;
  return rows;
}

std::optional<cuda::WriteLatent> tuned(const ops::WriteLatent& a) {
  constexpr std::string_view kOp = "write_latent";
  const bool norms_latent = !a.weight.empty() && a.weight.dim(0) == a.format.d_latent;
  const OpForm form{.op = kOp, .rows = a.format};
  if (!norms_latent || !rotates(a.rotation) || !has_aligned_rows(a.x) || !why_not_sm90(form).empty())
    return std::nullopt;
  cuda::WriteLatent rows;
  rows.x = input_rows(kOp, a.x);
  rows.weight = dense_data<float>(kOp, "weight", a.weight);
  rows.eps = a.eps;
  rows.rotation = rotation(kOp, a.rotation);
  rows.to = cache_slots(kOp, a.seq, a.slot, a.cache);
  rows.n_tokens = static_cast<int>(a.x.dim(0));
  rows.pdl = true;
  return rows;
}

std::optional<cuda::IndexQueries> tuned(const ops::IndexQueries& a) {
  constexpr std::string_view kOp = "index_queries";
  const bool has_width = a.x.dim(2) == cuda::kIndexWidth && (a.x.dim(1) == 1 || a.x.stride(1) == cuda::kIndexWidth);
  const bool is_fp8 = a.q.dtype() == DType::kF8E4M3 && !a.fp4;
  if (!is_fp8 || !has_width || a.rope_column != 0 || !rotates(a.rotation) || !has_aligned_rows(a.x))
    return std::nullopt;
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
  return rows;
}

std::optional<cuda::WriteIndexKeys> tuned(const ops::WriteIndexKeys& a) {
  constexpr std::string_view kOp = "write_index_keys";
  const OpForm form{.op = kOp, .keys = a.format, .fp4 = a.fp4};
  if (a.bias.empty() || a.rope_column != 0 || !rotates(a.rotation) || !has_aligned_rows(a.x) ||
      !why_not_sm90(form).empty())
    return std::nullopt;
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
  return rows;
}

// Few rows alone: of more the kernel for products reads its weights fewer times.
std::optional<cuda::FewOutputs> few_outputs(const ops::Matmul& a) {
  constexpr std::string_view kOp = "matmul";
  const int64_t n_rows = a.x.dim(0), k = a.w->k();
  const DType type = a.w->dtype();
  const bool fits = a.x.dtype() == DType::kF32 && a.out.dtype() == DType::kF32 && k % 128 == 0 &&
                    n_rows <= cuda::kMaxFewOutputsTokens && k <= cuda::kMaxFewOutputsK && has_aligned_rows(a.x) &&
                    is_aligned_16(a.w->device_data());
  if (!fits || (type != DType::kF32 && type != DType::kBF16)) return std::nullopt;
  return cuda::FewOutputs{.x = device_data<float>(kOp, "x", a.x),
                          .x_ld = a.x.stride(0),
                          .w = a.w->device_data(),
                          .w_is_f32 = type == DType::kF32,
                          .out = device_data<float>(kOp, "out", a.out),
                          .out_ld = a.out.stride(0),
                          .n_tokens = static_cast<int>(n_rows),
                          .n = static_cast<int>(a.w->n()),
                          .k = static_cast<int>(k)};
}

}  // namespace

// The plain set has what the tuned kernels of a chain do not take, with the same bits.

void OpsOnCuda::norm_rows(const ops::NormRows& a) {
  const std::optional<cuda::NormRows> rows = tuned(a);
  rows ? cuda::norm_rows(*rows, stream_.handle()) : PlainCuda::norm_rows(a);
}

void OpsOnCuda::rotate_queries(const ops::RotateQueries& a) {
  const std::optional<cuda::RotateQueries> rows = tuned(a);
  rows ? cuda::rotate_queries(*rows, stream_.handle()) : PlainCuda::rotate_queries(a);
}

void OpsOnCuda::write_latent(const ops::WriteLatent& a) {
  const std::optional<cuda::WriteLatent> rows = tuned(a);
  rows ? cuda::write_latent(*rows, stream_.handle()) : PlainCuda::write_latent(a);
}

void OpsOnCuda::index_queries(const ops::IndexQueries& a) {
  const std::optional<cuda::IndexQueries> rows = tuned(a);
  rows ? cuda::index_queries(*rows, stream_.handle()) : PlainCuda::index_queries(a);
}

void OpsOnCuda::write_index_keys(const ops::WriteIndexKeys& a) {
  const std::optional<cuda::WriteIndexKeys> rows = tuned(a);
  rows ? cuda::write_index_keys(*rows, stream_.handle()) : PlainCuda::write_index_keys(a);
}

bool OpsOnCuda::norm_and_append(const ops::NormAndAppend& a) {
  const std::optional<cuda::NormRows> norm = tuned(a.norm);
  const std::optional<cuda::WriteLatent> latent = tuned(a.latent);
  if (!norm || !latent || norm->d > cuda::kMaxSharedNormWidth) return false;
  cuda::NormAndAppend rows{.norm = *norm, .latent = *latent, .keys = {}, .product = {}, .pdl = true};
  if (!a.keys.x.empty()) {
    const std::optional<cuda::WriteIndexKeys> keys = tuned(a.keys);
    if (!keys) return false;
    rows.keys = *keys;
  }
  if (!a.product.x.empty()) {
    if (const std::optional<cuda::FewOutputs> product = few_outputs(a.product); product)
      rows.product = *product;
    else
      matmul(a.product);
  }
  cuda::norm_and_append(rows, stream_.handle());
  return true;
}

bool OpsOnCuda::attention_queries(const ops::AttentionQueries& a) {
  const std::optional<cuda::RotateQueries> rotate = tuned(a.rotate);
  const std::optional<cuda::IndexQueries> index = tuned(a.index);
  if (!rotate || !index) return false;
  cuda::attention_queries({.rotate = *rotate, .index = *index, .pdl = true}, stream_.handle());
  return true;
}

}  // namespace levin
