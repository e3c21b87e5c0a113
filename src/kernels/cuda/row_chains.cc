#include "kernels/cuda/row_chains.h"

#include <fmt/core.h>

#include <string_view>

#include "base/check.h"
#include "kernels/cuda/alignment.h"
#include "kernels/cuda/row_chains_launch.h"

namespace levin::cuda {
namespace {

void check_rows(std::string_view op, const InputRows& x) {
  LEVIN_CHECK(x.data != nullptr && aligned_16(x.data) && x.ld % 8 == 0, "{}: rows at {}, {} elements apart", op, x.data,
              x.ld);
}

void check_slots(std::string_view op, const CacheSlots& to, int64_t least_page_bytes) {
  LEVIN_CHECK(to.slot != nullptr && to.pages != nullptr && aligned_16(to.pages), "{}: no slots, or pages at {}", op,
              static_cast<const void*>(to.pages));
  LEVIN_CHECK(to.page_bytes >= least_page_bytes && to.page_bytes % 16 == 0, "{}: pages of {} bytes, rows need {}", op,
              to.page_bytes, least_page_bytes);
  LEVIN_CHECK(to.tables.data == nullptr || to.table_row != nullptr, "{}: tables without the rows of tokens", op);
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
  const std::string refused = chain_support({.d_model = a.d});
  LEVIN_CHECK(refused.empty(), "{}", refused);
  check_rows("norm_rows", a.x);
  LEVIN_CHECK(aligned_16(a.weight) && aligned_16(a.residual) && aligned_16(a.normed) && aligned_16(a.normed_f32),
              "norm_rows: weight, residual and normed must be 16-byte aligned");
  launch_norm_rows(a, stream);
}

void rotate_queries(const RotateQueries& a, StreamHandle stream) {
  if (a.n_tokens == 0) return;
  check_rows("rotate_queries", a.x);
  launch_rotate_queries(a, stream);
}

void write_latent(const WriteLatent& a, StreamHandle stream) {
  if (a.n_tokens == 0) return;
  check_rows("write_latent", a.x);
  check_slots("write_latent", a.to, int64_t{kIndexPageTokens} * (a.format == LatentRows::kFp8 ? 656 : 1152));
  LEVIN_CHECK(aligned_16(a.weight), "write_latent: weight must be 16-byte aligned");
  launch_write_latent(a, stream);
}

void index_queries(const IndexQueries& a, StreamHandle stream) {
  if (a.n_tokens == 0) return;
  check_rows("index_queries", a.x);
  LEVIN_CHECK(a.w != nullptr && aligned_16(a.codes), "index_queries: no head weights, or codes at {}",
              static_cast<const void*>(a.codes));
  launch_index_queries(a, stream);
}

void write_index_keys(const WriteIndexKeys& a, StreamHandle stream) {
  if (a.n_tokens == 0) return;
  check_rows("write_index_keys", a.x);
  check_slots("write_index_keys", a.to, int64_t{kIndexPageTokens} * (kIndexWidth + 4));
  LEVIN_CHECK(aligned_16(a.weight) && aligned_16(a.bias), "write_index_keys: weight and bias must be 16-byte aligned");
  launch_write_index_keys(a, stream);
}

}  // namespace levin::cuda
