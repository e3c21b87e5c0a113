// Residual streams, and entries pooled from windows.
#include "kernels/cuda/plain/pool_windows.h"
#include "kernels/cuda/plain/streams.h"
#include "ops/cuda/plain_cuda.h"
#include "ops/pool_windows.h"
#include "ops/streams.h"

namespace levin {
namespace {

namespace plain = cuda::plain;

plain::WindowTokens window_tokens(std::string_view op, const ops::WindowTokens& a) {
  return {.values = device_data<float>(op, "values", a.values),
          .values_ld = a.values.stride(0),
          .gates = device_data<float>(op, "gates", a.gates),
          .gates_ld = a.gates.stride(0),
          .first_row = dense_data<int32_t>(op, "first_row", a.first_row),
          .end_row = dense_data<int32_t>(op, "end_row", a.end_row),
          .first_position = dense_data<int32_t>(op, "first_position", a.first_position),
          .state = {.rings = a.state.rings,
                    .n_rows = a.state.n_rows,
                    .n_ends = a.state.n_ends,
                    .n_block_tokens = a.state.n_block_tokens,
                    .format = a.state.format,
                    .ids = dense_data<int32_t>(op, "state.ids", a.state.ids)}};
}

}  // namespace

void PlainCuda::stream_weights(const ops::StreamWeights& a) {
  constexpr std::string_view kOp = "stream_weights";
  plain::stream_weights({.projected = dense_data<float>(kOp, "projected", a.projected),
                         .base = dense_data<float>(kOp, "base", a.base),
                         .scale = dense_data<float>(kOp, "scale", a.scale),
                         .n_streams = a.read.dim(1),
                         .n_sinkhorn_steps = a.n_sinkhorn_steps,
                         .eps = a.eps,
                         .read = dense_data<float>(kOp, "read", a.read),
                         .write = optional_data<float>(kOp, "write", a.write),
                         .mix = optional_data<float>(kOp, "mix", a.mix),
                         .n_rows = a.read.dim(0)},
                        stream_.handle());
}

void PlainCuda::read_streams(const ops::ReadStreams& a) {
  plain::read_streams({.streams = dense_data<float>("read_streams", "streams", a.streams),
                       .read = dense_data<float>("read_streams", "read", a.read),
                       .out = device_data<float>("read_streams", "out", a.out),
                       .out_ld = a.out.stride(0),
                       .n_rows = a.streams.dim(0),
                       .n_streams = a.streams.dim(1),
                       .d = a.streams.dim(2)},
                      stream_.handle());
}

void PlainCuda::mean_streams(const ops::MeanStreams& a) {
  plain::read_streams({.streams = dense_data<float>("mean_streams", "streams", a.streams),
                       .read = nullptr,
                       .out = device_data<float>("mean_streams", "out", a.out),
                       .out_ld = a.out.stride(0),
                       .n_rows = a.streams.dim(0),
                       .n_streams = a.streams.dim(1),
                       .d = a.streams.dim(2)},
                      stream_.handle());
}

void PlainCuda::write_streams(const ops::WriteStreams& a) {
  plain::write_streams({.streams = dense_data<float>("write_streams", "streams", a.streams),
                        .y = device_data<float>("write_streams", "y", a.y),
                        .y_ld = a.y.stride(0),
                        .write = dense_data<float>("write_streams", "write", a.write),
                        .mix = dense_data<float>("write_streams", "mix", a.mix),
                        .n_rows = a.streams.dim(0),
                        .n_streams = a.streams.dim(1),
                        .d = a.streams.dim(2)},
                       stream_.handle());
}

void PlainCuda::pool_windows(const ops::PoolWindows& a) {
  constexpr std::string_view kOp = "pool_windows";
  plain::pool_windows({.tokens = window_tokens(kOp, a.tokens),
                       .bias = dense_data<float>(kOp, "bias", a.bias),
                       .ratio = a.bias.dim(0),
                       .overlap = a.overlap,
                       .first_token = a.first_token,
                       .seq = dense_data<int32_t>(kOp, "seq", a.seq),
                       .slot = dense_data<int32_t>(kOp, "slot", a.slot),
                       .out = device_data<float>(kOp, "out", a.out),
                       .out_ld = a.out.stride(0),
                       .n_entries = a.out.dim(0)},
                      stream_.handle());
}

void PlainCuda::keep_state(const ops::WindowTokens& a) {
  plain::keep_state({.tokens = window_tokens("keep_state", a),
                     .seq = dense_data<int32_t>("keep_state", "seq", a.seq),
                     .n_rows = a.values.dim(0)},
                    stream_.handle());
}

}  // namespace levin
