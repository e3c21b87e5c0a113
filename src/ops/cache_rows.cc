#include "ops/cache_rows.h"

#include "base/check.h"
#include "ops/backend.h"
#include "ops/check_view.h"
#include "ops/op_times.h"

namespace levin::ops {

void append_latent(OpContext& ctx, const AppendLatent& a) {
  const OpTimer timer(ctx, OpKind::kCacheRows);
  LEVIN_CHECK(a.slot.rank() == 1, "append_latent: slot is {}, expected i32 [T]", a.slot.describe());
  const int64_t n_rows = a.slot.dim(0);
  check_view({"append_latent", "c_kv", a.c_kv}, DType::kF32, {n_rows, a.format.d_latent});
  check_view({"append_latent", "k_rope", a.k_rope}, DType::kF32, {n_rows, a.format.d_rope});
  check_view({"append_latent", "seq", a.seq}, DType::kI32, {n_rows});
  check_view({"append_latent", "slot", a.slot}, DType::kI32, {n_rows});
  check_cache("append_latent", a.cache, a.format.page_bytes());
  ctx.backend->append_latent(a);
}

void append_index_keys(OpContext& ctx, const AppendIndexKeys& a) {
  const OpTimer timer(ctx, OpKind::kCacheRows);
  LEVIN_CHECK(a.slot.rank() == 1, "append_index_keys: slot is {}, expected i32 [T]", a.slot.describe());
  const int64_t n_rows = a.slot.dim(0);
  check_view({"append_index_keys", "keys", a.keys}, DType::kF32, {n_rows, a.format.d_index});
  check_view({"append_index_keys", "seq", a.seq}, DType::kI32, {n_rows});
  check_view({"append_index_keys", "slot", a.slot}, DType::kI32, {n_rows});
  check_cache("append_index_keys", a.cache, a.format.page_bytes());
  ctx.backend->append_index_keys(a);
}

}  // namespace levin::ops
