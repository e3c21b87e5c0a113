#include "arch/config_override.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/closest.h"

namespace levin {

Result<ConfigOverride> parse_config_override(std::string_view text) {
  const size_t sign = text.find('=');
  if (sign == 0 || sign == std::string_view::npos) {
    return Error{ErrorKind::kUsage, fmt::format("--override {}: expected KEY=VALUE, a key of config.json and its value "
                                                "as JSON, such as index_topk_freq=4",
                                                text)};
  }
  const std::string_view value = text.substr(sign + 1);
  Result<io::JsonValue> json = io::parse_json(value, "--override");
  return ConfigOverride{.key = std::string(text.substr(0, sign)),
                        .value = json.ok() ? std::move(*json) : io::JsonValue(value)};
}

std::string override_text(const ConfigOverride& o) { return fmt::format("{}={}", o.key, io::dump_json(o.value)); }

std::string overrides_text(std::span<const ConfigOverride> overrides) {
  std::string text;
  for (const ConfigOverride& o : overrides) text += (text.empty() ? "" : ", ") + override_text(o);
  return text;
}

std::string apply_overrides(std::span<const ConfigOverride> overrides, std::string_view source,
                            io::JsonValue* document) {
  std::string name(source);
  io::JsonObject* config = document->as_object();
  if (config == nullptr) return name;
  for (const ConfigOverride& o : overrides) {
    config->set(o.key, o.value);
    name += fmt::format("{}--override {}", &o == overrides.data() ? " with " : " ", override_text(o));
  }
  return name;
}

Status check_override_keys(std::span<const ConfigOverride> overrides, const ConfigKeys& keys) {
  const std::vector<std::string> known = known_config_keys(keys);
  for (const ConfigOverride& o : overrides) {
    if (std::find(known.begin(), known.end(), o.key) != known.end()) continue;
    const std::optional<std::string> near = closest(o.key, known);
    return Error{ErrorKind::kUsage,
                 fmt::format("--override {}: config.json of this model has no key \"{}\" that this version knows; {}",
                             override_text(o), o.key,
                             near ? fmt::format("did you mean \"{}\"?", *near) : "correct the key or omit it")};
  }
  return {};
}

}  // namespace levin
