// Weights, products and the rounding of their inputs.
#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernels/cuda/gemm/gemm_fp8.h"
#include "kernels/cuda/sparse_mla/sparse_mla.h"
#include "ops/cuda/ops_on_cuda.h"
#include "ops/kernel_registry.h"
#include "ops/matmul.h"
#include "ops/moe.h"
#include "ops/quantize.h"

namespace levin {
namespace {

constexpr int64_t kMaxRows = 65535;  // of one launch of quantize_fp8

int64_t blocks_of(int64_t n) { return (n + kWeightBlock - 1) / kWeightBlock; }

std::string weight_support(DType dtype, int64_t n, int64_t k, int n_groups) {
  const cuda::GroupedShape w{.n = static_cast<int>(n), .k = static_cast<int>(k), .n_groups = n_groups};
  if (dtype == DType::kF8E4M3) return cuda::gemm_fp8_support(w);
  if (dtype == DType::kMxfp4) return cuda::gemm_mxfp4_support(w);
  return fmt::format("weights on CUDA are f8_e4m3 or mxfp4, not {}", dtype_name(dtype));
}

Error refusal(const RowMajorWeights& w, const std::string& why) {
  return {ErrorKind::kNoDevice, fmt::format("a weight [{}, {}] cannot go to the CUDA device: {}", w.n, w.k, why)};
}

Status check_weight(const RowMajorWeights& w) {
  if (const std::string why = weight_support(w.dtype, w.n, w.k, 1); !why.empty()) return refusal(w, why);
  if (w.dtype == DType::kF8E4M3 && w.scales == nullptr) return refusal(w, "f8_e4m3 without scales has no kernel");
  return {};
}

// Weights of one group as the products read them, next to others of the same shape.
struct Slot {
  std::byte* data = nullptr;
  float* scales = nullptr;
};

int64_t group_bytes(DType dtype, int64_t n, int64_t k) {
  return dtype == DType::kF8E4M3 ? n * k : cuda::packed_mxfp4_bytes(static_cast<int>(n), static_cast<int>(k));
}
int64_t group_scales(DType dtype, int64_t n, int64_t k) {
  return dtype == DType::kF8E4M3 ? blocks_of(n) * blocks_of(k) : 0;
}

// Copies `parts`, one below the other a matrix [N, K], to `to`, and says whether its scales are wide. Waits.
Result<bool> write_group(const cuda::Stream& stream, std::span<const RowMajorWeights> parts, const Slot& to) {
  const int64_t k = parts[0].k;
  if (parts[0].dtype == DType::kF8E4M3) {
    int64_t row = 0;
    for (const RowMajorWeights& w : parts) {
      cuda::copy_to_device(stream, to.data + row * k, w.data, w.n * k);
      cuda::copy_to_device(stream, reinterpret_cast<std::byte*>(to.scales + row / kWeightBlock * blocks_of(k)),
                           w.scales, blocks_of(w.n) * blocks_of(k) * 4);
      row += w.n;
    }
    LEVIN_TRY(stream.synchronize());
    return false;
  }
  std::vector<uint8_t> codes, scales;
  for (const RowMajorWeights& w : parts) {
    const auto* rows = static_cast<const uint8_t*>(w.data);
    codes.insert(codes.end(), rows, rows + w.n * k / 2);
    scales.insert(scales.end(), w.group_scales, w.group_scales + w.n * ((k + kMxGroup - 1) / kMxGroup));
  }
  const int n = static_cast<int>(static_cast<int64_t>(codes.size()) * 2 / k);
  std::vector<std::byte> packed(static_cast<size_t>(cuda::packed_mxfp4_bytes(n, static_cast<int>(k))));
  const cuda::Mxfp4Scales range = cuda::pack_mxfp4(
      {.codes = codes.data(), .scales = scales.data(), .n = n, .k = static_cast<int>(k)}, packed.data());
  if (range == cuda::Mxfp4Scales::kNotExact)
    return refusal(parts[0], fmt::format("a scale lies outside 2^{} .. 2^{}", kMxMinScale - 127, kMxMaxScale - 127));
  cuda::copy_to_device(stream, to.data, packed.data(), static_cast<int64_t>(packed.size()));
  LEVIN_TRY(stream.synchronize());
  return range == cuda::Mxfp4Scales::kWide;
}

Status check_experts(std::span<const ExpertRows> experts) {
  LEVIN_CHECK(!experts.empty(), "upload_experts: no experts");
  const RowMajorWeights& first = experts[0].gate;
  for (const ExpertRows& e : experts) {
    for (const RowMajorWeights* w : {&e.gate, &e.up, &e.down}) LEVIN_TRY(check_weight(*w));
    const bool same = e.gate.n == first.n && e.up.n == first.n && e.down.k == first.n && e.gate.k == first.k &&
                      e.up.k == first.k && e.down.n == first.k && e.gate.dtype == first.dtype &&
                      e.up.dtype == first.dtype && e.down.dtype == first.dtype;
    if (!same) return refusal(e.gate, "the experts of a layer have one type and one shape there");
  }
  if (first.dtype == DType::kF8E4M3 && first.n % kWeightBlock != 0)
    return refusal(first, fmt::format("the hidden width of e4m3 experts is a multiple of {} there", kWeightBlock));
  const std::string why = weight_support(first.dtype, 2 * first.n, first.k, static_cast<int>(experts.size()));
  if (!why.empty()) return refusal(first, why);
  return {};
}

ProductWeights weights_of(const Matrix& w, int64_t n_groups = 1) {
  return {.dtype = w.dtype(),
          .data = w.device_data(),
          .scales = w.device_scales(),
          .has_wide_scales = w.has_wide_scales(),
          .n = static_cast<int>(w.n()),
          .k = static_cast<int>(w.k()),
          .n_groups = static_cast<int>(n_groups)};
}

// n matrices of e4m3 that stand one after another, as place_weights() leaves experts.
ProductWeights stacked_weights(const Matrix& first, const Matrix& last, int64_t n) {
  const int64_t n_scales = blocks_of(first.n()) * blocks_of(first.k());
  LEVIN_CHECK(last.device_data() == first.device_data() + (n - 1) * first.n() * first.k() &&
                  last.device_scales() == first.device_scales() + (n - 1) * n_scales,
              "{} matrices [{}, {}] that do not stand one after another on the device", n, first.n(), first.k());
  return weights_of(first, n);
}

// Gate and up as one matrix, where they stand together; empty otherwise.
Matrix joined_gate_up(const ops::FfnWeights& w) {
  const Matrix* const parts[] = {&w.gate, &w.up};
  return joined_on_device(parts);
}

// mxfp4 as upload() packs it, its scales among the codes; place_weights() keeps it row by row.
bool is_packed(const Matrix& w) { return w.dtype() == DType::kMxfp4 && !w.has_scales(); }

// The type of e4m3 matrices without scales is none that the kernels know.
std::optional<DType> known_type(const Matrix& w) {
  if (w.dtype() == DType::kF8E4M3 && !w.has_scales()) return std::nullopt;
  return w.dtype();
}

// Of all matrices of a block, if they have one.
std::optional<DType> common_type(const ops::FfnWeights& w) {
  const std::optional<DType> gate = known_type(w.gate);
  return gate == known_type(w.up) && gate == known_type(w.down) ? gate : std::nullopt;
}

bool rounds_to_fp8(const ops::FfnWeights& w) { return w.input == ops::Operand::kFp8 && w.hidden == ops::Operand::kFp8; }

// n of the rows, from `first` on.
cuda::QuantizeFp8 rows_of(const cuda::QuantizeFp8& a, int64_t first, int64_t n) {
  cuda::QuantizeFp8 some = a;
  some.x = static_cast<const std::byte*>(a.x) + first * a.x_ld * (a.x_is_f32 ? 4 : 2);
  if (a.out.values != nullptr) some.out.values += first * a.out.values_ld;
  if (a.out.codes != nullptr) some.out.codes += first * a.out.code_row_bytes;
  if (a.out.scale != nullptr) some.out.scale += first * a.out.scale_row_stride;
  some.n_tokens = static_cast<int>(n);
  return some;
}

// ---- forms, as op_forms() has them of the model ----

OpForm form_of(const ops::Matmul& a) {
  return {.op = "matmul",
          .weights = known_type(*a.w),
          .fp8_input = a.x.dtype() == DType::kF8E4M3,
          .n = a.w->n(),
          .k = a.w->k()};
}

OpForm form_of(const ops::MatmulPerHead& a) {
  const Matrix& w = a.w.front();
  return {.op = "matmul_per_head", .weights = known_type(w), .n = w.n(), .k = w.k()};
}

OpForm form_of(const ops::Ffn& a) {
  const ops::FfnWeights& w = *a.weights;
  return {.op = "ffn", .weights = common_type(w), .fp8_input = rounds_to_fp8(w), .n = w.gate.n(), .k = w.gate.k()};
}

OpForm form_of(const ops::ExpertFfn& a) {
  const ops::FfnWeights& w = a.experts.front();
  const bool alike = a.shared == nullptr || common_type(*a.shared) == common_type(w);
  return {.op = "expert_ffn",
          .n_experts = std::ssize(a.experts),
          .n_active = a.topk.dim(1),
          .weights = alike ? common_type(w) : std::nullopt,
          .fp8_input = rounds_to_fp8(w) && (a.shared == nullptr || rounds_to_fp8(*a.shared)),
          .n = w.gate.n(),
          .k = w.gate.k(),
          .weigh_hidden = a.weigh_hidden};
}

bool is_packed(const ops::FfnWeights& w) { return is_packed(w.gate) && is_packed(w.up) && is_packed(w.down); }

}  // namespace

cuda::QuantizedRows rounded_rows(std::string_view op, const View& codes, const View& scale) {
  const int64_t n_rows = codes.dim(0), k = codes.dim(1);
  LEVIN_CHECK(scale.rank() == 2 && scale.dim(0) == n_rows && scale.dim(1) == blocks_of(k),
              "{}: the scales of {} are {}, expected f32 [{}, {}]", op, codes.describe(), scale.describe(), n_rows,
              blocks_of(k));
  return {.codes = reinterpret_cast<uint8_t*>(device_bytes(op, "codes", codes)),
          .code_row_bytes = codes.stride(0),
          .scale = device_data<float>(op, "scale", scale),
          .scale_ld = 1,
          .scale_row_stride = scale.stride(0)};
}

cuda::QuantizedRows rounded_rows(std::string_view op, const View& codes, const View& scale, bool scale_by_block) {
  if (!scale_by_block) return rounded_rows(op, codes, scale);
  return {.codes = reinterpret_cast<uint8_t*>(device_bytes(op, "codes", codes)),
          .code_row_bytes = codes.stride(0),
          .scale = dense_data<float>(op, "scale", scale),
          .scale_ld = scale.dim(1)};
}

// mxfp4 packed where its kernel takes it; all else as the plain set has it, which for e4m3 is what the products read.
Result<Matrix> OpsOnCuda::upload(const RowMajorWeights& source) {
  if (source.dtype != DType::kMxfp4 || !weight_support(source.dtype, source.n, source.k, 1).empty())
    return PlainCuda::upload(source);
  LEVIN_ASSIGN(Buffer data, allocate(group_bytes(source.dtype, source.n, source.k)));
  LEVIN_ASSIGN(const bool wide, write_group(stream_, {&source, 1}, {data.data(), nullptr}));
  return matrix_on_device({.dtype = source.dtype,
                           .n = source.n,
                           .k = source.k,
                           .data = std::move(data),
                           .scales = {},
                           .has_wide_scales = wide});
}

Result<ops::ExpertStack> OpsOnCuda::upload_experts(std::span<const ExpertRows> experts) {
  LEVIN_TRY(check_experts(experts));
  ops::ExpertStack stack;
  stack.dtype = experts[0].gate.dtype;
  stack.n_experts = static_cast<int64_t>(experts.size());
  stack.d_model = experts[0].gate.k;
  stack.d_hidden = experts[0].gate.n;
  const int64_t n_wide = 2 * stack.d_hidden, d = stack.d_model, f = stack.d_hidden;
  const int64_t up_bytes = group_bytes(stack.dtype, n_wide, d), down_bytes = group_bytes(stack.dtype, d, f);
  const int64_t up_scales = group_scales(stack.dtype, n_wide, d), down_scales = group_scales(stack.dtype, d, f);
  LEVIN_ASSIGN(stack.gate_up, allocate(stack.n_experts * up_bytes));
  LEVIN_ASSIGN(stack.gate_up_scales, allocate(stack.n_experts * up_scales * 4));
  LEVIN_ASSIGN(stack.down, allocate(stack.n_experts * down_bytes));
  LEVIN_ASSIGN(stack.down_scales, allocate(stack.n_experts * down_scales * 4));
  for (int64_t e = 0; e < stack.n_experts; ++e) {
    const RowMajorWeights gate_up[2] = {experts[e].gate, experts[e].up};
    LEVIN_ASSIGN(const bool wide_up,
                 write_group(stream_, gate_up,
                             {stack.gate_up.data() + e * up_bytes,
                              reinterpret_cast<float*>(stack.gate_up_scales.data()) + e * up_scales}));
    LEVIN_ASSIGN(const bool wide_down,
                 write_group(stream_, {&experts[e].down, 1},
                             {stack.down.data() + e * down_bytes,
                              reinterpret_cast<float*>(stack.down_scales.data()) + e * down_scales}));
    stack.has_wide_scales = stack.has_wide_scales || wide_up || wide_down;
  }
  return stack;
}

void OpsOnCuda::quantize_fp8(const ops::QuantizeFp8& a) {
  constexpr std::string_view kOp = "quantize_fp8";
  const int64_t n_rows = a.x.dim(0), k = a.x.dim(1);
  if (n_rows == 0) return;
  const Scratch scratch(arena_);
  const View x = a.scale_by_block ? aligned_rows(a.x) : a.x;  // no other kernel has that order
  if (k % 16 != 0 || !has_aligned_rows(x) || !has_aligned_rows(a.out)) return PlainCuda::quantize_fp8(a);
  cuda::QuantizeFp8 rows;
  rows.x = device_bytes(kOp, "x", x);
  rows.x_is_f32 = x.dtype() == DType::kF32;
  rows.x_ld = x.stride(0);
  if (a.out.dtype() == DType::kBF16) {
    rows.out.values = reinterpret_cast<uint16_t*>(device_bytes(kOp, "out", a.out));
    rows.out.values_ld = a.out.stride(0);
  } else {
    rows.out = rounded_rows(kOp, a.out, a.scale, a.scale_by_block);
  }
  rows.k = static_cast<int>(k);
  rows.pdl = true;
  for (int64_t row = 0; row < n_rows; row += kMaxRows)
    cuda::quantize_fp8(rows_of(rows, row, std::min(kMaxRows, n_rows - row)), stream_.handle());
}

cuda::QuantizedRows OpsOnCuda::allocate_rounded(DType weights, int64_t n_rows, int64_t k) {
  if (weights == DType::kMxfp4) {
    const View values = arena_.allocate(DType::kBF16, {n_rows, k});
    return {.values = reinterpret_cast<uint16_t*>(values.bytes()), .values_ld = k};
  }
  const int64_t ld = (n_rows + 3) / 4 * 4;
  return {.codes = reinterpret_cast<uint8_t*>(arena_.allocate_bytes(n_rows * k)),
          .code_row_bytes = k,
          .scale = reinterpret_cast<float*>(arena_.allocate_bytes(blocks_of(k) * ld * 4)),
          .scale_ld = ld};
}

cuda::QuantizedRows OpsOnCuda::round_input(std::string_view op, const View& x, DType weights) {
  const View rows = aligned_rows(x);
  const int64_t n_rows = x.dim(0), k = x.dim(1);
  const cuda::QuantizedRows out = allocate_rounded(weights, n_rows, k);
  cuda::quantize_fp8({.x = device_bytes(op, "x", rows),
                      .x_is_f32 = x.dtype() == DType::kF32,
                      .x_ld = rows.stride(0),
                      .out = out,
                      .n_tokens = static_cast<int>(n_rows),
                      .k = static_cast<int>(k),
                      .pdl = true},
                     stream_.handle());
  return out;
}

// Scales as the products read them.
cuda::QuantizedRows OpsOnCuda::product_rows(std::string_view op, const View& codes, const View& scale,
                                            bool scale_by_block) {
  const View rows = aligned_rows(codes);
  if (scale_by_block) return rounded_rows(op, rows, scale, true);
  const int64_t n_rows = codes.dim(0), n_blocks = blocks_of(codes.dim(1)), ld = (n_rows + 3) / 4 * 4;
  auto* turned = reinterpret_cast<float*>(arena_.allocate_bytes(n_blocks * ld * 4));
  cuda::transpose_scales({.from = device_data<float>(op, "x_scale", scale),
                          .from_ld = scale.stride(0),
                          .to = turned,
                          .to_ld = ld,
                          .n_rows = static_cast<int>(n_rows),
                          .n_blocks = static_cast<int>(n_blocks)},
                         stream_.handle());
  return {.codes = reinterpret_cast<uint8_t*>(device_bytes(op, "x", rows)),
          .code_row_bytes = rows.stride(0),
          .scale = turned,
          .scale_ld = ld};
}

void OpsOnCuda::multiply(const ProductRows& x, const ProductWeights& w, void* out, bool out_is_f32) {
  const auto set_shape = [&](auto& a) {
    a.out = out;
    a.out_is_f32 = out_is_f32;
    a.n_tokens = x.n_rows;
    a.n = w.n;
    a.k = w.k;
    a.n_groups = w.n_groups;
    a.group_begin = w.n_groups == 1 ? nullptr : x.group_begin;
    a.pdl = true;
  };
  if (w.dtype == DType::kMxfp4) {
    cuda::GemmMxfp4 a;
    a.x = x.x.values;
    a.x_ld = x.x.values_ld;
    a.w = w.data;
    a.scales = w.has_wide_scales ? cuda::Mxfp4Scales::kWide : cuda::Mxfp4Scales::kNarrow;
    set_shape(a);
    return cuda::gemm_mxfp4(a, cuda::plan_gemm_mxfp4(x.rows_per_group, w.n_groups), stream_.handle());
  }
  cuda::GemmFp8 a;
  a.x = x.x.codes;
  a.x_row_bytes = x.x.code_row_bytes;
  a.x_scale = x.x.scale;
  a.x_scale_ld = x.x.scale_ld;
  a.w = reinterpret_cast<const uint8_t*>(w.data);
  a.w_scale = w.scales;
  a.groups_settled = x.groups_settled;
  set_shape(a);
  const cuda::GemmFp8Shape shape = {
      .rows_per_group = x.rows_per_group, .n = w.n, .k = a.k, .n_groups = w.n_groups, .n_sms = device_.n_sms};
  cuda::gemm_fp8(a, cuda::plan_gemm_fp8(shape), stream_.handle());
}

// f32 rows [T, H, K] times H matrices; none where they do not lie as the kernel reads them. The plain kernels give the same
// bits, so that this may differ from call to call.
std::optional<F32Product> OpsOnCuda::f32_product(std::string_view op, const View& x,
                                                 const cuda::plain::Weights& w) const {
  const bool aligned = has_aligned_rows(x) && x.stride(1) % 4 == 0 && is_aligned_16(w.data);
  if (x.dtype() != DType::kF32 || !aligned) return std::nullopt;
  const cuda::GemmF32 a{.x = device_data<float>(op, "x", x),
                        .x_ld = x.stride(0),
                        .x_head_ld = x.stride(1),
                        .w = w.data,
                        .w_type = w.dtype,
                        .w_scale = w.scales,
                        .n_tokens = static_cast<int>(x.dim(0)),
                        .n_heads = static_cast<int>(x.dim(1)),
                        .n = static_cast<int>(w.n),
                        .k = static_cast<int>(w.k),
                        .pdl = true};
  const cuda::GemmF32Shape shape{
      .n_rows = a.n_tokens, .w_type = a.w_type, .n = a.n, .k = a.k, .n_heads = a.n_heads, .n_sms = device_.n_sms};
  return F32Product{a, shape, cuda::plan_gemm_f32(shape)};
}

bool OpsOnCuda::multiply_f32(std::string_view op, const View& x, const cuda::plain::Weights& w, const View& out) {
  std::optional<F32Product> product = f32_product(op, x, w);
  if (!product) return false;
  product->a.out = device_bytes(op, "out", out);
  product->a.out_is_bf16 = out.dtype() == DType::kBF16;
  product->a.out_ld = out.stride(0);
  product->a.out_head_ld = out.stride(1);
  cuda::gemm_f32(product->a, product->plan, stream_.handle());
  return true;
}

void OpsOnCuda::matmul_per_head(const ops::MatmulPerHead& a) {
  constexpr std::string_view kOp = "matmul_per_head";
  const bool takes = why_not_sm90(form_of(a)).empty();
  if (takes && multiply_f32(kOp, a.x, plain_weights(kOp, a.w.front(), a.w.back(), std::ssize(a.w)), a.out)) return;
  PlainCuda::matmul_per_head(a);
}

bool OpsOnCuda::matmul_per_head_rounded(const ops::MatmulPerHead& a) {
  constexpr std::string_view kOp = "matmul_per_head";
  if (!why_not_sm90(form_of(a)).empty()) return false;
  const cuda::plain::Weights w = plain_weights(kOp, a.w.front(), a.w.back(), std::ssize(a.w));
  if (a.codes.empty()) return multiply_f32(kOp, a.x, w, a.out);
  std::optional<F32Product> product = f32_product(kOp, a.x, w);
  if (!product || !cuda::rounds_rows(product->plan, product->shape) || !has_aligned_rows(a.codes)) return false;
  product->a.rounded = rounded_rows(kOp, a.codes, a.scale, a.scale_by_block);
  product->a.n_busy_sms =
      cuda::sparse_mla_few_rows_blocks(a.x.dim(0), product->a.n_heads);  // values come from attention
  cuda::gemm_f32(product->a, product->plan, stream_.handle());
  return true;
}

bool OpsOnCuda::reads_scales_by_block(const Matrix& w) const {
  return why_not_sm90({.op = "matmul", .weights = known_type(w), .fp8_input = true, .n = w.n(), .k = w.k()}).empty() &&
         w.dtype() == DType::kF8E4M3;
}

void OpsOnCuda::matmul(const ops::Matmul& a) {
  constexpr std::string_view kOp = "matmul";
  const bool packed = is_packed(*a.w);
  if (!packed && !why_not_sm90(form_of(a)).empty()) return PlainCuda::matmul(a);
  if (!packed && a.x.dtype() != DType::kF8E4M3) {
    const View x = a.x.split_last(1, a.x.dim(1)), out = a.out.split_last(1, a.out.dim(1));
    if (!multiply_f32(kOp, x, plain_weights(*a.w), out)) PlainCuda::matmul(a);
    return;
  }
  LEVIN_CHECK(!packed || a.x.dtype() == DType::kBF16, "{}: x is {} for packed mxfp4 weights", kOp, a.x.describe());
  LEVIN_CHECK(a.out.dtype() == DType::kF32 || a.out.dtype() == DType::kBF16, "{}: out is {}, expected f32 or bf16", kOp,
              a.out.describe());
  const Scratch scratch(arena_);
  const int n_rows = static_cast<int>(a.x.dim(0));
  ProductRows x{.n_rows = n_rows, .rows_per_group = n_rows};
  if (packed) {
    const View rows = aligned_rows(a.x);
    x.x = {.values = reinterpret_cast<uint16_t*>(device_bytes(kOp, "x", rows)), .values_ld = rows.stride(0)};
  } else {
    x.x = product_rows(kOp, a.x, a.x_scale, a.scale_by_block);
  }
  const View out = dense_out(a.out);
  multiply(x, weights_of(*a.w), dense_bytes(kOp, "out", out), out.dtype() == DType::kF32);
  finish(out, a.out);
}

// ---- feed-forward blocks ----

OpsOnCuda::BlockWeights OpsOnCuda::block_weights(const ops::FfnWeights& w) { return blocks_weights(w, w, 1); }

OpsOnCuda::BlockWeights OpsOnCuda::expert_weights(const ops::ExpertFfn& a) {
  return blocks_weights(a.experts.front(), a.experts.back(), std::ssize(a.experts));
}

OpsOnCuda::BlockWeights OpsOnCuda::blocks_weights(const ops::FfnWeights& first, const ops::FfnWeights& last,
                                                  int64_t n) {
  BlockWeights w{.dtype = first.gate.dtype(),
                 .gate = {},
                 .up = {},
                 .down = stacked_weights(first.down, last.down, n),
                 .gate_up = {.n = 0},
                 .d_hidden = first.gate.n()};
  if (const Matrix joined = joined_gate_up(first); !joined.empty()) {
    w.gate_up = stacked_weights(joined, joined_gate_up(last), n);
  } else {
    w.gate = stacked_weights(first.gate, last.gate, n);
    w.up = stacked_weights(first.up, last.up, n);
  }
  return w;
}

// silu(gate) * up, rounded for the down product.
cuda::QuantizedRows OpsOnCuda::hidden_rows(const ProductRows& x, const BlockWeights& w, float limit) {
  const int64_t f = w.d_hidden, n_rows = x.n_rows;
  std::byte *gate, *up;
  if (w.joined()) {
    gate = arena_.allocate_bytes(n_rows * 2 * f * 2), up = gate + f * 2;
    multiply(x, w.gate_up, gate, false);
  } else {
    gate = arena_.allocate_bytes(n_rows * f * 2), up = arena_.allocate_bytes(n_rows * f * 2);
    multiply(x, w.gate, gate, false);
    multiply(x, w.up, up, false);
  }
  const cuda::QuantizedRows out = allocate_rounded(w.dtype, n_rows, f);
  cuda::silu_mul_quantize({.gate = gate,
                           .up = up,
                           .ld = w.joined() ? 2 * f : f,
                           .limit = limit,
                           .out = out,
                           .n_tokens = x.n_rows,
                           .d_hidden = static_cast<int>(f),
                           .pdl = true},
                          stream_.handle());
  return out;
}

void OpsOnCuda::run_block(const ProductRows& x, const BlockWeights& w, float limit, void* out, bool out_is_f32) {
  ProductRows hidden = x;
  hidden.x = hidden_rows(x, w, limit);
  hidden.groups_settled = true;  // the product before the activation has read them
  multiply(hidden, w.down, out, out_is_f32);
}

void OpsOnCuda::run_ffn(const ops::Ffn& a) {
  const Scratch scratch(arena_);
  const int n_rows = static_cast<int>(a.x.dim(0));
  const BlockWeights w = block_weights(*a.weights);
  const ProductRows x{.x = round_input("ffn", a.x, w.dtype), .n_rows = n_rows, .rows_per_group = n_rows};
  const View out = dense_out(a.out);
  run_block(x, w, a.limit, dense_bytes("ffn", "out", out), true);
  finish(out, a.out);
}

// As many rows at a time as half of the scratch has room for: rounded inputs, gate and up, hidden values.
void OpsOnCuda::ffn(const ops::Ffn& a) {
  if (!is_packed(*a.weights) && !why_not_sm90(form_of(a)).empty()) return PlainCuda::ffn(a);
  const int64_t row_bytes = 12 * a.x.dim(1) + 6 * a.weights->gate.n() + 64;
  const int64_t step = std::clamp<int64_t>(scratch_bytes_ / 2 / row_bytes, 1, kMaxRows);
  for (int64_t t = 0; t < a.x.dim(0); t += step) {
    const int64_t n = std::min(step, a.x.dim(0) - t);
    run_ffn({.x = a.x.slice_first(t, n), .weights = a.weights, .limit = a.limit, .out = a.out.slice_first(t, n)});
  }
}

bool OpsOnCuda::takes_experts(const ops::ExpertFfn& a) {
  return a.stack != nullptr || why_not_sm90(form_of(a)).empty();
}

}  // namespace levin
