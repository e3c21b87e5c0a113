// tokenizer_config.json: which tokens begin, end and pad a text.
#include <fmt/core.h>

#include <algorithm>

#include "io/json.h"
#include "text/tokenizer_file.h"

namespace levin::text {
namespace {

constexpr std::string_view kConfigFile = "tokenizer_config.json";

Error invalid_config(std::string_view message) {
  return Error{ErrorKind::kModelInvalid, fmt::format("{}: {}", kConfigFile, message)};
}

// A token's name, written as a string or as an object with "content".
const std::string* name_of(const io::JsonValue& value) {
  if (const io::JsonObject* object = value.as_object()) {
    const io::JsonValue* content = object->find("content");
    return content != nullptr ? content->as_string() : nullptr;
  }
  return value.as_string();
}

const AddedToken* find_token(const std::vector<AddedToken>& added, std::string_view name) {
  const auto found = std::find_if(added.begin(), added.end(), [&](const AddedToken& t) { return t.name == name; });
  return found != added.end() ? &*found : nullptr;
}

Result<std::optional<TokenId>> token_of(const io::JsonFields& config, std::string_view key,
                                        const std::vector<AddedToken>& added) {
  if (!config.has(key)) return std::optional<TokenId>();
  const std::string* name = name_of(*config.find(key));
  if (name == nullptr) return config.unexpected(key, "the name of a token, or an object with \"content\"");
  const AddedToken* token = find_token(added, *name);
  if (token == nullptr) {
    return invalid_config(fmt::format("{} is \"{}\", which is not among added_tokens of tokenizer.json", key, *name));
  }
  return std::optional<TokenId>(token->id);
}

// added_tokens_decoder repeats added_tokens of tokenizer.json; where the two differ there is no telling which is meant.
Status check_added_tokens(const io::JsonFields& config, const std::vector<AddedToken>& added) {
  if (!config.has("added_tokens_decoder")) return {};
  LEVIN_ASSIGN(const io::JsonFields decoder, config.get_fields("added_tokens_decoder"));
  for (const io::JsonMember& member : decoder.object().members()) {
    const std::string* name = name_of(member.value);
    const AddedToken* token = name != nullptr ? find_token(added, *name) : nullptr;
    if (token == nullptr || fmt::format("{}", token->id) != member.key) {
      return invalid_config(fmt::format("added_tokens_decoder.{} is \"{}\", but tokenizer.json has {}", member.key,
                                        name != nullptr ? *name : "",
                                        token != nullptr ? fmt::format("it as {}", token->id) : "no such added token"));
    }
  }
  return {};
}

}  // namespace

Result<TokenizerConfig> parse_tokenizer_config(std::string_view json, const std::vector<AddedToken>& added) {
  TokenizerConfig result;
  if (json.empty()) return result;
  LEVIN_ASSIGN(const io::JsonValue value, io::parse_json(json, kConfigFile));
  LEVIN_ASSIGN(const io::JsonFields config, io::JsonFields::of(value, kConfigFile));
  LEVIN_ASSIGN(result.bos, token_of(config, "bos_token", added));
  LEVIN_ASSIGN(result.eos, token_of(config, "eos_token", added));
  LEVIN_ASSIGN(result.pad, token_of(config, "pad_token", added));
  LEVIN_ASSIGN(result.add_bos_token, config.get_or("add_bos_token", false));
  if (result.add_bos_token && !result.bos) return invalid_config("add_bos_token is true, but there is no bos_token");
  LEVIN_ASSIGN(const bool add_eos_token, config.get_or("add_eos_token", false));
  if (add_eos_token)
    return invalid_config("add_eos_token is true, which is not implemented: a prompt continues after its text");
  LEVIN_TRY(check_added_tokens(config, added));
  return result;
}

}  // namespace levin::text
