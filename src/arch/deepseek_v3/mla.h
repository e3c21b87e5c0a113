// What DeepSeek-V3.2 and GLM-5 have in common: latent attention over what the indexer selects, a mixture of experts in
// groups, one MTP layer. Their Architectures are made of this.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/architecture.h"

namespace levin::mla {

extern const ConfigKeys kConfigKeys;
// All but the indexer's rotation and schedule.
Status read_config(const io::JsonFields& fields, ModelConfig* config, std::vector<std::string>* warnings);
// owns_indexer and share_topk_across_drafts, by indexer_types, index_topk_pattern, index_topk_freq with
// index_skip_topk_offset, and index_share_for_mtp_iteration. Spellings that contradict each other are refused. After
// read_config().
Status read_index_sharing(const io::JsonFields& fields, ModelConfig* config);

std::string layer_prefix(const ModelConfig& config, int layer);
std::vector<WeightRow> weight_rows(const ModelConfig& config, const Numerics* numerics, ModelWeights& weights);
std::vector<UnusedTensor> unused_tensors(const ModelConfig& config);
LayerCacheFormat layer_cache(const ModelConfig& config, const Numerics& numerics, int layer);
std::unique_ptr<Model> make_model(ModelConfig config, Numerics numerics, ModelWeights weights, Selection selection);

std::string describe(const ModelConfig& config);
void describe_json(const ModelConfig& config, io::JsonObject* out);

extern const GgufTensorNames kGgufTensors;
Status check_gguf(const ModelConfig& config, const std::string& architecture);
void set_gguf_keys(const ModelConfig& config, const std::string& architecture, GgufKeys& keys);

}  // namespace levin::mla
