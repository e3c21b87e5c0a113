// Linear attention: the short convolution, the delta rule and its output gate.
#include "kernels/cuda/plain/linear_attention.h"
#include "ops/cuda/plain_cuda.h"
#include "ops/linear_attention.h"

namespace levin {
namespace {

namespace plain = cuda::plain;

plain::RecurrentTokens recurrent_tokens(std::string_view op, const ops::RecurrentTokens& a) {
  return {.first_row = dense_data<int32_t>(op, "first_row", a.first_row),
          .end_row = dense_data<int32_t>(op, "end_row", a.end_row),
          .first_position = dense_data<int32_t>(op, "first_position", a.first_position),
          .n_seqs = a.first_row.dim(0),
          .rings = {.rings = a.rings.rings,
                    .n_undone = a.rings.n_undone,
                    .n_ends = a.rings.n_ends,
                    .n_block_tokens = a.rings.n_block_tokens,
                    .format = a.rings.format,
                    .ids = dense_data<int32_t>(op, "rings.ids", a.rings.ids)}};
}

}  // namespace

void PlainCuda::short_conv(const ops::ShortConv& a) {
  constexpr std::string_view kOp = "short_conv";
  plain::short_conv({.x = device_data<float>(kOp, "x", a.x),
                     .x_ld = a.x.stride(0),
                     .weight = dense_data<float>(kOp, "weight", a.weight),
                     .tokens = recurrent_tokens(kOp, a.tokens),
                     .first_channel = a.first_channel,
                     .out = device_data<float>(kOp, "out", a.out),
                     .out_ld = a.out.stride(0),
                     .n_rows = a.x.dim(0),
                     .n_channels = a.x.dim(1)},
                    stream_.handle());
}

void PlainCuda::delta_rule(const ops::DeltaRule& a) {
  constexpr std::string_view kOp = "delta_rule";
  plain::delta_rule({.q = device_data<float>(kOp, "q", a.q),
                     .k = device_data<float>(kOp, "k", a.k),
                     .v = device_data<float>(kOp, "v", a.v),
                     .decay = device_data<float>(kOp, "decay", a.decay),
                     .q_ld = a.q.stride(0),
                     .k_ld = a.k.stride(0),
                     .v_ld = a.v.stride(0),
                     .decay_ld = a.decay.stride(0),
                     .decay_bias = dense_data<float>(kOp, "decay_bias", a.decay_bias),
                     .log_rate = dense_data<float>(kOp, "log_rate", a.log_rate),
                     .lower = a.lower,
                     .beta = device_data<float>(kOp, "beta", a.beta),
                     .beta_ld = a.beta.stride(0),
                     .tokens = recurrent_tokens(kOp, a.tokens),
                     .out = device_data<float>(kOp, "out", a.out),
                     .out_ld = a.out.stride(0),
                     .n_rows = a.q.dim(0)},
                    stream_.handle());
}

void PlainCuda::sigmoid_mul(const ops::SigmoidMul& a) {
  constexpr std::string_view kOp = "sigmoid_mul";
  plain::sigmoid_mul({.x = device_data<float>(kOp, "x", a.x),
                      .x_ld = a.x.stride(0),
                      .gate = device_data<float>(kOp, "gate", a.gate),
                      .gate_ld = a.gate.stride(0),
                      .out = device_data<float>(kOp, "out", a.out),
                      .out_ld = a.out.stride(0),
                      .n_rows = a.x.dim(0),
                      .d = a.x.dim(1)},
                     stream_.handle());
}

}  // namespace levin
