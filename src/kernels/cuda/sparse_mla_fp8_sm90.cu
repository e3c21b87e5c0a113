// Sparse attention over 656-byte FP8 rows.
#include "kernels/cuda/sparse_mla_sm90.cuh"

namespace levin::cuda {

void launch_sparse_mla_fp8(const SparseMla& a, int n_parts, StreamHandle stream) {
  mla::launch<LatentRows::kFp8>(a, n_parts, stream);
}

}  // namespace levin::cuda
