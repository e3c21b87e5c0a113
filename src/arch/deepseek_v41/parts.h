// The parts of DeepSeek-V4.1's Architecture, each in a file of its own.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/architecture.h"

namespace levin::deepseek_v41 {

extern const ConfigKeys kConfigKeys;
Status read_config(const io::JsonFields& fields, ModelConfig* config, std::vector<std::string>* warnings);

std::string layer_prefix(const ModelConfig& config, int layer);
std::vector<WeightRow> weight_rows(const ModelConfig& config, const Numerics* numerics, ModelWeights& weights);
std::vector<UnusedTensor> unused_tensors(const ModelConfig& config);
Status attach_files(const ModelConfig& config, const io::Checkpoint* checkpoint, ModelWeights& weights);
LayerCacheFormat layer_cache(const ModelConfig& config, const Numerics& numerics, int layer);
int64_t own_workspace(const ModelConfig& config);
Numerics adjust_numerics(Numerics numerics);
std::unique_ptr<Model> make_model(ModelConfig config, Numerics numerics, ModelWeights weights, Selection selection);

std::string describe(const ModelConfig& config);
void describe_json(const ModelConfig& config, io::JsonObject* out);

}  // namespace levin::deepseek_v41
