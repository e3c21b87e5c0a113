// Sparse attention over 656-byte FP8 rows.
#include "kernels/cuda/sparse_mla/sparse_mla_sm90.cuh"

namespace levin::cuda {

void launch_sparse_mla_fp8(const SparseMla& a, MlaSharing sharing, StreamHandle stream) {
  if (a.tables.data != nullptr)
    mla::launch<LatentRows::kFp8, true>(a, sharing, stream);
  else
    mla::launch<LatentRows::kFp8, false>(a, sharing, stream);
}

}  // namespace levin::cuda
