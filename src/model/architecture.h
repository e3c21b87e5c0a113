// The description of one model family, as a table of facts and functions. Each family defines one Architecture, and
// arch/registry.cc lists them. All other code uses the Architecture of a config and never asks which family it is.
// docs/adding_a_model.md explains how to add a family.
//
// Function pointers may be null only where their comment says so. `layer` counts from 0; layer n_layers is the MTP
// layer.
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
#include "tensor/matrix.h"
#include "text/chat.h"

namespace levin {

struct Architecture {
  std::string_view name;        // for users: "DeepSeek-V3.2"
  std::string_view releases;    // the released models of the family: "GLM-5, 5.1, 5.2 and 5.3"
  std::string_view model_type;  // the value in config.json that selects the family
  std::string_view class_name;  // the only value that architectures[0] of config.json may have

  // Config. `read_config` reads the keys of this family, after the fields that all families share have been read
  // (sizes, epsilon, token ids). It returns an error that names the key and its value, and appends warnings.
  const ConfigKeys* keys;
  // The member of config.json that has the model's keys, where they stand apart from those of images. Empty: none has.
  std::string_view text_key = {};
  int64_t fp8_block = kWeightBlock;  // rows and columns that share a scale in FP8 checkpoints: weight_block_size
  int max_mtp_layers = 1;            // the largest num_nextn_predict_layers
  Status (*read_config)(const io::JsonFields& fields, ModelConfig* config, std::vector<std::string>* warnings);

  // Weights. `layer_prefix` is the beginning of the names of a layer's tensors. `weight_rows` lists all tensors in the
  // order of the forward pass, each with its place in `weights`.
  std::string (*layer_prefix)(const ModelConfig& config, int layer);
  std::vector<WeightRow> (*weight_rows)(const ModelConfig& config, const Numerics* numerics, ModelWeights& weights);
  // Tensors that checkpoints of the family may contain but nothing reads. Null: none.
  std::vector<UnusedTensor> (*unused_tensors)(const ModelConfig& config) = nullptr;

  // Completes weights with what is not a tensor of the table, or is one that stays in its file (Storage::kMappedTable).
  // `checkpoint` is null for dummy weights. Null: nothing.
  Status (*attach_files)(const ModelConfig& config, const io::Checkpoint* checkpoint, ModelWeights& weights) = nullptr;

  // The format of the rows that a layer caches.
  LayerCacheFormat (*layer_cache)(const ModelConfig& config, const Numerics& numerics, int layer);

  // Workspace of the widest layer in floats per token of a step, in addition to what memory_plan.cc counts for every
  // family. Null: none.
  int64_t (*own_workspace)(const ModelConfig& config) = nullptr;

  // Width in floats of what the MTP layer continues from, Model::d_state(). Null: all residual streams, n_streams * d_model.
  int64_t (*draft_state)(const ModelConfig& config) = nullptr;

  // Adapts a numerics mode to the rounding of the family's own code. Null: the mode is unchanged.
  Numerics (*adjust_numerics)(Numerics numerics) = nullptr;
  std::unique_ptr<Model> (*make_model)(ModelConfig config, Numerics numerics, ModelWeights weights,
                                       Selection selection);
  // The ops of its layers that have no kernel for CUDA, for the refusal of such a device. Empty: it runs there.
  std::string_view cuda_lacks = {};

  // For `levin inspect`: one line for each part of the model, each with a label of twelve columns; and as JSON, the
  // sizes of those parts by name. Null: what every family has, alone. A family of the registry has both.
  std::string (*describe)(const ModelConfig& config) = nullptr;
  void (*describe_json)(const ModelConfig& config, io::JsonObject* out) = nullptr;

  text::ChatMaker make_chat = nullptr;  // null: the family has no chat format; prompts are text or token ids
  const GgufNames* gguf = nullptr;      // null: the family cannot be exported as GGUF
};

}  // namespace levin
