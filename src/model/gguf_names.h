// How a family is written as GGUF: the names that llama.cpp and ik_llama.cpp give its tensors, and its keys.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "model/gguf_keys.h"

namespace levin {

struct Renamed {
  std::string_view name;  // in the checkpoint; of a layer's tensor without the prefix; experts.*: of every expert
  std::string_view gguf;  // of a layer's tensor without "blk.<layer>."
};

struct GgufTensorNames {
  std::span<const Renamed> outside;  // of the layers
  std::span<const Renamed> in_layer;
};

struct GgufNames {
  std::span<const std::string_view> architectures;  // that the family can be written as, its own first
  const GgufTensorNames* tensors;
  std::string_view pre_tokenizer;  // tokenizer.ggml.pre
  bool has_mtp = true;             // false: those programs do not agree on the tensors of its MTP layer
  void (*set_keys)(const ModelConfig& config, const std::string& architecture, GgufKeys& keys);
  // kUsage for a model that no file of this architecture can say. Null: each can be said.
  Status (*check)(const ModelConfig& config, const std::string& architecture) = nullptr;
};

}  // namespace levin
