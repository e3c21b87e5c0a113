// Sparse attention over 1152-byte BF16 rows.
#include "kernels/cuda/sparse_mla/sparse_mla_sm90.cuh"

namespace levin::cuda {

void launch_sparse_mla_bf16(const SparseMla& a, MlaSharing sharing, StreamHandle stream) {
  mla::launch<LatentRows::kBF16, true>(a, sharing, stream);
}

}  // namespace levin::cuda
