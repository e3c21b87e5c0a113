#include "apps/levin/gguf_tokenizer.h"

#include <fmt/core.h>

#include <filesystem>
#include <vector>

#include "io/json.h"
#include "model/architecture.h"

namespace levin::app {
namespace {

using io::JsonArray;
using io::JsonFields;
using io::JsonObject;
using io::JsonValue;

// Kinds of tokens.
constexpr int32_t kNormalToken = 1;
constexpr int32_t kControlToken = 3;
constexpr int32_t kUserDefinedToken = 4;
constexpr int32_t kUnusedToken = 5;

struct Vocabulary {
  std::vector<std::string> tokens;
  std::vector<int32_t> kinds;
};

Status put_token(const JsonFields& fields, const std::string& token, int64_t id, int32_t kind, Vocabulary* out) {
  if (id < 0 || id >= std::ssize(out->tokens)) {
    return Error{ErrorKind::kModelInvalid,
                 fmt::format("{}: token \"{}\" has the id {}, and the model's vocabulary is {}", fields.where(), token,
                             id, out->tokens.size())};
  }
  out->tokens[static_cast<size_t>(id)] = token;
  out->kinds[static_cast<size_t>(id)] = kind;
  return {};
}

// Ids that no token has are padding.
Result<Vocabulary> read_vocabulary(const JsonFields& file, const JsonFields& model, int64_t n_vocab) {
  Vocabulary out;
  for (int64_t id = 0; id < n_vocab; ++id) out.tokens.push_back(fmt::format("[PAD{}]", id));
  out.kinds.assign(out.tokens.size(), kUnusedToken);
  LEVIN_ASSIGN(const JsonFields vocab, model.get_fields("vocab"));
  for (const io::JsonMember& member : vocab.object().members()) {
    LEVIN_ASSIGN(const int64_t id, vocab.get<int64_t>(member.key));
    LEVIN_TRY(put_token(vocab, member.key, id, kNormalToken, &out));
  }
  const JsonValue* added = file.find("added_tokens");
  if (added == nullptr || added->as_array() == nullptr) return out;
  for (const JsonValue& entry : *added->as_array()) {
    LEVIN_ASSIGN(const JsonFields token, JsonFields::of(entry, "added_tokens"));
    LEVIN_ASSIGN(const int64_t id, token.get<int64_t>("id"));
    LEVIN_ASSIGN(const std::string content, token.get<std::string>("content"));
    LEVIN_ASSIGN(const bool special, token.get_or("special", false));
    LEVIN_TRY(put_token(file, content, id, special ? kControlToken : kUserDefinedToken, &out));
  }
  return out;
}

// "a b", or ["a", "b"].
Result<std::vector<std::string>> read_merges(const JsonFields& model) {
  std::vector<std::string> out;
  const JsonValue* merges = model.find("merges");
  if (merges == nullptr || merges->as_array() == nullptr) return out;
  for (const JsonValue& merge : *merges->as_array()) {
    if (const std::string* text = merge.as_string()) {
      out.push_back(*text);
      continue;
    }
    const JsonArray* pair = merge.as_array();
    const bool sound = pair != nullptr && pair->size() == 2 && (*pair)[0].as_string() && (*pair)[1].as_string();
    if (!sound) {
      return Error{ErrorKind::kModelInvalid,
                   fmt::format("{}: merge {} is neither \"a b\" nor [\"a\", \"b\"]", model.where(), out.size())};
    }
    out.push_back(*(*pair)[0].as_string() + " " + *(*pair)[1].as_string());
  }
  return out;
}

}  // namespace

Status set_gguf_tokenizer(const std::string& folder, const ModelConfig& config, io::GgufWriter* file) {
  const std::filesystem::path path = std::filesystem::path(folder) / "tokenizer.json";
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    file->set("tokenizer.ggml.model", std::string("none"));
    return {};
  }
  LEVIN_ASSIGN(const std::string text, io::read_file(path));
  LEVIN_ASSIGN(const JsonValue document, io::parse_json(text, path.string()));
  LEVIN_ASSIGN(const JsonFields fields, JsonFields::of(document, path.string()));
  LEVIN_ASSIGN(const JsonFields model, fields.get_fields("model"));
  LEVIN_ASSIGN(Vocabulary vocabulary, read_vocabulary(fields, model, config.n_vocab));
  LEVIN_ASSIGN(std::vector<std::string> merges, read_merges(model));
  file->set("tokenizer.ggml.model", std::string("gpt2"));
  file->set("tokenizer.ggml.pre", std::string(config.family->gguf->pre_tokenizer));
  file->set("tokenizer.ggml.tokens", std::move(vocabulary.tokens));
  file->set("tokenizer.ggml.token_type", std::move(vocabulary.kinds));
  file->set("tokenizer.ggml.merges", std::move(merges));
  if (config.bos_token >= 0) file->set("tokenizer.ggml.bos_token_id", static_cast<uint32_t>(config.bos_token));
  if (!config.eos_tokens.empty())
    file->set("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(config.eos_tokens.front()));
  return {};
}

}  // namespace levin::app
