// Between row_chains.cc, which checks, and the kernels, which trust.
#pragma once

#include "kernels/cuda/rows/row_chains.h"

namespace levin::cuda {

void launch_norm_rows(const NormRows& a, StreamHandle stream);
void launch_rotate_queries(const RotateQueries& a, StreamHandle stream);
void launch_write_latent(const WriteLatent& a, StreamHandle stream);
void launch_index_queries(const IndexQueries& a, StreamHandle stream);
void launch_write_index_keys(const WriteIndexKeys& a, StreamHandle stream);
void launch_norm_and_append(const NormAndAppend& a, StreamHandle stream);
void launch_attention_queries(const AttentionQueries& a, StreamHandle stream);

}  // namespace levin::cuda
