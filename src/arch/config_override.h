// Values for keys of config.json that the user gives in addition to the file, as `--override KEY=VALUE`: each replaces the
// value of the file or stands where the file has none.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "io/json.h"
#include "model/config_keys.h"

namespace levin {

struct ConfigOverride {
  std::string key;
  io::JsonValue value;
};

// "index_topk_freq=4". The value is JSON; what is no JSON is a string, so that FSSS needs no quotes. kUsage without a
// key or "=".
Result<ConfigOverride> parse_config_override(std::string_view text);

// "index_topk_freq=4": equal overrides, equal texts.
std::string override_text(const ConfigOverride& o);
// All of them with ", " between; empty without any.
std::string overrides_text(std::span<const ConfigOverride> overrides);

// Sets each key in the document of a config.json, and returns what errors call it then: "config.json with --override
// index_topk_freq=4". A document that is no object is left alone.
std::string apply_overrides(std::span<const ConfigOverride> overrides, std::string_view source,
                            io::JsonValue* document);

// kUsage for a key that the file could not have either, with the one that may have been meant.
Status check_override_keys(std::span<const ConfigOverride> overrides, const ConfigKeys& keys);

}  // namespace levin
