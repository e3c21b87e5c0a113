// Between sparse_mla.cc, which checks, and the kernels, which trust.
#pragma once

#include "kernels/cuda/sparse_mla.h"

namespace levin::cuda {

constexpr int kMlaHeadGroup = 64;
constexpr int kMlaPartTopk = 1024;  // a row's sums start afresh here
constexpr int kMlaMaxParts = 2;
constexpr int mla_parts(int n_topk) { return (n_topk + kMlaPartTopk - 1) / kMlaPartTopk; }

// Scratch memory: words that say which parts have come, then a record for each half of a part. Whole rows keep their
// merged parts in the same place, up to kMlaTotalBytes for each block.
constexpr int kMlaRecords = 512;  // of a launch
constexpr int kMlaCounterBytes = kMlaRecords * 4;
constexpr int kMlaPartRecordBytes = 64 * 1024 + 2048 + 512;
constexpr int64_t kMlaTotalBytes = 136 * 1024;
constexpr int64_t kMlaTotals = 144;  // blocks that do whole rows at the same time; no chip has more SMs
// Few rows: the weights of a row and 64 heads, between the block that has them and those that need them.
constexpr int64_t kMlaWeightBytes = int64_t{kMlaMaxParts} * kMlaPartTopk * kMlaHeadGroup * 2;
constexpr int64_t kMlaFewRowsItems = kMlaRecords * kMlaPartRecordBytes / kMlaWeightBytes;  // of a launch

constexpr int kConvertedRowBytes = (512 + 64) * 2;

// Pairs of blocks that go from row to row on the calling thread's device.
int64_t most_mla_pairs();

enum class MlaSharing : uint8_t {
  kWholeRows,    // a pair of blocks does a row with 64 heads
  kClusters,     // the parts of a row have a pair each, all in one cluster
  kPairs,        // the same without a cluster; at most kMlaRecords halves of parts in a launch
  kAllHeads,     // a pair of blocks does a row with all of more than 64 heads; FP8 rows only
  kEightBlocks,  // each part of a row and 64 heads has eight blocks, all in one cluster; FP8 rows with two parts only
  kFourBlocks,   // the same with four blocks
};

void launch_sparse_mla_fp8(const SparseMla& a, MlaSharing sharing, StreamHandle stream);
// FP8 rows and more than 64 heads, a pair of blocks for all heads of a row.
void launch_sparse_mla_all_heads(const SparseMla& a, StreamHandle stream);
// FP8 rows and more than 1024 top-k indices, n_blocks (8 or 4) for each part of a row and 64 heads, all in one cluster.
void launch_sparse_mla_few_rows(const SparseMla& a, int n_blocks, StreamHandle stream);
// Of those clusters the calling thread's device holds so many at the same time.
int few_rows_at_once(int n_blocks);
// Converted rows, a block for 64 heads of a row.
void launch_sparse_mla_converted(const SparseMla& a, StreamHandle stream);
// n_tokens: [n_tables], scratch; rows: [n_tables, stride, 64] converted rows.
void launch_convert_latent_rows(const SparseMla& a, int64_t n_tables, int32_t* n_tokens, std::byte* rows,
                                StreamHandle stream);
void launch_sparse_mla_bf16(const SparseMla& a, MlaSharing sharing, StreamHandle stream);

}  // namespace levin::cuda
