// cache_rows.h: a block a row.
#include "kernels/cuda/plain/cache_rows.h"
#include "kernels/cuda/plain/launch.cuh"
#include "kernels/cuda/plain/row_pieces.cuh"

namespace levin::cuda::plain {
namespace {

__global__ void append_latent_kernel(AppendLatent a) {
  follow_earlier_kernels();
  const int64_t t = blockIdx.x;
  std::byte* page = a.to.page(t);
  if (page == nullptr) return;
  store_latent(
      a.format, [&](int64_t i) { return a.c_kv[t * a.c_kv_ld + i]; },
      [&](int64_t i) { return a.k_rope[t * a.k_rope_ld + i]; }, page + a.to.row(t) * a.format.row_bytes);
}

__global__ void append_index_keys_kernel(AppendIndexKeys a) {
  follow_earlier_kernels();
  const int64_t t = blockIdx.x;
  std::byte* page = a.to.page(t);
  if (page == nullptr) return;
  store_index_key(a.format, [&](int64_t i) { return a.keys[t * a.keys_ld + i]; }, page, a.to.row(t));
}

}  // namespace

void append_latent(const AppendLatent& a, StreamHandle stream) {
  start(append_latent_kernel, {.x = a.n_rows}, stream, a);
}

void append_index_keys(const AppendIndexKeys& a, StreamHandle stream) {
  start(append_index_keys_kernel, {.x = a.n_rows}, stream, a);
}

}  // namespace levin::cuda::plain
