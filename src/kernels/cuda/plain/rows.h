// Row work: embedding, norms, sums, rotation. Contracts and trees: ops/logits.h (embed), ops/norm.h, ops/rope.h.
#pragma once

#include <cstdint>

#include "kernels/cuda/plain/faults.h"
#include "kernels/cuda/plain/paged_cache.h"
#include "tensor/dtype.h"

namespace levin::cuda::plain {

// out[t,:] = table[ids[t],:]; zeros where ids[t] is negative.
struct Embed {
  const int32_t* ids = nullptr;  // [T]
  const void* table = nullptr;   // [V, D] f32 or bf16, dense
  DType table_dtype = DType::kF32;
  float* out = nullptr;  // [T, D], rows out_ld apart
  int64_t out_ld = 0;
  int64_t n_rows = 0;
  int64_t d = 0;
};
void embed(const Embed& a, StreamHandle stream);

struct Norm {
  const float* x = nullptr;  // [T, D], rows x_ld apart
  int64_t x_ld = 0;
  const float* weight = nullptr;  // [D]; null in rms_norm: ones
  const float* bias = nullptr;    // [D], layer_norm alone
  float eps = 0;
  float* out = nullptr;  // [T, D], rows out_ld apart; may be x
  int64_t out_ld = 0;
  int64_t n_rows = 0;
  int64_t d = 0;
};
void rms_norm(const Norm& a, StreamHandle stream);
void layer_norm(const Norm& a, StreamHandle stream);

// x[t,:] += y[t,:]
struct AddInto {
  float* x = nullptr;  // [T, D], rows x_ld apart
  int64_t x_ld = 0;
  const float* y = nullptr;  // [T, D], rows y_ld apart
  int64_t y_ld = 0;
  int64_t n_rows = 0;
  int64_t d = 0;
};
void add_into(const AddInto& a, StreamHandle stream);

// Sets kNotFinite in the fault words of the rows of x that hold NaN or an infinity.
struct MarkUnusable {
  const float* x = nullptr;  // [T, D], rows x_ld apart
  int64_t x_ld = 0;
  int32_t* fault = nullptr;  // [T]
  int64_t n_rows = 0;
  int64_t d = 0;
};
void mark_unusable(const MarkUnusable& a, StreamHandle stream);

// Angles of each row, and which columns make a pair: (2j, 2j + 1), or (j, j + Dr/2).
struct Rotation {
  const float* cos = nullptr;  // [T, Dr/2], rows ld apart
  const float* sin = nullptr;  // [T, Dr/2], rows ld apart
  int64_t ld = 0;
  bool half_split = false;
};

struct Rope {
  float* x = nullptr;  // [T, H, Dr], rotated in place
  int64_t x_ld = 0;    // from row to row
  int64_t head_ld = 0;
  Rotation rotation;
  int64_t n_rows = 0;
  int64_t n_heads = 0;
  int64_t d = 0;  // even
};
void rope(const Rope& a, StreamHandle stream);

struct RopeTable {
  const int32_t* positions = nullptr;  // [T]
  const float* frequencies = nullptr;  // [Dr/2]
  float* cos = nullptr;                // [T, Dr/2], rows ld apart
  float* sin = nullptr;
  int64_t ld = 0;
  int64_t n_rows = 0;
  int64_t n_pairs = 0;
};
void rope_table(const RopeTable& a, StreamHandle stream);

}  // namespace levin::cuda::plain
