// GLM-5, 5.1, 5.2 and 5.3 (glm_moe_dsa): the layers of DeepSeek-V3.2 with an indexer rotated in pairs, which some layers
// lend to those above (model_spec.md 2.2).
#include "arch/glm/architecture.h"

#include <array>

#include "arch/deepseek_v3/mla.h"

namespace levin {
namespace {

constexpr FixedKey kFixed[] = {{"indexer_rope_interleave", {"true", "null"}}};
constexpr ConfigKeys kKeys{.base = &mla::kConfigKeys, .honoured = {}, .fixed = kFixed, .uniform = {}};

Status read(const io::JsonFields& fields, ModelConfig* config, std::vector<std::string>* warnings) {
  LEVIN_TRY(mla::read_config(fields, config, warnings));
  config->index_rope_pairing = ops::RopePairing::kInterleaved;
  return mla::read_index_sharing(fields, config);
}

constexpr std::array<std::string_view, 1> kGgufArchitectures = {"glm-dsa"};
constexpr GgufNames kGguf{.architectures = kGgufArchitectures,
                          .tensors = &mla::kGgufTensors,
                          .pre_tokenizer = "glm4",
                          .set_keys = mla::set_gguf_keys,
                          .check = mla::check_gguf};

}  // namespace

constinit const Architecture kGlmMoeDsa{.name = "GLM-5",
                                        .releases = "GLM-5, 5.1, 5.2 and 5.3",
                                        .model_type = "glm_moe_dsa",
                                        .class_name = "GlmMoeDsaForCausalLM",
                                        .keys = &kKeys,
                                        .read_config = read,
                                        .layer_prefix = mla::layer_prefix,
                                        .weight_rows = mla::weight_rows,
                                        .unused_tensors = mla::unused_tensors,
                                        .layer_cache = mla::layer_cache,
                                        .make_model = mla::make_model,
                                        .describe = mla::describe,
                                        .describe_json = mla::describe_json,
                                        .make_chat = text::make_glm_chat,
                                        .gguf = &kGguf};

}  // namespace levin
