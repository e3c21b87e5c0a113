// Chains of row work around the products and the caches: the ops that models call. Each is exactly the small ops that it
// names, one after another on f32 values; a backend that has no kernel for a chain, or not for its form, runs these
// (Backend's own bodies), and one that has gives the same bits.
//
//   norm_rows         x (residual += x, x = residual, if there is one) -> rms_norm -> normed, and -> quantize_fp8
//   rotate_queries    rope of each head's part -> f32 or bf16
//   write_latent      rms_norm of a token's latent, or of its whole row, by the weight's width -> rope of the last Dr
//                     columns -> append_latent
//   index_queries     rope of Dr columns -> hadamard -> round_to_fp4 -> the type of the cached keys;
//                     weights = (w * factor), times the head's scale where the keys are fp8
//   write_index_keys  layer_norm, without a bias rms_norm, without a weight nothing -> rope of Dr columns -> hadamard -> round_to_fp4
//                     -> append_index_keys
//   norm_and_append   norm_rows, write_latent and write_index_keys of a step's tokens: what follows the down projections; and a
//                     matmul of other rows
//   attention_queries rotate_queries and index_queries: what follows the up projections
//
// The last two are for backends that have them in one launch; others run the chains that they name.
//
// Inputs    f32 or bf16; norm weights and biases, tables and head weights are f32
// CUDA      kPlain: bf16 inputs only where its kernels have the whole chain, which is fp8 keys and rows without round_to_fp4.
//           kSm90: its own for x and codes 16-byte aligned, D a multiple of 16 up to 28672; latent 512 + 64 in fp8 rows; index
//           heads 128 wide with Dr = 64, fp8 keys
// Source    model_spec.md 4.2 to 4.4, 6.4, 6.5
#pragma once

#include "ops/context.h"
#include "ops/matmul.h"
#include "ops/rope.h"
#include "tensor/formats.h"
#include "tensor/view.h"

namespace levin::ops {

// cos and sin of each token, as rope() takes them. Empty: nothing is rotated.
struct Rotation {
  View cos;  // [T, Dr/2] f32
  View sin;  // [T, Dr/2] f32
  RopePairing pairing = RopePairing::kInterleaved;
};

struct NormRows {
  View x;              // [T, D] f32 or bf16
  View residual = {};  // [T, D] f32, updated; may be empty
  View weight = {};    // [D] f32; empty: ones
  float eps = 0;
  View normed = {};  // [T, D] f32 or bf16, written; may be empty, and x if that is f32
  View codes = {};   // [T, D] f8_e4m3, written; may be empty
  View scale = {};   // of the codes, as quantize_fp8() has it
  bool scale_by_block = false;
};
void norm_rows(OpContext& ctx, const NormRows& a);

struct RotateQueries {
  View x;  // [T, H, Dr] f32 or bf16; usually a slice of wider heads
  Rotation rotation;
  View out;  // [T, H, Dr] bf16, overwritten; or x, which is f32 then
};
void rotate_queries(OpContext& ctx, const RotateQueries& a);

struct WriteLatent {
  View x;            // [T, Rk + Dr] f32 or bf16: latent, then the part to rotate
  View weight = {};  // [Rk] f32, or [Rk + Dr] for the norm of the whole row; empty: x is normed already
  float eps = 0;
  Rotation rotation;  // on the CPU it may be empty: x is rotated already
  View seq;           // [T] i32, row of cache.tables
  View slot;          // [T] i32, negative: nothing is written
  LatentFormat format;
  PagedRows cache;
};
void write_latent(OpContext& ctx, const WriteLatent& a);

struct IndexQueries {
  View x;            // [T, Hi, Di] f32 or bf16, not changed unless it is q
  View w;            // [T, Hi] f32, learned head weights
  float factor = 1;  // Hi^-1/2 * Di^-1/2
  Rotation rotation;
  int64_t rope_column = 0;  // the first of the Dr columns that are rotated
  bool hadamard = true;
  bool fp4 = false;  // round_to_fp4
  View q;            // [T, Hi, Di] f8_e4m3, bf16 or f32, the type of IndexQuery::q, overwritten; f32: may be x
  View weights;      // [T, Hi] f32, overwritten: IndexQuery::w; may be w
};
void index_queries(OpContext& ctx, const IndexQueries& a);

struct WriteIndexKeys {
  View x;            // [T, Di] f32 or bf16
  View weight = {};  // [Di] f32; empty: x is normed already
  View bias = {};    // [Di] f32; empty: rms_norm
  float eps = 0;
  Rotation rotation;
  int64_t rope_column = 0;  // the first of the Dr columns that are rotated
  bool hadamard = true;
  bool fp4 = false;  // round_to_fp4
  View seq;          // [T] i32
  View slot;         // [T] i32, negative: nothing is written
  IndexKeyFormat format;
  PagedRows cache;
};
void write_index_keys(OpContext& ctx, const WriteIndexKeys& a);

// None of the parts reads what another writes.
struct NormAndAppend {
  NormRows norm;
  WriteLatent latent;
  WriteIndexKeys keys;  // x may be empty: none are written
  Matmul product;       // x f32; it may be empty: nothing is multiplied
};
void norm_and_append(OpContext& ctx, const NormAndAppend& a);

struct AttentionQueries {
  RotateQueries rotate;
  IndexQueries index;
};
void attention_queries(OpContext& ctx, const AttentionQueries& a);

}  // namespace levin::ops
