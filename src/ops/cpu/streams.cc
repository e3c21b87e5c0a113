#include "ops/streams.h"

#include <array>

#include "base/check.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/stream_weights.h"
#include "ops/cpu/row_loops.h"
#include "ops/cpu_backend.h"

namespace levin {

void CpuBackend::stream_weights(const ops::StreamWeights& a) {
  const int64_t n_rows = a.read.dim(0), n_streams = a.read.dim(1);
  const bool all = !a.write.empty();
  pool_.parallel_for(n_rows, 1, [&](int64_t begin, int64_t end, int) {
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

void CpuBackend::read_streams(const ops::ReadStreams& a) {
  const int64_t n_rows = a.streams.dim(0), n_streams = a.streams.dim(1), d = a.streams.dim(2);
  pool_.parallel_for(n_rows, 1, [&](int64_t begin, int64_t end, int) {
    kernels_.rows.read_streams({.streams = a.streams.row<float>(begin),
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

void CpuBackend::mean_streams(const ops::MeanStreams& a) {
  const int64_t n_rows = a.streams.dim(0), n_streams = a.streams.dim(1), d = a.streams.dim(2);
  std::array<float, kernels::kMaxStreams> weights{};
  weights.fill(1 / static_cast<float>(n_streams));
  pool_.parallel_for(n_rows, 1, [&](int64_t begin, int64_t end, int) {
    kernels_.rows.read_streams({.streams = a.streams.row<float>(begin),
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

void CpuBackend::write_streams(const ops::WriteStreams& a) {
  const int64_t n_rows = a.streams.dim(0), n_streams = a.streams.dim(1), d = a.streams.dim(2);
  pool_.parallel_for(n_rows, 1, [&](int64_t begin, int64_t end, int) {
    kernels_.rows.write_streams({.streams = a.streams.row<float>(begin),
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

}  // namespace levin
