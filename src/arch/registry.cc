// The one file that names the families.
#include "arch/registry.h"

#include <fmt/format.h>

#include <algorithm>

#include "arch/deepseek_v3/architecture.h"
#include "arch/deepseek_v4/architecture.h"
#include "arch/deepseek_v41/architecture.h"
#include "arch/glm/architecture.h"
#include "arch/glm_next/architecture.h"
#include "base/check.h"

namespace levin {
namespace {

const Architecture* const kFamilies[] = {&kDeepseekV32, &kGlmMoeDsa, &kDeepseekV4, &kDeepseekV41, &kGlmNext};

// What a model of another type is, for those that people are likely to try.
struct OtherModel {
  std::string_view type;
  std::string_view what;
};
constexpr OtherModel kOtherModels[] = {
    {"deepseek_v3", "DeepSeek-V3, which has no lightning indexer; this program runs sparse attention only"},
    {"deepseek_v2", "DeepSeek-V2, which has no lightning indexer; this program runs sparse attention only"},
};

// Keys that make another model of a checkpoint, whatever its model_type says.
struct OtherKeys {
  std::string_view prefix;
  std::string_view what;
};
constexpr OtherKeys kOtherKeys[] = {
    {"dspark_", "a DSpark block drafter"},
    {"engram_", "the n-gram memory of DeepSeek-V4.1"},
};

std::string supported_text(std::span<const Architecture* const> families) {
  std::string text;
  for (const Architecture* family : families) {
    text += fmt::format("{}\"{}\" ({})", text.empty() ? "" : ", ", family->model_type, family->releases);
  }
  return text;
}

const Architecture* find(std::span<const Architecture* const> families, std::string_view model_type) {
  const auto found = std::find_if(families.begin(), families.end(),
                                  [&](const Architecture* family) { return family->model_type == model_type; });
  return found == families.end() ? nullptr : *found;
}

// Families may have some of these keys for their own.
bool knows(const Architecture* family, std::string_view key) {
  if (family == nullptr) return false;
  const std::vector<std::string> keys = known_config_keys(*family->keys);
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

}  // namespace

const Registry& Registry::built_in() {
  static const Registry registry({std::begin(kFamilies), std::end(kFamilies)});
  return registry;
}

Registry Registry::with(const Architecture& family) const {
  LEVIN_CHECK(find(families_, family.model_type) == nullptr, "model_type {} has a family already", family.model_type);
  Registry more = *this;
  more.families_.push_back(&family);
  return more;
}

Result<const Architecture*> Registry::family_of(const io::JsonFields& config) const {
  LEVIN_ASSIGN(const std::string type, config.get<std::string>("model_type"));
  const Architecture* const family = find(families_, type);
  for (const io::JsonMember& member : config.object().members()) {
    const auto other = std::find_if(std::begin(kOtherKeys), std::end(kOtherKeys),
                                    [&](const OtherKeys& keys) { return member.key.starts_with(keys.prefix); });
    if (other == std::end(kOtherKeys) || member.value.is_null() || knows(family, member.key)) continue;
    return invalid_model(fmt::format("{}: {}, which is not supported", config.name_of(member.key), other->what));
  }
  if (family != nullptr) return family;
  const auto other = std::find_if(std::begin(kOtherModels), std::end(kOtherModels),
                                  [&](const OtherModel& m) { return m.type == type; });
  const bool known = other != std::end(kOtherModels);
  return invalid_model(fmt::format("{} is \"{}\"{}; this version runs {}", config.name_of("model_type"), type,
                                   known ? fmt::format(": {}", other->what) : ", a model this program does not know",
                                   supported_text(families_)));
}

}  // namespace levin
