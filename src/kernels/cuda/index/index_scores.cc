#include "kernels/cuda/index/index_scores.h"

#include <cuda.h>
#include <fmt/core.h>

#include "base/check.h"
#include "kernels/cuda/index/index_plan_launch.h"
#include "kernels/cuda/index/index_scores_launch.h"
#include "kernels/cuda/prims/alignment.h"
#include "kernels/cuda/prims/tensor_map.h"

namespace levin::cuda {
namespace {

constexpr int64_t kIndexPageBytes = kIndexPageTokens * (kIndexWidth + 4);

void check_shape(const IndexShape& s) {
  LEVIN_CHECK(s.n_requests >= 0 && s.n_tokens >= 1 && s.n_tokens <= kMaxQueryTokens && s.n_blocks >= 1,
              "index shape: {} requests of {} tokens over {} blocks", s.n_requests, s.n_tokens, s.n_blocks);
  LEVIN_CHECK(s.max_length >= 0 && s.max_length < int64_t{1} << 31, "index rows of up to {} keys", s.max_length);
}

void check_inputs(const IndexScoreInputs& in, const IndexShape& shape) {
  const std::string refusal = index_support({.n_heads = in.n_heads, .n_tokens = shape.n_tokens});
  LEVIN_CHECK(refusal.empty(), "{}", refusal);
  LEVIN_CHECK(in.n_rows <= int64_t{shape.n_requests} * shape.n_tokens, "{} query rows for {} requests of {} tokens",
              in.n_rows, shape.n_requests, shape.n_tokens);
  LEVIN_CHECK(aligned_16(in.q) && aligned_16(in.w) && aligned_16(in.pages), "q, w and pages must be 16-byte aligned");
  LEVIN_CHECK(in.page_bytes >= kIndexPageBytes && in.page_bytes % 16 == 0, "index key pages of {} bytes",
              in.page_bytes);
}

IndexScoreMaps make_maps(const IndexScoreInputs& in, int n_tokens) {
  const int64_t request_rows = int64_t{n_tokens} * in.n_heads;
  return {make_tensor_map(MatrixMap{.data = in.q,
                                    .n_rows = in.n_rows * in.n_heads,
                                    .n_columns = kIndexWidth,
                                    .row_bytes = kIndexWidth,
                                    .box_rows = static_cast<int>(request_rows <= 256 ? request_rows : request_rows / 2),
                                    .box_columns = kIndexWidth,
                                    .swizzle = Swizzle::k128}),
          make_tensor_map(MatrixStackMap{.matrix = {.data = in.pages,
                                                    .n_rows = kIndexPageTokens,
                                                    .n_columns = kIndexWidth,
                                                    .row_bytes = kIndexWidth,
                                                    .box_rows = kIndexPageTokens,
                                                    .box_columns = kIndexWidth,
                                                    .swizzle = Swizzle::k128},
                                         .n_matrices = in.n_pages,
                                         .matrix_bytes = in.page_bytes})};
}

}  // namespace

std::string index_support(const IndexForm& form) {
  if (form.n_heads != 16 && form.n_heads != 32 && form.n_heads != 64)
    return fmt::format("index scores on CUDA have 16, 32 or 64 heads, not {}", form.n_heads);
  if (form.d_index != kIndexWidth) return fmt::format("index scores on CUDA have width 128, not {}", form.d_index);
  if (form.n_tokens < 1 || form.n_tokens > kMaxQueryTokens)
    return fmt::format("index scores on CUDA take 1 to 8 query tokens of a request, not {}", form.n_tokens);
  return {};
}

int64_t index_plan_bytes(const IndexShape& shape) {
  return plan_first_page_offset(shape.n_blocks, shape.n_requests) + int64_t{shape.n_requests} * 4;
}

IndexPlan build_index_plan(const BuildIndexPlan& a, StreamHandle stream) {
  check_shape(a.shape);
  LEVIN_CHECK(aligned_16(a.memory), "the plan's memory must be 16-byte aligned");
  const int64_t n_listed = a.sequence != nullptr ? a.n_rows : (a.n_rows + a.shape.n_tokens - 1) / a.shape.n_tokens;
  LEVIN_CHECK(n_listed <= a.shape.n_requests, "{} rows may be {} requests, the index plan has room for {}", a.n_rows,
              n_listed, a.shape.n_requests);
  launch_build_plan({.lengths = a.lengths,
                     .sequence = a.sequence,
                     .max_length = a.shape.max_length,
                     .skip_length = a.skip_length,
                     .n_rows = static_cast<int>(a.n_rows),
                     .n_tokens = a.shape.n_tokens,
                     .n_blocks = a.shape.n_blocks,
                     .plan = plan_view(a.memory, a.shape.n_blocks, a.shape.n_requests)},
                    stream);
  return {a.shape, a.skip_length, a.memory};
}

std::string plan_mismatch(const IndexPlan& plan, const IndexShape& shape) {
  if (plan.memory == nullptr) return "the index plan was never built";
  if (plan.shape == shape) return {};
  const IndexShape& built = plan.shape;
  return fmt::format(
      "the index plan was built for {} requests of {} tokens over {} blocks, rows up to {}; this step has {} of {} "
      "over {}, up to {}",
      built.n_requests, built.n_tokens, built.n_blocks, built.max_length, shape.n_requests, shape.n_tokens,
      shape.n_blocks, shape.max_length);
}

void index_scores(const IndexScores& a, const IndexPlan& plan, const IndexShape& shape, StreamHandle stream) {
  LEVIN_CHECK(plan_mismatch(plan, shape).empty(), "{}", plan_mismatch(plan, shape));
  if (shape.n_requests == 0) return;
  check_inputs(a.in, shape);
  LEVIN_CHECK(a.score_stride >= shape.max_length, "score rows of {} for {} keys", a.score_stride, shape.max_length);
  LEVIN_CHECK(a.histogram == nullptr || a.fault != nullptr, "counting scores needs a place to report NaN");
  const IndexScoreParams p{.w = a.in.w,
                           .lengths = a.in.lengths,
                           .max_length = shape.max_length,
                           .tables = a.in.tables,
                           .pages = a.in.pages,
                           .page_bytes = a.in.page_bytes,
                           .plan = plan_view(plan.memory, shape.n_blocks, shape.n_requests),
                           .score = a.score,
                           .score_stride = a.score_stride,
                           .histogram = a.histogram,
                           .min_ranked = a.min_ranked,
                           .fault = a.fault,
                           .first = a.in.first};
  const IndexScoreMaps maps = make_maps(a.in, shape.n_tokens);
  switch (a.in.n_heads) {
    case 16:
      return launch_index_scores_h16(p, maps, shape.n_blocks, shape.n_tokens, stream);
    case 32:
      return launch_index_scores_h32(p, maps, shape.n_blocks, shape.n_tokens, stream);
    default:
      return launch_index_scores_h64(p, maps, shape.n_blocks, shape.n_tokens, stream);
  }
}

}  // namespace levin::cuda
