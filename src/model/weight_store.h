// From tensors as stored to weights as used: matrices in the form that is wanted (tensor/matrix.h), f32 vectors, the two halves
// of kv_b_proj. For the weight rows of families.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "io/safetensors.h"
#include "model/numerics.h"
#include "model/weights.h"

namespace levin {
struct StoredScales;
}

namespace levin {

// All take tensors whose dtype, shape and scales fit the table. Errors name the tensor, the position and the value: NaN
// and infinity anywhere, block scales that are not finite and positive.

// Row-major f32 values, scales applied; not of MXFP4.
Result<std::vector<float>> dequantise(const io::StoredTensor& tensor, const StoredScales* scales);

// `scales` is null unless the tensor is F8_E4M3, MXFP4 or NVFP4 (weight_table.h). FP8 in blocks other than those of products
// (kWeightBlock) is dequantised: exact in bf16 where scales are powers of two.
Result<Matrix> store_matrix(const io::StoredTensor& tensor, const StoredScales* scales, MatrixForm form);

// The type a product's input is rounded to depends on how its matrix is stored: as that of FP8 matrices for F8_E4M3 and
// MXFP4, but not for NVFP4, whose weights alone have four bits (W4A16).
bool takes_fp8_input(io::StoredDtype dtype);
ops::Operand input_operand(const io::StoredTensor& tensor, const Numerics& numerics);

Result<Vector> store_vector(const io::StoredTensor& tensor);

// What is cut into several matrices stays FP8 where the cuts are between blocks, and is dequantised otherwise.

// [G * N, K] to G matrices [N, K].
Status store_row_groups(const io::StoredTensor& tensor, const StoredScales* scales, int64_t n_groups, MatrixForm form,
                        std::vector<Matrix>* groups);

// [V, A] expert ids of each token id, made ascending. Ids from n_experts on and an id that a row has twice are errors.
Status store_expert_ids(const io::StoredTensor& tensor, int64_t n_experts, MoeWeights* weights);

// kv_b_proj [H * (Dn + Dv), Rk] to H matrices [Rk, Dn] (transposed key part) and H matrices [Dv, Rk].
struct UpProjectionShape {
  int64_t n_heads = 0;
  int64_t d_nope = 0;
  int64_t d_value = 0;
  int64_t d_latent = 0;
};
struct UpProjectionParts {
  std::vector<Matrix>* k_up;
  std::vector<Matrix>* v_up;
};
Status store_up_projection(const io::StoredTensor& tensor, const StoredScales* scales, const UpProjectionShape& shape,
                           MatrixForm form, const UpProjectionParts& parts);

// A table of rows stays as stored, and in place where `form` says so; F16 becomes f32.
Result<Table> store_table(const io::StoredTensor& tensor, MatrixForm form);

}  // namespace levin
