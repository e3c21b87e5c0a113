// DeepSeek-V4: one key-value head, windows and compressed entries, several residual streams.
#include "arch/deepseek_v4/architecture.h"

#include "arch/deepseek_v4/parts.h"

namespace levin {

constinit const Architecture kDeepseekV4{.name = "DeepSeek-V4",
                                         .releases = "DeepSeek-V4-Flash and V4-Pro, V4-Flash-0731 and V4-Pro-0813",
                                         .model_type = "deepseek_v4",
                                         .class_name = "DeepseekV4ForCausalLM",
                                         .keys = &deepseek_v4::kConfigKeys,
                                         .max_mtp_layers = 64,  // 1, unless there is a block drafter: read_config
                                         .read_config = deepseek_v4::read_config,
                                         .layer_prefix = deepseek_v4::layer_prefix,
                                         .weight_rows = deepseek_v4::weight_rows,
                                         .layer_cache = deepseek_v4::layer_cache,
                                         .own_workspace = deepseek_v4::own_workspace,
                                         .adjust_numerics = deepseek_v4::adjust_numerics,
                                         .make_model = deepseek_v4::make_model,
                                         .describe = deepseek_v4::describe,
                                         .describe_json = deepseek_v4::describe_json,
                                         .make_chat = text::make_deepseek_v4_chat,
                                         .gguf = &deepseek_v4::kGguf};

}  // namespace levin
