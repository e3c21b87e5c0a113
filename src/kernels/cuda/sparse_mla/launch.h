// Between sparse_mla.cc, which checks, and the kernels, which trust.
#pragma once

#include <algorithm>

#include "kernels/cuda/sparse_mla/sparse_mla.h"

namespace levin::cuda {

constexpr int kMlaHeadGroup = 64;
constexpr int kMlaPartTopk = 1024;  // a row's sums start afresh here
constexpr int kMlaMaxParts = 2;
constexpr int mla_parts(int n_topk) { return (n_topk + kMlaPartTopk - 1) / kMlaPartTopk; }
constexpr int mla_head_groups(int n_heads) { return (n_heads + kMlaHeadGroup - 1) / kMlaHeadGroup; }

// Scratch memory: words that say which parts have come, then a record for each half of a part. Whole rows keep what they have of
// their parts, or what the other block sends, in the same place, up to kMlaTotalBytes for each block.
constexpr int kMlaRecords = 512;  // of a launch
constexpr int kMlaCounterBytes = kMlaRecords * 4;
constexpr int kMlaPartRecordBytes = 64 * 1024 + 2048 + 512;
constexpr int64_t kMlaTotalBytes = 256 * 1024;
constexpr int64_t kMlaTotals = 144;  // blocks that do whole rows at the same time; no chip has more SMs
constexpr int64_t kMlaMergeBytes = std::max(kMlaTotals * kMlaTotalBytes, int64_t{kMlaRecords} * kMlaPartRecordBytes);
// Few rows in clusters: the weights of a row and 64 heads, between the block that has them and those that need them.
constexpr int64_t kMlaWeightBytes = int64_t{kMlaMaxParts} * kMlaPartTopk * kMlaHeadGroup * 2;
constexpr int64_t kMlaFewRowsItems = kMlaMergeBytes / kMlaWeightBytes;  // of a launch
// Parts whose blocks are on the device together: what up to eight head warps of a block leave for those of the other part.
constexpr int64_t kMlaWarpShareBytes = 9 * 1024;
constexpr int64_t kMlaShareOffset = kMlaCounterBytes + kMlaMergeBytes;
// Few rows apart: what the blocks of a row and 64 heads tell each other (struct PartMail of each part), after the state of the
// last launch. Launches take turns with two buffers: each leaves the other one's words as kNoMail.
constexpr int64_t kMlaMailStateBytes = 128;
constexpr int64_t kMlaMailBytes = int64_t{kMlaMaxParts} * (kMlaPartTopk / 64 * (128 * 80 + 64 * 4) + 64 * 4);
constexpr int kMlaMailItems = 18;  // of a launch
constexpr int64_t kMlaMailOffset = kMlaShareOffset + kMlaTotals * 8 * kMlaWarpShareBytes;

constexpr int kConvertedRowBytes = (512 + 64) * 2;

// Pairs of blocks that go from row to row on the calling thread's device.
int64_t most_mla_pairs();

enum class MlaSharing : uint8_t {
  kWholeRows,      // a pair of blocks does a row with 64 heads, of FP8 rows a part each
  kClusters,       // the parts of a row have a pair each, all in one cluster; BF16 rows only
  kPairs,          // the same without a cluster; FP8 rows with two parts only, all on the device at once
  kAllHeads,       // a pair of blocks does a row with all of more than 64 heads; FP8 rows only
  kAllHeadsParts,  // the same with a pair for each of two parts, all on the device at once
  kEightBlocks,    // each part of a row and 64 heads has eight blocks, all in one cluster; FP8 rows with two parts only
  kFourBlocks,     // the same with four blocks
  kEightApart,     // the same with eight blocks in several clusters, all on the device at once
  kEightApartAllHeads,  // the same for each part of a row with all of more than 64 heads
};

// FP8 rows, whole: a pair of blocks for 64 heads of a row, a part each.
void launch_sparse_mla_part_blocks(const SparseMla& a, StreamHandle stream);
// FP8 rows: kAllHeads, kAllHeadsParts and kPairs.
void launch_sparse_mla_half_depth(const SparseMla& a, MlaSharing sharing, StreamHandle stream);
// FP8 rows and more than 1024 top-k indices, n_blocks (8 or 4) for each part of a row and 64 heads, all in one cluster.
void launch_sparse_mla_few_rows(const SparseMla& a, int n_blocks, StreamHandle stream);
// Of those clusters the calling thread's device holds so many at the same time.
int few_rows_at_once(int n_blocks);
// The same with blocks apart, for at most so many rows; none for other ways.
void launch_sparse_mla_mail(const SparseMla& a, MlaSharing sharing, StreamHandle stream);
int64_t mail_rows_at_once(MlaSharing sharing, int n_heads);
// Converted rows, a block for 64 heads of a row.
void launch_sparse_mla_converted(const SparseMla& a, StreamHandle stream);
// n_tokens: [n_tables], scratch; rows: [n_tables, stride, 64] converted rows.
void launch_convert_latent_rows(const SparseMla& a, int64_t n_tables, int32_t* n_tokens, std::byte* rows,
                                StreamHandle stream);
void launch_sparse_mla_bf16(const SparseMla& a, MlaSharing sharing, StreamHandle stream);

}  // namespace levin::cuda
