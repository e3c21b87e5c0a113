// The score kernels for 16 index heads.
#include "kernels/cuda/index/index_scores_sm90.cuh"

namespace levin::cuda {

void launch_index_scores_h16(const IndexScoreParams& p, const IndexScoreMaps& maps, int n_blocks, int n_tokens,
                             StreamHandle stream) {
  launch_index_scores_heads<16>(p, maps, n_blocks, n_tokens, stream);
}

}  // namespace levin::cuda
