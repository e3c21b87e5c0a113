// GLM-5.3-Flash (glm5_next), text alone: layers of linear attention with a recurrent state, and between them layers of
// latent attention whose indexer selects pools of tokens; several residual streams.
#include "arch/glm_next/architecture.h"

#include "arch/glm_next/parts.h"

namespace levin {

constinit const Architecture kGlmNext{.name = "GLM-5.3-Flash",
                                      .releases = "GLM-5.3-Flash, text alone",
                                      .model_type = "glm5_next",
                                      .class_name = "Glm5NextForConditionalGeneration",
                                      .keys = &glm_next::kConfigKeys,
                                      .text_key = "text_config",
                                      .read_config = glm_next::read_config,
                                      .layer_prefix = glm_next::layer_prefix,
                                      .weight_rows = glm_next::weight_rows,
                                      .unused_tensors = glm_next::unused_tensors,
                                      .layer_cache = glm_next::layer_cache,
                                      .own_workspace = glm_next::own_workspace,
                                      .draft_state = glm_next::draft_state,
                                      .adjust_numerics = glm_next::adjust_numerics,
                                      .make_model = glm_next::make_model,
                                      .describe = glm_next::describe,
                                      .describe_json = glm_next::describe_json,
                                      .make_chat = text::make_glm_chat};

}  // namespace levin
