// Writes new rows into the paged caches, rounding to the cache's format (tensor/row_formats.h). Attention and indexer read
// keys only from these rows, also for tokens of the same step.
//
// A token is written to page slot[t] / 64, row slot[t] mod 64 of its sequence; slot < 0 writes nothing (padding).
#pragma once

#include "ops/context.h"
#include "tensor/formats.h"

namespace levin::ops {

struct AppendLatent {
  View c_kv;    // [T, Rk] f32, normed latent
  View k_rope;  // [T, Dr] f32, rotated
  View seq;     // [T] i32, row of cache.tables
  View slot;    // [T] i32
  LatentFormat format;
  PagedRows cache;
};
void append_latent(OpContext& ctx, const AppendLatent& a);

struct AppendIndexKeys {
  View keys;  // [T, Di] f32, rotated (and Hadamard-rotated where the numerics say so)
  View seq;   // [T] i32
  View slot;  // [T] i32
  IndexKeyFormat format;
  PagedRows cache;
};
void append_index_keys(OpContext& ctx, const AppendIndexKeys& a);

}  // namespace levin::ops
