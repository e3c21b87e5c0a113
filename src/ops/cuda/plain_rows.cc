// Row work: embedding, norms, sums, rotation, rounding, choices.
#include "base/check.h"
#include "kernels/cuda/plain/copies.h"
#include "kernels/cuda/plain/quantize.h"
#include "kernels/cuda/plain/row_chains.h"
#include "kernels/cuda/plain/rows.h"
#include "kernels/cuda/plain/sampling.h"
#include "ops/copies.h"
#include "ops/cuda/plain_cuda.h"
#include "ops/logits.h"
#include "ops/norm.h"
#include "ops/quantize.h"
#include "ops/row_chains.h"

namespace levin {
namespace {

namespace plain = cuda::plain;

plain::ChainInput chain_input(std::string_view op, const View& x) {
  return {.x = device_bytes(op, "x", x), .dtype = x.dtype(), .ld = x.stride(0)};
}

plain::Rotation chain_rotation(std::string_view op, const ops::Rotation& r) {
  return plain_rotation(op, r.cos, r.sin, r.pairing);
}

plain::CacheSlots chain_slots(std::string_view op, const View& seq, const View& slot, const PagedRows& cache) {
  return {.seq = dense_data<int32_t>(op, "seq", seq),
          .slot = dense_data<int32_t>(op, "slot", slot),
          .cache = plain_cache(op, cache)};
}

}  // namespace

void PlainCuda::embed(const ops::Embed& a) {
  plain::embed({.ids = dense_data<int32_t>("embed", "ids", a.ids),
                .table = dense_bytes("embed", "table", a.table),
                .table_dtype = a.table.dtype(),
                .out = device_data<float>("embed", "out", a.out),
                .out_ld = a.out.stride(0),
                .n_rows = a.ids.dim(0),
                .d = a.table.dim(1)},
               stream_.handle());
}

void PlainCuda::argmax(const ops::Argmax& a) {
  plain::argmax({.logits = {.x = device_data<float>("argmax", "x", a.x),
                            .ld = a.x.stride(0),
                            .n_rows = a.x.dim(0),
                            .n_vocab = a.x.dim(1)},
                 .out = dense_data<int32_t>("argmax", "out", a.out)},
                stream_.handle());
}

void PlainCuda::choose_tokens(const ops::ChooseTokens& a) {
  constexpr std::string_view kOp = "choose_tokens";
  const ArenaScope scope(arena());
  const int64_t n_part_bytes = a.x.dim(0) * plain::kChoiceParts * static_cast<int64_t>(sizeof(plain::ChoicePart));
  plain::choose_tokens({.logits = {.x = device_data<float>(kOp, "x", a.x),
                                   .ld = a.x.stride(0),
                                   .n_rows = a.x.dim(0),
                                   .n_vocab = a.x.dim(1)},
                        .rules = reinterpret_cast<const ChoiceRule*>(dense_data<int32_t>(kOp, "rules", a.rules)),
                        .out = reinterpret_cast<ChosenToken*>(dense_data<int32_t>(kOp, "out", a.out)),
                        .parts = reinterpret_cast<plain::ChoicePart*>(arena().allocate_bytes(n_part_bytes))},
                       stream_.handle());
}

void PlainCuda::rms_norm(const ops::RmsNorm& a) {
  plain::rms_norm({.x = device_data<float>("rms_norm", "x", a.x),
                   .x_ld = a.x.stride(0),
                   .weight = optional_data<float>("rms_norm", "weight", a.weight),
                   .eps = a.eps,
                   .out = device_data<float>("rms_norm", "out", a.out),
                   .out_ld = a.out.stride(0),
                   .n_rows = a.x.dim(0),
                   .d = a.x.dim(1)},
                  stream_.handle());
}

void PlainCuda::layer_norm(const ops::LayerNorm& a) {
  plain::layer_norm({.x = device_data<float>("layer_norm", "x", a.x),
                     .x_ld = a.x.stride(0),
                     .weight = dense_data<float>("layer_norm", "weight", a.weight),
                     .bias = dense_data<float>("layer_norm", "bias", a.bias),
                     .eps = a.eps,
                     .out = device_data<float>("layer_norm", "out", a.out),
                     .out_ld = a.out.stride(0),
                     .n_rows = a.x.dim(0),
                     .d = a.x.dim(1)},
                    stream_.handle());
}

void PlainCuda::add_into(const ops::AddInto& a) {
  plain::add_into({.x = device_data<float>("add_into", "x", a.x),
                   .x_ld = a.x.stride(0),
                   .y = device_data<float>("add_into", "y", a.y),
                   .y_ld = a.y.stride(0),
                   .n_rows = a.x.dim(0),
                   .d = a.x.dim(1)},
                  stream_.handle());
}

void PlainCuda::rope(const ops::Rope& a) {
  plain::rope({.x = device_data<float>("rope", "x", a.x),
               .x_ld = a.x.stride(0),
               .head_ld = a.x.stride(1),
               .rotation = plain_rotation("rope", a.cos, a.sin, a.pairing),
               .n_rows = a.x.dim(0),
               .n_heads = a.x.dim(1),
               .d = a.x.dim(2)},
              stream_.handle());
}

void PlainCuda::rope_table(const ops::RopeTable& a) {
  LEVIN_CHECK(a.cos.stride(0) == a.sin.stride(0), "rope_table: cos is {}, sin {}, with rows at other strides",
              a.cos.describe(), a.sin.describe());
  plain::rope_table({.positions = dense_data<int32_t>("rope_table", "positions", a.positions),
                     .frequencies = frequencies_on_device(*a.frequencies),
                     .cos = device_data<float>("rope_table", "cos", a.cos),
                     .sin = device_data<float>("rope_table", "sin", a.sin),
                     .ld = a.cos.stride(0),
                     .n_rows = a.positions.dim(0),
                     .n_pairs = std::ssize(*a.frequencies)},
                    stream_.handle());
}

void PlainCuda::round_to_bf16(const ops::RoundToBf16& a) {
  plain::round_to_bf16({.x = device_data<float>("round_to_bf16", "x", a.x),
                        .x_ld = a.x.stride(0),
                        .out = device_data<uint16_t>("round_to_bf16", "out", a.out),
                        .out_ld = a.out.stride(0),
                        .n_rows = a.x.dim(0),
                        .k = a.x.dim(1)},
                       stream_.handle());
}

void PlainCuda::quantize_fp8(const ops::QuantizeFp8& a) {
  LEVIN_CHECK(!a.scale_by_block, "quantize_fp8: {} with scales by block", a.x.describe());
  plain::QuantizeFp8 rows{.x = device_data<float>("quantize_fp8", "x", a.x),
                          .x_ld = a.x.stride(0),
                          .out_ld = a.out.stride(0),
                          .n_rows = a.x.dim(0),
                          .k = a.x.dim(1)};
  if (a.out.dtype() == DType::kBF16) {
    rows.values = device_data<uint16_t>("quantize_fp8", "out", a.out);
  } else {
    rows.codes = device_data<uint8_t>("quantize_fp8", "out", a.out);
    rows.scale = device_data<float>("quantize_fp8", "scale", a.scale);
    rows.scale_ld = a.scale.stride(0);
  }
  plain::quantize_fp8(rows, stream_.handle());
}

void PlainCuda::round_to_fp4(const ops::RoundToFp4& a) {
  plain::round_to_fp4(
      {.x = device_data<float>("round_to_fp4", "x", a.x), .x_ld = a.x.stride(0), .n_rows = a.x.dim(0), .k = a.x.dim(1)},
      stream_.handle());
}

void PlainCuda::hadamard(const ops::Hadamard& a) {
  plain::hadamard({.x = device_data<float>("hadamard", "x", a.x),
                   .x_ld = a.x.stride(0),
                   .head_ld = a.x.stride(1),
                   .n_rows = a.x.dim(0),
                   .n_heads = a.x.dim(1),
                   .d = a.x.dim(2)},
                  stream_.handle());
}

// i32 as f32: a copy looks at no value.
void PlainCuda::copy_rows(const ops::CopyRows& a) {
  constexpr std::string_view kOp = "copy_rows";
  plain::copy_rows({.x = reinterpret_cast<const float*>(device_bytes(kOp, "x", a.x)),
                    .x_ld = a.x.stride(0),
                    .rows = optional_data<int32_t>(kOp, "rows", a.rows),
                    .repeat = a.repeat,
                    .out = reinterpret_cast<float*>(device_bytes(kOp, "out", a.out)),
                    .out_ld = a.out.stride(0),
                    .n_rows = a.out.dim(0),
                    .d = a.out.dim(1)},
                   stream_.handle());
}

void PlainCuda::scale_rows(const ops::ScaleRows& a) {
  constexpr std::string_view kOp = "scale_rows";
  plain::scale_rows({.x = device_data<float>(kOp, "x", a.x),
                     .x_ld = a.x.stride(0),
                     .factor = a.factor,
                     .scale = optional_data<float>(kOp, "scale", a.scale),
                     .out = device_data<float>(kOp, "out", a.out),
                     .out_ld = a.out.stride(0),
                     .n_rows = a.x.dim(0),
                     .d = a.x.dim(1)},
                    stream_.handle());
}

void PlainCuda::mark_unusable(const ops::MarkUnusable& a) {
  plain::mark_unusable({.x = device_data<float>("mark_unusable", "x", a.x),
                        .x_ld = a.x.stride(0),
                        .fault = dense_data<int32_t>("mark_unusable", "faults", a.faults),
                        .n_rows = a.x.dim(0),
                        .d = a.x.dim(1)},
                       stream_.handle());
}

// ---- chains ----

void PlainCuda::norm_rows(const ops::NormRows& a) {
  const bool to_f32 = !a.normed.empty() && a.normed.dtype() == DType::kF32;
  if (to_f32 || a.weight.empty() || a.scale_by_block) return Backend::norm_rows(a);
  constexpr std::string_view kOp = "norm_rows";
  plain::norm_rows({.x = chain_input(kOp, a.x),
                    .residual = a.residual.empty() ? nullptr : device_data<float>(kOp, "residual", a.residual),
                    .residual_ld = a.residual.empty() ? 0 : a.residual.stride(0),
                    .weight = dense_data<float>(kOp, "weight", a.weight),
                    .eps = a.eps,
                    .normed = optional_data<uint16_t>(kOp, "normed", a.normed),
                    .codes = optional_data<uint8_t>(kOp, "codes", a.codes),
                    .scale = optional_data<float>(kOp, "scale", a.scale),
                    .n_rows = a.x.dim(0),
                    .d = a.x.dim(1)},
                   stream_.handle());
}

void PlainCuda::rotate_queries(const ops::RotateQueries& a) {
  if (a.out.dtype() == DType::kF32) return Backend::rotate_queries(a);
  constexpr std::string_view kOp = "rotate_queries";
  plain::rotate_queries({.x = chain_input(kOp, a.x),
                         .head_ld = a.x.stride(1),
                         .rotation = chain_rotation(kOp, a.rotation),
                         .out = dense_data<uint16_t>(kOp, "out", a.out),
                         .n_rows = a.x.dim(0),
                         .n_heads = a.x.dim(1),
                         .d = a.x.dim(2)},
                        stream_.handle());
}

void PlainCuda::write_latent(const ops::WriteLatent& a) {
  if (a.weight.empty() || a.weight.dim(0) != a.format.d_latent || a.format.d_rope == 0) return Backend::write_latent(a);
  constexpr std::string_view kOp = "write_latent";
  plain::write_latent({.x = chain_input(kOp, a.x),
                       .weight = dense_data<float>(kOp, "weight", a.weight),
                       .eps = a.eps,
                       .rotation = chain_rotation(kOp, a.rotation),
                       .format = a.format,
                       .to = chain_slots(kOp, a.seq, a.slot, a.cache),
                       .n_rows = a.x.dim(0)},
                      stream_.handle());
}

void PlainCuda::index_queries(const ops::IndexQueries& a) {
  if (a.q.dtype() != DType::kF8E4M3 || a.rope_column != 0 || a.fp4 || a.rotation.cos.empty())
    return Backend::index_queries(a);
  constexpr std::string_view kOp = "index_queries";
  LEVIN_CHECK(a.x.stride(1) == a.x.dim(2), "{}: x is {}, heads side by side are expected", kOp, a.x.describe());
  plain::index_queries({.x = chain_input(kOp, a.x),
                        .w = device_data<float>(kOp, "w", a.w),
                        .w_ld = a.w.stride(0),
                        .factor = a.factor,
                        .rotation = chain_rotation(kOp, a.rotation),
                        .d_rope = 2 * a.rotation.cos.dim(1),
                        .hadamard = a.hadamard,
                        .codes = dense_data<uint8_t>(kOp, "q", a.q),
                        .weights = dense_data<float>(kOp, "weights", a.weights),
                        .n_rows = a.x.dim(0),
                        .n_heads = a.x.dim(1),
                        .d = a.x.dim(2)},
                       stream_.handle());
}

void PlainCuda::write_index_keys(const ops::WriteIndexKeys& a) {
  const bool waits_in_shared_memory = a.format.d_index <= plain::kMaxIndexWidth;
  if (a.bias.empty() || a.rope_column != 0 || a.fp4 || a.rotation.cos.empty() || !waits_in_shared_memory)
    return Backend::write_index_keys(a);
  constexpr std::string_view kOp = "write_index_keys";
  plain::write_index_keys({.x = chain_input(kOp, a.x),
                           .weight = dense_data<float>(kOp, "weight", a.weight),
                           .bias = dense_data<float>(kOp, "bias", a.bias),
                           .eps = a.eps,
                           .rotation = chain_rotation(kOp, a.rotation),
                           .d_rope = 2 * a.rotation.cos.dim(1),
                           .hadamard = a.hadamard,
                           .format = a.format,
                           .to = chain_slots(kOp, a.seq, a.slot, a.cache),
                           .n_rows = a.x.dim(0)},
                          stream_.handle());
}

}  // namespace levin
