// From a checkpoint's folder to its config, and to the chat format of its family.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "arch/config_override.h"
#include "arch/registry.h"
#include "base/result.h"
#include "model/architecture.h"
#include "model/config.h"
#include "text/chat.h"

namespace levin {

// Parses the text of a config.json. `source` is the path to name in errors. Every error is kModelInvalid and names key
// and value; a model_type that the registry does not have is refused with those that it has. Overrides are checked as
// the file's own keys are, and errors name them; but an unknown key, of which the file warns, is kUsage.
Result<ParsedConfig> parse_model_config(std::string_view json, std::string_view source,
                                        const Registry& registry = Registry::built_in(),
                                        std::span<const ConfigOverride> overrides = {});
Result<ParsedConfig> load_model_config(const std::string& folder, const Registry& registry = Registry::built_in(),
                                       std::span<const ConfigOverride> overrides = {});

// The chat format of a checkpoint. kModelInvalid where the family has none, and as ChatFormat::load() says.
Result<text::ChatFormat> load_chat_format(const Architecture& family, const std::filesystem::path& folder,
                                          const text::Tokenizer& tokenizer);

}  // namespace levin
