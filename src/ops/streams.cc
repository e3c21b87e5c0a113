#include "ops/streams.h"

#include <array>

#include "base/check.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/stream_weights.h"
#include "ops/check_view.h"
#include "ops/cuda_backend.h"
#include "ops/op_times.h"

namespace levin::ops {
namespace {

// [T, M, D] with the rows of a token side by side.
void check_streams(std::string_view op, const View& streams) {
  LEVIN_CHECK(streams.rank() == 3 && streams.dtype() == DType::kF32 && streams.stride(1) == streams.dim(2),
              "{}: streams is {}, expected f32 [T, M, D], a token's rows side by side", op, streams.describe());
  LEVIN_CHECK(streams.dim(1) >= 1 && streams.dim(1) <= kernels::kMaxStreams, "{}: {} streams, at most {} are possible",
              op, streams.dim(1), kernels::kMaxStreams);
}

}  // namespace

void stream_weights(OpContext& ctx, const StreamWeights& a) {
  const OpTimer timer(ctx, OpKind::kStreams);
  LEVIN_CHECK(a.read.rank() == 2, "stream_weights: read is {}, expected f32 [T, M]", a.read.describe());
  const int64_t n_rows = a.read.dim(0), n_streams = a.read.dim(1);
  const bool all = !a.write.empty();
  const int64_t n_outputs = all ? 2 * n_streams + n_streams * n_streams : n_streams;
  check_view({"stream_weights", "projected", a.projected}, DType::kF32, {n_rows, n_outputs});
  check_view({"stream_weights", "base", a.base}, DType::kF32, {n_outputs});
  check_view({"stream_weights", "scale", a.scale}, DType::kF32, {all ? 3 : 1});
  check_view({"stream_weights", "read", a.read}, DType::kF32, {n_rows, n_streams});
  if (all) {
    check_view({"stream_weights", "write", a.write}, DType::kF32, {n_rows, n_streams});
    check_view({"stream_weights", "mix", a.mix}, DType::kF32, {n_rows, n_streams, n_streams});
    LEVIN_CHECK(a.n_sinkhorn_steps >= 1, "stream_weights: n_sinkhorn_steps is {}", a.n_sinkhorn_steps);
  }
  if (ctx.device == Device::kCuda) return ctx.cuda->stream_weights(a);
  ctx.pool->parallel_for(n_rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      kernels::stream_weights({.projected = a.projected.row<float>(t),
                               .base = a.base.data<float>(),
                               .scale = a.scale.data<float>(),
                               .n_streams = n_streams,
                               .n_sinkhorn_steps = a.n_sinkhorn_steps,
                               .eps = a.eps,
                               .read = a.read.row<float>(t),
                               .write = all ? a.write.row<float>(t) : nullptr,
                               .mix = all ? a.mix.row<float>(t) : nullptr});
    }
  });
}

void read_streams(OpContext& ctx, const ReadStreams& a) {
  const OpTimer timer(ctx, OpKind::kStreams);
  check_streams("read_streams", a.streams);
  const int64_t n_rows = a.streams.dim(0), n_streams = a.streams.dim(1), d = a.streams.dim(2);
  check_view({"read_streams", "read", a.read}, DType::kF32, {n_rows, n_streams});
  check_view({"read_streams", "out", a.out}, DType::kF32, {n_rows, d});
  if (ctx.device == Device::kCuda) return ctx.cuda->read_streams(a);
  ctx.pool->parallel_for(n_rows, 1, [&](int64_t begin, int64_t end, int) {
    ctx.cpu->rows.read_streams({.streams = a.streams.row<float>(begin),
                                .streams_stride = a.streams.stride(0),
                                .read = a.read.row<float>(begin),
                                .read_stride = a.read.stride(0),
                                .out = a.out.row<float>(begin),
                                .out_stride = a.out.stride(0),
                                .n_rows = end - begin,
                                .n_streams = n_streams,
                                .d = d});
  });
}

void mean_streams(OpContext& ctx, const MeanStreams& a) {
  const OpTimer timer(ctx, OpKind::kStreams);
  LEVIN_CHECK(ctx.device == Device::kCpu, "mean_streams: there is no kernel for CUDA");
  check_streams("mean_streams", a.streams);
  const int64_t n_rows = a.streams.dim(0), n_streams = a.streams.dim(1), d = a.streams.dim(2);
  check_view({"mean_streams", "out", a.out}, DType::kF32, {n_rows, d});
  std::array<float, kernels::kMaxStreams> weights{};
  weights.fill(1 / static_cast<float>(n_streams));
  ctx.pool->parallel_for(n_rows, 1, [&](int64_t begin, int64_t end, int) {
    ctx.cpu->rows.read_streams({.streams = a.streams.row<float>(begin),
                                .streams_stride = a.streams.stride(0),
                                .read = weights.data(),
                                .read_stride = 0,  // the same for every row
                                .out = a.out.row<float>(begin),
                                .out_stride = a.out.stride(0),
                                .n_rows = end - begin,
                                .n_streams = n_streams,
                                .d = d});
  });
}

void write_streams(OpContext& ctx, const WriteStreams& a) {
  const OpTimer timer(ctx, OpKind::kStreams);
  check_streams("write_streams", a.streams);
  const int64_t n_rows = a.streams.dim(0), n_streams = a.streams.dim(1), d = a.streams.dim(2);
  check_view({"write_streams", "y", a.y}, DType::kF32, {n_rows, d});
  check_view({"write_streams", "write", a.write}, DType::kF32, {n_rows, n_streams});
  check_view({"write_streams", "mix", a.mix}, DType::kF32, {n_rows, n_streams, n_streams});
  if (ctx.device == Device::kCuda) return ctx.cuda->write_streams(a);
  ctx.pool->parallel_for(n_rows, 1, [&](int64_t begin, int64_t end, int) {
    ctx.cpu->rows.write_streams({.streams = a.streams.row<float>(begin),
                                 .streams_stride = a.streams.stride(0),
                                 .y = a.y.row<float>(begin),
                                 .y_stride = a.y.stride(0),
                                 .write = a.write.row<float>(begin),
                                 .write_stride = a.write.stride(0),
                                 .mix = a.mix.row<float>(begin),
                                 .mix_stride = a.mix.stride(0),
                                 .n_rows = end - begin,
                                 .n_streams = n_streams,
                                 .d = d});
  });
}

}  // namespace levin::ops
