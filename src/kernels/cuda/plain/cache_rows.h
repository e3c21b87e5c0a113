// New rows of the paged caches. Contract: ops/cache_rows.h. A token with slot < 0 writes nothing.
#pragma once

#include <cstdint>

#include "kernels/cuda/plain/paged_cache.h"

namespace levin::cuda::plain {

// Where a step's tokens go.
struct CacheSlots {
  const int32_t* seq = nullptr;   // [T], row of cache.tables
  const int32_t* slot = nullptr;  // [T]
  PagedCache cache;

  // The page of row t's slot; null: nothing is to be written.
  LEVIN_HOST_DEVICE std::byte* page(int64_t t) const { return slot[t] < 0 ? nullptr : cache.page(seq[t], slot[t]); }
  LEVIN_HOST_DEVICE int64_t row(int64_t t) const { return slot[t] % kPageTokens; }
};

struct AppendLatent {
  const float* c_kv = nullptr;  // [T, Rk], rows c_kv_ld apart
  int64_t c_kv_ld = 0;
  const float* k_rope = nullptr;  // [T, Dr], rows k_rope_ld apart
  int64_t k_rope_ld = 0;
  LatentFormat format;
  CacheSlots to;
  int64_t n_rows = 0;
};
void append_latent(const AppendLatent& a, StreamHandle stream);

struct AppendIndexKeys {
  const float* keys = nullptr;  // [T, Di], rows keys_ld apart
  int64_t keys_ld = 0;
  IndexKeyFormat format;
  CacheSlots to;
  int64_t n_rows = 0;
};
void append_index_keys(const AppendIndexKeys& a, StreamHandle stream);

}  // namespace levin::cuda::plain
