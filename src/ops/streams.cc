#include "ops/streams.h"

#include <array>

#include "base/check.h"
#include "kernels/cpu/rows.h"
#include "ops/backend.h"
#include "ops/check_view.h"
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
  ctx.backend->stream_weights(a);
}

void read_streams(OpContext& ctx, const ReadStreams& a) {
  const OpTimer timer(ctx, OpKind::kStreams);
  check_streams("read_streams", a.streams);
  const int64_t n_rows = a.streams.dim(0), n_streams = a.streams.dim(1), d = a.streams.dim(2);
  check_view({"read_streams", "read", a.read}, DType::kF32, {n_rows, n_streams});
  check_view({"read_streams", "out", a.out}, DType::kF32, {n_rows, d});
  ctx.backend->read_streams(a);
}

void mean_streams(OpContext& ctx, const MeanStreams& a) {
  const OpTimer timer(ctx, OpKind::kStreams);
  check_streams("mean_streams", a.streams);
  check_view({"mean_streams", "out", a.out}, DType::kF32, {a.streams.dim(0), a.streams.dim(2)});
  ctx.backend->mean_streams(a);
}

void write_streams(OpContext& ctx, const WriteStreams& a) {
  const OpTimer timer(ctx, OpKind::kStreams);
  check_streams("write_streams", a.streams);
  const int64_t n_rows = a.streams.dim(0), n_streams = a.streams.dim(1), d = a.streams.dim(2);
  check_view({"write_streams", "y", a.y}, DType::kF32, {n_rows, d});
  check_view({"write_streams", "write", a.write}, DType::kF32, {n_rows, n_streams});
  check_view({"write_streams", "mix", a.mix}, DType::kF32, {n_rows, n_streams, n_streams});
  ctx.backend->write_streams(a);
}

}  // namespace levin::ops
