// DeepSeek-V4.1, text alone: compressed keys and selections that layers share, two levels of selection, a memory of
// n-grams in a mapped file, residual streams read with the weights of the sublayer before.
#include "arch/deepseek_v41/architecture.h"

#include "arch/deepseek_v41/parts.h"

namespace levin {
namespace {

constexpr std::string_view kCudaLacks =
    "ngram_rows, read_table_soon, table_rows, gate_streams, select_blocks, keep_blocks, round_to_fp8, round_to_nvfp4";

}  // namespace

constinit const Architecture kDeepseekV41{.name = "DeepSeek-V4.1",
                                          .releases = "DeepSeek-V4.1-Flash, text alone",
                                          .model_type = "deepseek_v41",
                                          .class_name = "DeepseekV41ForCausalLM",
                                          .keys = &deepseek_v41::kConfigKeys,
                                          .text_key = "text_config",
                                          .fp8_block = 32,
                                          .max_mtp_layers = 64,
                                          .read_config = deepseek_v41::read_config,
                                          .layer_prefix = deepseek_v41::layer_prefix,
                                          .weight_rows = deepseek_v41::weight_rows,
                                          .unused_tensors = deepseek_v41::unused_tensors,
                                          .attach_files = deepseek_v41::attach_files,
                                          .layer_cache = deepseek_v41::layer_cache,
                                          .own_workspace = deepseek_v41::own_workspace,
                                          .adjust_numerics = deepseek_v41::adjust_numerics,
                                          .make_model = deepseek_v41::make_model,
                                          .cuda_lacks = kCudaLacks,
                                          .describe = deepseek_v41::describe,
                                          .describe_json = deepseek_v41::describe_json,
                                          .make_chat = text::make_deepseek_v41_chat};

}  // namespace levin
