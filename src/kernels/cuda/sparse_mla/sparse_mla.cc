#include "kernels/cuda/sparse_mla/sparse_mla.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/plan_thresholds.h"
#include "kernels/cuda/prims/alignment.h"
#include "kernels/cuda/prims/launch.h"
#include "kernels/cuda/sparse_mla/launch.h"

namespace levin::cuda {
namespace {

void check(const SparseMla& a) {
  const std::string refusal = sparse_mla_support({.n_heads = a.n_heads, .n_topk = a.n_topk});
  LEVIN_CHECK(refusal.empty(), "{}", refusal);
  LEVIN_CHECK(aligned_16(a.q_latent) && aligned_16(a.q_rope) && aligned_16(a.cache) && aligned_16(a.out),
              "q, cache and out must be 16-byte aligned");
  LEVIN_CHECK(a.q_latent_row_stride % 8 == 0 && a.q_rope_row_stride % 8 == 0, "query row strides {} and {}",
              a.q_latent_row_stride, a.q_rope_row_stride);
  LEVIN_CHECK(a.scratch != nullptr && aligned_16(a.scratch), "sparse attention needs its scratch memory");
  LEVIN_CHECK(a.scale > 0, "a softmax scale of {}", a.scale);
  LEVIN_CHECK(a.page_bytes > 0 && a.page_bytes % 16 == 0 && a.page_bytes <= UINT32_MAX, "latent pages of {} bytes",
              a.page_bytes);
  LEVIN_CHECK(a.tables.data == nullptr || a.table_row != nullptr, "positions need the table row of each query");
}

int head_groups(const SparseMla& a) { return mla_head_groups(a.n_heads); }

bool has_all_heads_kernel(const SparseMla& a) { return a.format == LatentRows::kFp8 && head_groups(a) == 2; }

bool has_few_rows_kernels(const SparseMla& a) {
  return a.format == LatentRows::kFp8 && mla_parts(a.n_topk) == kMlaMaxParts;
}

bool has_mail_kernel(const SparseMla& a, MlaSharing sharing) {
  return has_few_rows_kernels(a) && (sharing == MlaSharing::kEightApart || head_groups(a) == 2) &&
         mail_rows_at_once(sharing, a.n_heads) > 0;
}

bool has_all_heads_parts(const SparseMla& a) {
  return has_all_heads_kernel(a) && mla_parts(a.n_topk) == kMlaMaxParts && most_mla_pairs() >= kMlaMaxParts;
}

bool has_clusters(const SparseMla& a) { return a.format == LatentRows::kBF16 && mla_parts(a.n_topk) > 1; }

// Rows of a launch of pairs. Those of BF16 rows have room for what they write, those of FP8 rows are on the device together.
int64_t pair_rows_at_once(const SparseMla& a) {
  const int n_parts = mla_parts(a.n_topk);
  if (n_parts == 1) return 0;
  if (a.format == LatentRows::kBF16) return kMlaRecords / (2 * n_parts * head_groups(a));
  return most_mla_pairs() / (n_parts * head_groups(a));
}

// Waves of blocks times what a block spends: its tiles, and before and after them as much as on three. By measured times, a tile
// with 128 heads over half of the depth takes seven eighths of one with 64 over all of it, and with 64 over half of it a half.
constexpr int kHalfTile = 4, kAllHeadsTile = 7, kWholeTile = 8;
int64_t cost(int64_t n_blocks, int n_tiles, int tile_cost) {
  constexpr int64_t kFixedTiles = 3;
  const int64_t n_waves = (n_blocks + n_sms() - 1) / n_sms();
  return n_waves * (n_tiles + kFixedTiles) * tile_cost;
}

// FP8 rows: a block for each part of a row with 64 heads (part_blocks_sm90.cu). BF16 rows: two, which share the depth.
int64_t whole_rows_cost(const SparseMla& a) {
  const int64_t n_items = a.n_rows * head_groups(a);
  const int n_tiles = a.n_topk / 64, n_parts = mla_parts(a.n_topk);
  if (a.format == LatentRows::kFp8) return cost(n_items * n_parts, std::min(n_tiles, kMlaPartTopk / 64), kWholeTile);
  return cost(n_items * 2, n_tiles, kHalfTile);
}

MlaSharing choose_sharing(const SparseMla& a) {
  constexpr int64_t kClusterBlocks = 120;  // that are on the device at once in clusters of four
  const int n_parts = mla_parts(a.n_topk), n_tiles = a.n_topk / 64;
  const int64_t n_items = a.n_rows * head_groups(a), n_blocks = n_items * 2;
  const auto fits_apart = [&](MlaSharing sharing) {
    return has_mail_kernel(a, sharing) && a.n_rows <= mail_rows_at_once(sharing, a.n_heads);
  };
  if (has_few_rows_kernels(a) && n_items <= few_rows_at_once(8)) return MlaSharing::kEightBlocks;
  if (fits_apart(MlaSharing::kEightApart)) return MlaSharing::kEightApart;
  if (has_few_rows_kernels(a) && n_items <= few_rows_at_once(4)) return MlaSharing::kFourBlocks;
  if (fits_apart(MlaSharing::kEightApartAllHeads)) return MlaSharing::kEightApartAllHeads;
  if (has_clusters(a) && n_blocks * n_parts <= kClusterBlocks) return MlaSharing::kClusters;
  MlaSharing best = MlaSharing::kWholeRows;
  int64_t least = whole_rows_cost(a);
  const auto consider = [&](MlaSharing sharing, int64_t its_cost) {
    if (its_cost >= least) return;
    best = sharing;
    least = its_cost;
  };
  if (a.n_rows <= pair_rows_at_once(a))
    consider(MlaSharing::kPairs, cost(n_blocks * n_parts, kMlaPartTopk / 64, kHalfTile));
  if (has_all_heads_kernel(a)) consider(MlaSharing::kAllHeads, cost(a.n_rows * 2, n_tiles, kAllHeadsTile));
  if (has_all_heads_parts(a) && a.n_rows * kMlaMaxParts <= most_mla_pairs())
    consider(MlaSharing::kAllHeadsParts, cost(a.n_rows * 2 * kMlaMaxParts, kMlaPartTopk / 64, kAllHeadsTile));
  return best;
}

MlaSharing sharing_of(const SparseMla& a, MlaSplit split) {
  if (a.format == LatentRows::kConverted) return MlaSharing::kWholeRows;
  const auto apart = [&](MlaSharing sharing) { return has_mail_kernel(a, sharing) ? sharing : MlaSharing::kWholeRows; };
  switch (split) {
    case MlaSplit::kAuto:
      return choose_sharing(a);
    case MlaSplit::kAllHeads:
      return has_all_heads_kernel(a) ? MlaSharing::kAllHeads : MlaSharing::kWholeRows;
    case MlaSplit::kAllHeadsParts:
      return has_all_heads_parts(a) ? MlaSharing::kAllHeadsParts : MlaSharing::kWholeRows;
    case MlaSplit::kClusters:
      return has_clusters(a) ? MlaSharing::kClusters : MlaSharing::kWholeRows;
    case MlaSplit::kPairs:
      return pair_rows_at_once(a) > 0 ? MlaSharing::kPairs : MlaSharing::kWholeRows;
    case MlaSplit::kEightBlocks:
      return has_few_rows_kernels(a) ? MlaSharing::kEightBlocks : MlaSharing::kWholeRows;
    case MlaSplit::kFourBlocks:
      return has_few_rows_kernels(a) ? MlaSharing::kFourBlocks : MlaSharing::kWholeRows;
    case MlaSplit::kEightApart:
      return apart(MlaSharing::kEightApart);
    case MlaSplit::kEightApartAllHeads:
      return apart(MlaSharing::kEightApartAllHeads);
    case MlaSplit::kWholeRows:
      break;
  }
  return MlaSharing::kWholeRows;
}

void launch_fp8(const SparseMla& a, MlaSharing sharing, StreamHandle stream) {
  switch (sharing) {
    case MlaSharing::kWholeRows:
    case MlaSharing::kClusters:
      return launch_sparse_mla_part_blocks(a, stream);
    case MlaSharing::kPairs:
    case MlaSharing::kAllHeads:
    case MlaSharing::kAllHeadsParts:
      return launch_sparse_mla_half_depth(a, sharing, stream);
    case MlaSharing::kEightBlocks:
      return launch_sparse_mla_few_rows(a, 8, stream);
    case MlaSharing::kFourBlocks:
      return launch_sparse_mla_few_rows(a, 4, stream);
    case MlaSharing::kEightApart:
    case MlaSharing::kEightApartAllHeads:
      return launch_sparse_mla_mail(a, sharing, stream);
  }
}

void launch(const SparseMla& a, MlaSharing sharing, StreamHandle stream) {
  switch (a.format) {
    case LatentRows::kFp8:
      return launch_fp8(a, sharing, stream);
    case LatentRows::kBF16:
      return launch_sparse_mla_bf16(a, sharing, stream);
    case LatentRows::kConverted:
      return launch_sparse_mla_converted(a, stream);
  }
}

// Token counts at the head of the workspace of converted rows. Rows are whole lines of L2: off by 16 bytes they would be
// read at half the speed.
constexpr int64_t kLineBytes = 128;
static_assert(kConvertedRowBytes % kLineBytes == 0);
int64_t token_count_bytes(int64_t n_tables) { return (n_tables * 4 + kLineBytes - 1) / kLineBytes * kLineBytes; }

// Rows of a launch that scratch memory has room for.
int64_t rows_at_once(const SparseMla& a, MlaSharing sharing) {
  switch (sharing) {
    case MlaSharing::kPairs:
      return pair_rows_at_once(a);
    case MlaSharing::kAllHeadsParts:
      return most_mla_pairs() / kMlaMaxParts;
    case MlaSharing::kEightBlocks:
    case MlaSharing::kFourBlocks:
      return kMlaFewRowsItems / head_groups(a);
    case MlaSharing::kEightApart:
    case MlaSharing::kEightApartAllHeads:
      return mail_rows_at_once(sharing, a.n_heads);
    default:
      return a.n_rows;
  }
}

// Rows `first` to `first + n_rows - 1` of `a`.
SparseMla rows_of(const SparseMla& a, int64_t first, int64_t n_rows) {
  SparseMla some = a;
  some.q_latent = static_cast<const uint16_t*>(a.q_latent) + first * a.q_latent_row_stride;
  some.q_rope = static_cast<const uint16_t*>(a.q_rope) + first * a.q_rope_row_stride;
  some.topk = a.topk + first * a.n_topk;
  if (a.table_row != nullptr) some.table_row = a.table_row + first;
  some.out = static_cast<std::byte*>(a.out) + first * a.n_heads * 512 * (a.out_f32 ? 4 : 2);
  some.n_rows = n_rows;
  return some;
}

constexpr int64_t kFewestRowsToConvert = 512;

}  // namespace

std::string sparse_mla_support(const MlaForm& form) {
  if (form.d_latent != 512 || form.d_rope != 64)
    return fmt::format("sparse attention on CUDA has latent width 512 and rope width 64, not {} and {}", form.d_latent,
                       form.d_rope);
  if (form.n_heads < 1 || form.n_heads > 128)
    return fmt::format("sparse attention on CUDA has 1 to 128 heads, not {}", form.n_heads);
  if (form.n_topk < 64 || form.n_topk > 2048 || form.n_topk % 64 != 0)
    return fmt::format("sparse attention on CUDA takes a multiple of 64 top-k indices up to 2048, not {}", form.n_topk);
  return {};
}

int sparse_mla_few_rows_blocks(int64_t n_rows, int n_heads) {
  const SparseMla a{.n_rows = n_rows, .n_heads = n_heads, .n_topk = kMlaMaxParts * kMlaPartTopk};
  const int64_t n_items = n_rows * head_groups(a) * kMlaMaxParts;
  switch (choose_sharing(a)) {
    case MlaSharing::kEightBlocks:
    case MlaSharing::kEightApart:
      return static_cast<int>(n_items * 8);
    case MlaSharing::kFourBlocks:
      return static_cast<int>(n_items * 4);
    default:
      return 0;
  }
}

int64_t sparse_mla_scratch_bytes() { return kMlaMailOffset + kMlaMailStateBytes + 2 * kMlaMailItems * kMlaMailBytes; }

void clear_sparse_mla_scratch(std::byte* scratch, StreamHandle stream) {
  constexpr int64_t kMail = kMlaMailOffset + kMlaMailStateBytes;
  const int64_t n_mail = sparse_mla_scratch_bytes() - kMail;
  const auto fill = [&](std::byte* to, int byte, int64_t n) {
    const cudaError_t code = cudaMemsetAsync(to, byte, static_cast<size_t>(n), stream);
    LEVIN_CHECK(code == cudaSuccess, "fill of {} bytes: {}", n, cudaGetErrorString(code));
  };
  fill(scratch, 0, kMail);
  fill(scratch + kMail, 0xFF, n_mail);
}

int64_t most_mla_pairs() { return std::min<int64_t>(n_sms(), kMlaTotals) / 2; }

std::vector<int64_t> sparse_mla_thresholds(int n_heads, int n_topk, int64_t most_rows) {
  std::vector<int64_t> found = plan_thresholds(most_rows, [&](int64_t n_rows) {
    return choose_sharing({.n_rows = n_rows, .n_heads = n_heads, .n_topk = n_topk});
  });
  if (kFewestRowsToConvert <= most_rows) found.push_back(kFewestRowsToConvert);
  return found;
}

// A row of 2048 top-k indices gains 0.2 us with 128 heads and 0.3 us with 64; a token of a request costs 1.3 ns.
bool is_worth_converting(const SparseMla& a, int64_t n_tables) {
  constexpr int64_t kTokensPerRow = 64;
  const int64_t n_tokens = n_tables * a.tables.stride * kIndexPageTokens;
  return a.format == LatentRows::kFp8 && a.tables.data != nullptr && a.n_rows >= kFewestRowsToConvert &&
         n_tokens <= a.n_rows * kTokensPerRow;
}

int64_t converted_latent_bytes(const PageTables& tables, int64_t n_tables) {
  return token_count_bytes(n_tables) + n_tables * tables.stride * kIndexPageTokens * kConvertedRowBytes;
}

SparseMla convert_latent_rows(const SparseMla& a, int64_t n_tables, std::byte* workspace, StreamHandle stream) {
  check(a);
  LEVIN_CHECK(a.format == LatentRows::kFp8 && a.tables.data != nullptr, "converted rows are FP8 rows by position");
  LEVIN_CHECK(reinterpret_cast<uintptr_t>(workspace) % kLineBytes == 0,
              "the workspace of converted rows must be {}-byte aligned", kLineBytes);
  SparseMla converted = a;
  converted.format = LatentRows::kConverted;
  converted.cache = workspace + token_count_bytes(n_tables);
  converted.page_bytes = kIndexPageTokens * kConvertedRowBytes;
  if (a.n_rows > 0)
    launch_convert_latent_rows(a, n_tables, reinterpret_cast<int32_t*>(workspace),
                               workspace + token_count_bytes(n_tables), stream);
  return converted;
}

void sparse_mla(const SparseMla& a, StreamHandle stream, MlaSplit split) {
  check(a);
  if (a.n_rows == 0) return;
  const MlaSharing sharing = sharing_of(a, split);
  const int64_t step = rows_at_once(a, sharing);
  for (int64_t first = 0; first < a.n_rows; first += step)
    launch(rows_of(a, first, std::min(step, a.n_rows - first)), sharing, stream);
}

}  // namespace levin::cuda
