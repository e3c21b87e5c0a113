// The score kernels for 64 index heads.
#include "kernels/cuda/index/index_scores_sm90.cuh"

namespace levin::cuda {

void launch_index_scores_h64(const IndexScoreParams& p, const IndexScoreMaps& maps, int n_blocks, int n_tokens,
                             StreamHandle stream) {
  launch_index_scores_heads<64>(p, maps, n_blocks, n_tokens, stream);
}

}  // namespace levin::cuda
