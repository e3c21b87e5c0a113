// DeepSeek-V3.2: an indexer in every layer, rotated in halves.
#include "arch/deepseek_v3/architecture.h"

#include <array>

#include "arch/deepseek_v3/mla.h"

namespace levin {
namespace {

// Keys of GLM-5 that say what V3.2 does anyway.
constexpr FixedKey kFixed[] = {
    {"indexer_rope_interleave", {"false", ""}},
    {"index_topk_freq", {"1", "null"}},
    {"index_topk_pattern", {"null", ""}},
    {"index_share_for_mtp_iteration", {"false", "null"}},
};
constexpr UniformKey kUniform[] = {{"indexer_types", "full"}};
constexpr std::string_view kHonoured[] = {"index_skip_topk_offset"};  // says nothing at frequency 1
constexpr ConfigKeys kKeys{.base = &mla::kConfigKeys, .honoured = kHonoured, .fixed = kFixed, .uniform = kUniform};

Status read(const io::JsonFields& fields, ModelConfig* config, std::vector<std::string>* warnings) {
  LEVIN_TRY(mla::read_config(fields, config, warnings));
  config->index_rope_pairing = ops::RopePairing::kHalfSplit;
  config->owns_indexer.assign(static_cast<size_t>(config->n_layers), true);
  return {};
}

// llama.cpp's name; ik_llama.cpp has none of its own and runs it as glm-dsa.
constexpr std::array<std::string_view, 2> kGgufArchitectures = {"deepseek32", "glm-dsa"};
constexpr GgufNames kGguf{.architectures = kGgufArchitectures,
                          .tensors = &mla::kGgufTensors,
                          .pre_tokenizer = "deepseek-v3",
                          .set_keys = mla::set_gguf_keys};

}  // namespace

constinit const Architecture kDeepseekV32{.name = "DeepSeek-V3.2",
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
