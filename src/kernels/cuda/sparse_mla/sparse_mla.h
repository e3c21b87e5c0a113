// Multi-head latent attention in absorbed form over the selected cache rows of each query token, for decode and prefill
// alike.
//
//   a[t,h,s]   = scale * (q_latent[t,h,:] . c[s,:] + q_rope[t,h,:] . k_rope[s,:])        for s in topk[t,:]
//   out[t,h,:] = sum_s softmax_s(a[t,h,:]) c[s,:]                                        zeros for a row without indices
//
// Tree      Tile i is top-k indices 64i .. 64i+63 of the row; the matrix unit's sums are the leaves.
//             dot  = d0 + d1. d0 over latent 0..255, then rope 0..31; d1 over latent 256..511, then rope 32..63; each a
//                    chain of wgmma bf16 steps of k = 16, ascending; FP8 rows: every four columns as 1, 3, 0, 2
//             m'   = max(m, ceil(max_j dot_j * c)), an integer; c = scale * log2 e
//             p_j  = 2^(dot_j * c - m'), the difference in one fused step; zero below 2^-126
//             acc  = acc * 2^(m - m'), exact; then four wgmma steps of k = 16 top-k indices, p rounded to bf16
//             sum  = sum * 2^(m - m') + p; even and odd tiles and the four lanes of a row apart
//           At index 1024 acc, sum and m start afresh. A part's lanes are added, (l0 + l1) + (l2 + l3), and the two
//           parts merged, the earlier first, at the larger m. In the end even + odd, and out = acc * (1 / sum).
//           All of it depends on the row's q, selects and cache rows alone; blocks that share a row cut it at that
//           index only.
// Shapes    latent 512, rope 64; 1 to 128 heads; selects a multiple of 64 up to 2048 (sparse_mla_support()). Heads are
//           worked on 64 at a time; those of the last group that do not exist are neither read nor written.
// Padding   A row whose table_row is below 0 has no indices, whatever topk says.
// Numerics  q bf16; cache rows bf16, or e4m3 with power-of-two f32 scales, which are exact in bf16.
//           Scores |dot * c| < 2^22.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cuda/index/index_rows.h"

namespace levin::cuda {

enum class LatentRows : uint8_t {
  kFp8,        // 656 bytes: 512 e4m3, 4 f32 scales, 64 bf16
  kBF16,       // 1152 bytes: 512 bf16, 64 bf16
  kConverted,  // those of convert_latent_rows(): FP8 rows as bf16, with the bits of FP8 rows in all results
};

struct MlaForm {
  int n_heads = 0;
  int d_latent = 512;
  int d_rope = 64;
  int n_topk = 0;
};

// Empty if the kernels have this form, otherwise one line that names what they lack.
std::string sparse_mla_support(const MlaForm& form);

struct SparseMla {
  const void* q_latent = nullptr;      // [n_rows, n_heads, 512] bf16, 16-byte aligned
  const void* q_rope = nullptr;        // [n_rows, n_heads, 64] bf16, 16-byte aligned
  int64_t q_latent_row_stride = 0;     // elements between rows (heads are 512 apart), a multiple of 8
  int64_t q_rope_row_stride = 0;       // the same, heads 64 apart
  const int32_t* topk = nullptr;       // [n_rows, n_topk], ascending, -1 after the last
  PageTables tables;                   // data null: selects are physical slots; otherwise positions
  const int32_t* table_row = nullptr;  // [n_rows] row of the tables, with tables only; below 0: padding
  LatentRows format = LatentRows::kFp8;
  const std::byte* cache = nullptr;  // slot s at page s / 64 (page_bytes apart), row s % 64; 16-byte aligned
  int64_t page_bytes = 0;            // a multiple of 16, below 2^32
  void* out = nullptr;               // [n_rows, n_heads, 512] bf16, or f32
  bool out_f32 = false;
  std::byte* scratch = nullptr;  // sparse_mla_scratch_bytes(), see there; 16-byte aligned
  int64_t n_rows = 0;
  int n_heads = 0;
  int n_topk = 0;
  float scale = 0;  // positive
};

// What blocks tell each other of the rows being worked on, 61 MB. One launch at a time may use it: a stream has its own, since
// launches on another may run at the same time. Cleared by its owner once, and again after a launch that did not end; a launch that ends
// leaves it as the next one expects it.
int64_t sparse_mla_scratch_bytes();
void clear_sparse_mla_scratch(std::byte* scratch, StreamHandle stream);

// How the blocks share the rows: 64 heads of a row to a pair of blocks, or all its heads (FP8 rows and more than 64 heads;
// otherwise as kWholeRows), with all its indices or, kAllHeadsParts, 1024 of them; or 64 heads with 1024 of its indices, merged
// within a cluster (BF16 rows; otherwise as kWholeRows) or through scratch memory; kEightBlocks, kFourBlocks: so many blocks
// for these, all in a cluster, and ...Apart: so many in several clusters, that exchange through scratch memory, for 64 heads or
// all (FP8 rows and more than 1024 indices; otherwise as kWholeRows). All give the same bits; kAuto takes the one that should be
// fastest. Converted rows have one form.
enum class MlaSplit : uint8_t {
  kAuto,
  kWholeRows,
  kAllHeads,
  kAllHeadsParts,
  kClusters,
  kPairs,
  kEightBlocks,
  kFourBlocks,
  kEightApart,
  kEightApartAllHeads
};
void sparse_mla(const SparseMla& a, StreamHandle stream, MlaSplit split = MlaSplit::kAuto);

// Blocks of the launch of kAuto, each of which has an SM to itself, where that is one for few FP8 rows; otherwise 0.
int sparse_mla_few_rows_blocks(int64_t n_rows, int n_heads);

// Whether convert_latent_rows() and attention over its rows should be faster than attention over FP8 rows.
bool is_worth_converting(const SparseMla& a, int64_t n_tables);

// The FP8 rows that queries of `a` may select, as bf16 rows, for many query rows that share requests: a kernel without
// conversion then multiplies them. Top-k indices are positions. `workspace` has converted_latent_bytes(), 128-byte aligned, for
// n_tables requests, all that a.table_row names; it is needed until the attention is done.
int64_t converted_latent_bytes(const PageTables& tables, int64_t n_tables);
SparseMla convert_latent_rows(const SparseMla& a, int64_t n_tables, std::byte* workspace, StreamHandle stream);

// plan_thresholds() of kAuto over FP8 rows on the calling thread's device, and the fewest rows to convert; for tests.
std::vector<int64_t> sparse_mla_thresholds(int n_heads, int n_topk, int64_t most_rows);

}  // namespace levin::cuda
