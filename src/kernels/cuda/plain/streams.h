// The residual streams of DeepSeek-V4 and GLM-5.3-Flash. Contracts and trees: ops/streams.h. At most kMaxStreams streams.
#pragma once

#include <cstdint>

#include "kernels/cuda/plain/paged_cache.h"

namespace levin::cuda::plain {

struct StreamWeights {
  const float* projected = nullptr;  // [T, 2M + M^2], or [T, M] for read weights alone; dense
  const float* base = nullptr;       // [2M + M^2], or [M]
  const float* scale = nullptr;      // [3], or [1]
  int64_t n_streams = 0;             // M
  int n_sinkhorn_steps = 0;
  float eps = 0;
  float* read = nullptr;   // [T, M], dense
  float* write = nullptr;  // [T, M], dense; null: read weights alone
  float* mix = nullptr;    // [T, M, M], dense
  int64_t n_rows = 0;
};
void stream_weights(const StreamWeights& a, StreamHandle stream);

struct ReadStreams {
  const float* streams = nullptr;  // [T, M, D], dense
  const float* read = nullptr;     // [T, M], dense; null: 1/M, the mean
  float* out = nullptr;            // [T, D], rows out_ld apart
  int64_t out_ld = 0;
  int64_t n_rows = 0;
  int64_t n_streams = 0;
  int64_t d = 0;
};
void read_streams(const ReadStreams& a, StreamHandle stream);

struct WriteStreams {
  float* streams = nullptr;  // [T, M, D], dense, updated
  const float* y = nullptr;  // [T, D], rows y_ld apart
  int64_t y_ld = 0;
  const float* write = nullptr;  // [T, M], dense
  const float* mix = nullptr;    // [T, M, M], dense
  int64_t n_rows = 0;
  int64_t n_streams = 0;
  int64_t d = 0;
};
void write_streams(const WriteStreams& a, StreamHandle stream);

}  // namespace levin::cuda::plain
