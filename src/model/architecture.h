// What this program knows of one family of models, as one table of facts and functions. Each family fills one
// Architecture; registry.cc lists them. Everything else asks the Architecture of a config and never which family it is.
// How to add one: docs/adding_a_model.md.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "io/json.h"
#include "kv/cache.h"
#include "model/config.h"
#include "model/config_keys.h"
#include "model/gguf_names.h"
#include "model/model.h"
#include "model/numerics.h"
#include "model/weight_table.h"
#include "model/weights.h"
#include "text/chat.h"

namespace levin {

struct Architecture {
  std::string_view name;        // as users read it: "DeepSeek-V3.2"
  std::string_view releases;    // the models of the family, as users look for them: "GLM-5, 5.1, 5.2 and 5.3"
  std::string_view model_type;  // of config.json; names the family
  std::string_view class_name;  // the one that architectures[0] of config.json may name

  // Config. `read_config` fills the family's part; what every family has is read before: sizes, epsilon, tokens.
  const ConfigKeys* keys;
  // The member of config.json that has the model's keys, where they stand apart from those of images. Empty: none has.
  std::string_view text_key = {};
  Status (*read_config)(const io::JsonFields& fields, ModelConfig* config, std::vector<std::string>* warnings);

  // Weights. `layer_prefix` begins the names of a layer's tensors; layer n_layers is the MTP layer. `weight_rows` lists
  // every tensor in the order of the forward pass, with its place in `weights`.
  std::string (*layer_prefix)(const ModelConfig& config, int layer);
  std::vector<WeightRow> (*weight_rows)(const ModelConfig& config, const Numerics* numerics, ModelWeights& weights);
  // Tensors that checkpoints of the family may carry and nothing reads. Null: none.
  std::vector<UnusedTensor> (*unused_tensors)(const ModelConfig& config) = nullptr;

  // What a layer caches; layer n_layers is the MTP layer.
  LayerCacheFormat (*layer_cache)(const ModelConfig& config, const Numerics& numerics, int layer);

  // Floats of a token in the widest layer of a step, beside those that memory_plan.cc counts for every family. Null: none.
  int64_t (*own_workspace)(const ModelConfig& config) = nullptr;

  // Floats of what the MTP layer continues from, Model::d_state(). Null: all residual streams, n_streams * d_model.
  int64_t (*draft_state)(const ModelConfig& config) = nullptr;

  // A numerics mode as the family's own code has it. Null: as the mode is.
  Numerics (*adjust_numerics)(Numerics numerics) = nullptr;
  std::unique_ptr<Model> (*make_model)(ModelConfig config, Numerics numerics, ModelWeights weights,
                                       Selection selection);
  // The ops of its layers that have no kernel for CUDA, for the refusal of such a device. Empty: it runs there.
  std::string_view cuda_lacks = {};

  // For `levin inspect`: a line for each part of the model, each with a label of twelve columns; and the sizes of those
  // parts by name.
  std::string (*describe)(const ModelConfig& config);
  void (*describe_json)(const ModelConfig& config, io::JsonObject* out);

  text::ChatMaker make_chat = nullptr;  // null: the family has no chat format, prompts are text or token ids
  const GgufNames* gguf = nullptr;      // null: the family cannot be written as GGUF
};

}  // namespace levin
