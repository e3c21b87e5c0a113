#include "kernels/cuda/rows/row_chains.h"

#include <fmt/core.h>

#include <string_view>

#include "base/check.h"
#include "kernels/cuda/prims/alignment.h"
#include "kernels/cuda/rows/row_chains_launch.h"

namespace levin::cuda {
namespace {

// Of rows that are loaded 16 bytes at a time, or 8 of bf16.
void check_rows(std::string_view op, const InputRows& x) {
  LEVIN_CHECK(x.data != nullptr && aligned_16(x.data) && x.ld * (x.is_f32 ? 4 : 2) % 16 == 0,
              "{}: rows at {}, {} elements apart", op, x.data, x.ld);
}

void check_slots(std::string_view op, const CacheSlots& to, int64_t least_page_bytes) {
  LEVIN_CHECK(to.slot != nullptr && to.pages != nullptr && aligned_16(to.pages), "{}: no slots, or pages at {}", op,
              static_cast<const void*>(to.pages));
  LEVIN_CHECK(to.page_bytes >= least_page_bytes && to.page_bytes % 16 == 0, "{}: pages of {} bytes, rows need {}", op,
              to.page_bytes, least_page_bytes);
  LEVIN_CHECK(to.tables.data == nullptr || to.table_row != nullptr, "{}: tables without the rows of tokens", op);
}

void check(const NormRows& a) {
  const std::string refused = chain_support({.d_model = a.d});
  LEVIN_CHECK(refused.empty(), "{}", refused);
  check_rows("norm_rows", a.x);
  LEVIN_CHECK(aligned_16(a.weight) && aligned_16(a.residual) && aligned_16(a.normed) && aligned_16(a.normed_f32),
              "norm_rows: weight, residual and normed must be 16-byte aligned");
}

void check(const RotateQueries& a) { LEVIN_CHECK(a.x.data != nullptr, "rotate_queries: no rows"); }

void check(const WriteLatent& a) {
  check_rows("write_latent", a.x);
  check_slots("write_latent", a.to, int64_t{kIndexPageTokens} * (a.format == LatentRows::kFp8 ? 656 : 1152));
  LEVIN_CHECK(aligned_16(a.weight), "write_latent: weight must be 16-byte aligned");
}

void check(const IndexQueries& a) {
  check_rows("index_queries", a.x);
  LEVIN_CHECK(a.w != nullptr && aligned_16(a.codes), "index_queries: no head weights, or codes at {}",
              static_cast<const void*>(a.codes));
}

void check(const WriteIndexKeys& a) {
  check_rows("write_index_keys", a.x);
  check_slots("write_index_keys", a.to, int64_t{kIndexPageTokens} * (kIndexWidth + 4));
  LEVIN_CHECK(aligned_16(a.weight) && aligned_16(a.bias), "write_index_keys: weight and bias must be 16-byte aligned");
}

}  // namespace

std::string chain_support(const ChainWidths& widths) {
  if (widths.d_model < 16 || widths.d_model > kMaxNormWidth || widths.d_model % 16 != 0)
    return fmt::format("rows on CUDA are a multiple of 16 up to {} wide, not {}", kMaxNormWidth, widths.d_model);
  if (widths.d_latent != kLatentWidth || widths.d_rope != kRopeWidth)
    return fmt::format("cache rows on CUDA have latent width {} and rope width {}, not {} and {}", kLatentWidth,
                       kRopeWidth, widths.d_latent, widths.d_rope);
  if (widths.d_index != kIndexWidth)
    return fmt::format("index heads on CUDA are {} wide, not {}", kIndexWidth, widths.d_index);
  return {};
}

void norm_rows(const NormRows& a, StreamHandle stream) {
  if (a.n_tokens == 0) return;
  check(a);
  launch_norm_rows(a, stream);
}

void rotate_queries(const RotateQueries& a, StreamHandle stream) {
  if (a.n_tokens == 0) return;
  check(a);
  launch_rotate_queries(a, stream);
}

void write_latent(const WriteLatent& a, StreamHandle stream) {
  if (a.n_tokens == 0) return;
  check(a);
  launch_write_latent(a, stream);
}

void index_queries(const IndexQueries& a, StreamHandle stream) {
  if (a.n_tokens == 0) return;
  check(a);
  launch_index_queries(a, stream);
}

void write_index_keys(const WriteIndexKeys& a, StreamHandle stream) {
  if (a.n_tokens == 0) return;
  check(a);
  launch_write_index_keys(a, stream);
}

void norm_and_append(const NormAndAppend& a, StreamHandle stream) {
  const int n_tokens = a.norm.n_tokens;
  if (n_tokens == 0) return;
  check(a.norm);
  check(a.latent);
  if (a.keys.n_tokens > 0) check(a.keys);
  LEVIN_CHECK(a.norm.d <= kMaxSharedNormWidth, "norm_and_append: norms of rows up to {} wide, not {}",
              kMaxSharedNormWidth, a.norm.d);
  const FewOutputs& product = a.product;
  LEVIN_CHECK(product.n_tokens <= kMaxFewOutputsTokens && product.k <= kMaxFewOutputsK && product.k % 128 == 0,
              "norm_and_append: a product of {} rows of {}", product.n_tokens, product.k);
  LEVIN_CHECK(aligned_16(product.x) && aligned_16(product.w) && product.x_ld % 4 == 0,
              "norm_and_append: a product of rows {} apart, or not 16-byte aligned", product.x_ld);
  LEVIN_CHECK(a.latent.n_tokens == n_tokens && (a.keys.n_tokens == 0 || a.keys.n_tokens == n_tokens),
              "norm_and_append: {} rows to norm, {} latent rows, {} index keys", n_tokens, a.latent.n_tokens,
              a.keys.n_tokens);
  launch_norm_and_append(a, stream);
}

void attention_queries(const AttentionQueries& a, StreamHandle stream) {
  if (a.rotate.n_tokens == 0) return;
  check(a.rotate);
  check(a.index);
  LEVIN_CHECK(a.rotate.n_tokens == a.index.n_tokens, "attention_queries: {} tokens to rotate, {} to score by",
              a.rotate.n_tokens, a.index.n_tokens);
  launch_attention_queries(a, stream);
}

}  // namespace levin::cuda
