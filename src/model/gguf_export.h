// A model as GGUF: its config as keys and its weights as tensors, named as llama.cpp and ik_llama.cpp read them, to run
// those programs on the same weights.
//
//   deepseek32   DeepSeek-V3.2, as llama.cpp has it
//   glm-dsa      GLM-5; also V3.2 for ik_llama.cpp, which has no deepseek32 (its indexer then rotates neighbours: the
//                same work, other top-k indices)
//   deepseek4    DeepSeek-V4
//
// Matrices are written in one type, whatever they are stored in; MXFP4 experts stay MXFP4. Vectors, routers and what is
// stored as F32 are written as F32. kv_b_proj is cut into a transposed key part and a value part per head, and the
// experts of a layer are one tensor. The MTP layer comes with it, but for DeepSeek-V4, on whose tensors those programs
// do not agree.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "io/gguf.h"
#include "model/config.h"
#include "model/tensor_source.h"

namespace levin {

struct GgufOptions {
  std::string architecture;                     // empty: that of the family
  io::GgufType matrices = io::GgufType::kBF16;  // kBF16, kF16 or kF32
};

// What became of the values of matrices; complete when the file is written.
struct GgufRounding {
  int64_t n_values = 0;
  int64_t n_rounded = 0;  // of them, that the chosen type does not hold exactly
};

struct GgufExport {
  io::GgufWriter file;  // without tokenizer keys
  std::shared_ptr<GgufRounding> rounding;
  std::vector<std::string> warnings;  // a sentence each
};

// kUsage for a family without GGUF names and for an architecture that is not the family's, kModelInvalid for shapes that
// GGUF cannot hold. `config` and what `source` refers to must outlive the result.
Result<GgufExport> export_gguf(const ModelConfig& config, const TensorSource& source, const GgufOptions& options);

}  // namespace levin
