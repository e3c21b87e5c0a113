// Chains of row work around the products and the caches. Each is exactly the ops that it names, one after another on f32
// values; on a CUDA device it is one launch, with the same bits.
//
//   norm_rows         x (residual += x, x = residual, if there is one) -> rms_norm -> normed, and -> quantize_fp8
//   rotate_queries    rope of each head's part -> bf16
//   write_latent      rms_norm of a token's latent, rope of its rotated part -> append_latent
//   index_queries     rope of the first Dr columns -> hadamard -> quantize_fp8 of each head;
//                     weights = (w * factor) * the head's scale
//   write_index_keys  layer_norm -> rope of the first Dr columns -> hadamard -> append_index_keys
//
// Inputs    f32 or bf16; norm weights and biases, tables and head weights are f32
// CUDA      x and codes 16-byte aligned, rows a multiple of 8 elements apart; D a multiple of 16 up to 28672; latent
//           512 + 64 in fp8 rows; index heads 128 wide with Dr = 64, fp8 keys. Other shapes stop the process and are named.
// Source    model_spec.md 4.2 to 4.4
#pragma once

#include "ops/context.h"
#include "ops/rope.h"
#include "tensor/formats.h"
#include "tensor/view.h"

namespace levin::ops {

// cos and sin of each token, as rope() takes them.
struct Rotation {
  View cos;  // [T, Dr/2] f32
  View sin;  // [T, Dr/2] f32
  RopePairing pairing = RopePairing::kInterleaved;
};

struct NormRows {
  View x;         // [T, D] f32 or bf16
  View residual;  // [T, D] f32, updated; may be empty
  View weight;    // [D] f32
  float eps = 0;
  View normed;  // [T, D] bf16, written; may be empty
  View codes;   // [T, D] f8_e4m3, written; may be empty
  View scale;   // of the codes, as quantize_fp8() has it
};
void norm_rows(OpContext& ctx, const NormRows& a);

struct RotateQueries {
  View x;  // [T, H, Dr] f32 or bf16, not changed; usually a slice of wider heads
  Rotation rotation;
  View out;  // [T, H, Dr] bf16, overwritten
};
void rotate_queries(OpContext& ctx, const RotateQueries& a);

struct WriteLatent {
  View x;       // [T, Rk + Dr] f32 or bf16: latent, then the part to rotate
  View weight;  // [Rk] f32
  float eps = 0;
  Rotation rotation;
  View seq;   // [T] i32, row of cache.tables
  View slot;  // [T] i32, negative: nothing is written
  LatentFormat format;
  PagedRows cache;
};
void write_latent(OpContext& ctx, const WriteLatent& a);

struct IndexQueries {
  View x;            // [T, Hi, Di] f32 or bf16
  View w;            // [T, Hi] f32, learned head weights
  float factor = 1;  // Hi^-1/2 * Di^-1/2
  Rotation rotation;
  bool hadamard = true;
  View codes;    // [T, Hi, Di] f8_e4m3, overwritten: IndexQuery::q
  View weights;  // [T, Hi] f32, overwritten: IndexQuery::w
};
void index_queries(OpContext& ctx, const IndexQueries& a);

struct WriteIndexKeys {
  View x;       // [T, Di] f32 or bf16
  View weight;  // [Di] f32
  View bias;    // [Di] f32
  float eps = 0;
  Rotation rotation;
  bool hadamard = true;
  View seq;   // [T] i32
  View slot;  // [T] i32, negative: nothing is written
  IndexKeyFormat format;
  PagedRows cache;
};
void write_index_keys(OpContext& ctx, const WriteIndexKeys& a);

}  // namespace levin::ops
