// DeepSeek-V3.2: an indexer rotated in halves, in every layer unless the config lets layers share top-k indices.
#include "arch/deepseek_v3/architecture.h"

#include <array>

#include "arch/deepseek_v3/mla.h"

namespace levin {
namespace {

constexpr FixedKey kFixed[] = {{"indexer_rope_interleave", {"false", ""}}};  // a key of GLM-5
constexpr ConfigKeys kKeys{.base = &mla::kConfigKeys, .honoured = {}, .fixed = kFixed, .uniform = {}};

Status read(const io::JsonFields& fields, ModelConfig* config, std::vector<std::string>* warnings) {
  LEVIN_TRY(mla::read_config(fields, config, warnings));
  config->index_rope_pairing = ops::RopePairing::kHalfSplit;
  return mla::read_index_sharing(fields, config);
}

// llama.cpp's name; ik_llama.cpp has none of its own and runs it as glm-dsa.
constexpr std::array<std::string_view, 2> kGgufArchitectures = {"deepseek32", "glm-dsa"};
constexpr GgufNames kGguf{.architectures = kGgufArchitectures,
                          .tensors = &mla::kGgufTensors,
                          .pre_tokenizer = "deepseek-v3",
                          .set_keys = mla::set_gguf_keys,
                          .check = mla::check_gguf};

}  // namespace

constinit const Architecture kDeepseekV32{.name = "DeepSeek-V3.2",
                                          .releases = "DeepSeek-V3.2 and V3.2-Exp",
                                          .model_type = "deepseek_v32",
                                          .class_name = "DeepseekV32ForCausalLM",
                                          .keys = &kKeys,
                                          .read_config = read,
                                          .layer_prefix = mla::layer_prefix,
                                          .weight_rows = mla::weight_rows,
                                          .unused_tensors = mla::unused_tensors,
                                          .layer_cache = mla::layer_cache,
                                          .make_model = mla::make_model,
                                          .describe = mla::describe,
                                          .describe_json = mla::describe_json,
                                          .make_chat = text::make_deepseek_v32_chat,
                                          .gguf = &kGguf};

}  // namespace levin
