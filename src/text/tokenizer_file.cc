#include "text/tokenizer_file.h"

#include <fmt/core.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "io/json.h"
#include "text/byte_alphabet.h"
#include "text/unicode.h"

namespace levin::text {
namespace {

using io::JsonFields;
using io::JsonValue;

constexpr std::string_view kFile = "tokenizer.json";
constexpr TokenId kMaxIds = 1 << 24;  // far above any vocabulary; keeps a mistyped id from asking for the memory

Error invalid(std::string message) {
  return Error{ErrorKind::kModelInvalid, fmt::format("{}: {}", kFile, std::move(message))};
}

Error refuse(std::string_view key, std::string_view what) {
  return invalid(fmt::format("{} {}, which is not implemented", key, what));
}

// Refuses members a section may not have, for they could change what the section means.
Status check_keys(const JsonFields& fields, std::string_view section, std::initializer_list<std::string_view> known) {
  for (const io::JsonMember& member : fields.object().members()) {
    if (std::find(known.begin(), known.end(), member.key) == known.end()) {
      return refuse(fmt::format("{}{}", section, member.key), "is an unknown key");
    }
  }
  return {};
}

Result<TokenId> to_id(const JsonValue& value, std::string_view key) {
  const std::optional<int64_t> id = value.to_int64();
  if (!id || *id < 0 || *id >= kMaxIds) {
    return invalid(
        fmt::format("{} is {}, expected a token id from 0 to {}", key, io::describe_json(value), kMaxIds - 1));
  }
  return static_cast<TokenId>(*id);
}

std::string type_of(const JsonValue& value) {
  const io::JsonObject* object = value.as_object();
  const JsonValue* type = object != nullptr ? object->find("type") : nullptr;
  return type != nullptr ? io::describe_json(*type) : "missing";
}

bool has_type(const JsonValue& value, std::string_view type) {
  const io::JsonObject* object = value.as_object();
  const JsonValue* member = object != nullptr ? object->find("type") : nullptr;
  return member != nullptr && member->as_string() != nullptr && *member->as_string() == type;
}

// Reads the document section by section into a TokenizerFile.
class Reader {
 public:
  Result<TokenizerFile> read(const JsonFields& document) {
    LEVIN_TRY(check_keys(document, "",
                         {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                          "post_processor", "decoder", "model"}));
    LEVIN_ASSIGN(const std::string version, document.get_or("version", "1.0"));
    if (version != "1.0") return refuse("version", fmt::format("is \"{}\" instead of \"1.0\"", version));
    for (const std::string_view key : {"truncation", "padding"}) {
      if (document.has(key)) return refuse(key, "is set");
    }
    LEVIN_TRY(check_normalizer(document));
    LEVIN_TRY(check_decoder(document));
    const JsonValue* pre_tokenizer = document.find("pre_tokenizer");
    LEVIN_ASSIGN(file_.split, recognise_pre_tokenizer(pre_tokenizer != nullptr ? *pre_tokenizer : JsonValue(), kFile));
    LEVIN_ASSIGN(const JsonFields model, document.get_fields("model"));
    LEVIN_TRY(read_model(model));
    LEVIN_TRY(read_added_tokens(document));
    LEVIN_TRY(check_byte_tokens_stay_text());
    if (const JsonValue* post_processor = document.find("post_processor")) {
      LEVIN_TRY(read_post_processor(*post_processor, "post_processor"));
    }
    return std::move(file_);
  }

 private:
  static Status check_normalizer(const JsonFields& document) {
    if (!document.has("normalizer")) return {};
    const JsonValue& normalizer = *document.find("normalizer");
    if (has_type(normalizer, "Sequence")) {
      const JsonValue* list = normalizer.as_object()->find("normalizers");
      if (list != nullptr && list->as_array() != nullptr && list->as_array()->empty()) return {};
      return refuse("normalizer", "is a Sequence that is not empty");
    }
    return refuse("normalizer", fmt::format("has type {}", type_of(normalizer)));
  }

  static Status check_decoder(const JsonFields& document) {
    const JsonValue* decoder = document.find("decoder");
    if (decoder == nullptr || decoder->is_null())
      return refuse("decoder", "is missing, so tokens would be joined by spaces");
    if (!has_type(*decoder, "ByteLevel")) return refuse("decoder", fmt::format("has type {}", type_of(*decoder)));
    return {};
  }

  Status read_model(const JsonFields& model) {
    LEVIN_TRY(check_keys(model, "model.",
                         {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                          "byte_fallback", "ignore_merges", "vocab", "merges"}));
    LEVIN_ASSIGN(const std::string type, model.get<std::string>("type"));
    if (type != "BPE") return refuse("model.type", fmt::format("is \"{}\"", type));
    LEVIN_ASSIGN(const double dropout, model.get_or("dropout", 0.0));
    if (dropout != 0.0) return refuse("model.dropout", fmt::format("is {}", dropout));
    for (const std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      LEVIN_ASSIGN(const std::string affix, model.get_or(key, ""));
      if (!affix.empty()) return refuse(fmt::format("model.{}", key), fmt::format("is \"{}\"", affix));
    }
    // unk_token, fuse_unk and byte_fallback speak of bytes without a token; read_vocab() makes sure there are none.
    LEVIN_ASSIGN(const bool ignore_merges, model.get_or("ignore_merges", false));
    LEVIN_TRY(read_vocab(model, ignore_merges));
    return read_merges(model);
  }

  Status read_vocab(const JsonFields& model, bool ignore_merges) {
    LEVIN_ASSIGN(const JsonFields vocab, model.get_fields("vocab"));
    ids_.reserve(vocab.object().n_members());
    for (const io::JsonMember& member : vocab.object().members()) {
      const std::string key = fmt::format("model.vocab[\"{}\"]", member.key);
      LEVIN_ASSIGN(const TokenId id, to_id(member.value, key));
      if (member.key.empty()) return invalid("model.vocab has an empty token");
      ids_.emplace(member.key, id);
      const std::optional<std::string> bytes = alphabet_.bytes_of(member.key);
      if (ignore_merges && bytes) file_.bpe.whole_pieces.push_back(id);
      LEVIN_TRY(set_token(id, bytes.value_or(member.key), key));
    }
    for (int byte = 0; byte < 256; ++byte) {
      std::string spelling;
      append_utf8(alphabet_.character(static_cast<uint8_t>(byte)), spelling);
      const auto found = ids_.find(spelling);
      if (found == ids_.end()) {
        return invalid(fmt::format(
            "model.vocab has no token \"{}\" for the byte 0x{:02X}; byte-level BPE needs all 256", spelling, byte));
      }
      file_.bpe.byte_tokens[static_cast<size_t>(byte)] = found->second;
    }
    return {};
  }

  Status set_token(TokenId id, std::string bytes, std::string_view key) {
    const auto place = static_cast<size_t>(id);
    if (place >= file_.tokens.size()) file_.tokens.resize(place + 1);
    if (!file_.tokens[place].empty()) {
      return invalid(fmt::format("{} has id {}, which another token has too", key, id));
    }
    file_.tokens[place] = std::move(bytes);
    return {};
  }

  Status read_merges(const JsonFields& model) {
    const JsonValue* merges = model.find("merges");
    if (merges == nullptr || merges->as_array() == nullptr) return model.unexpected("merges", "a list");
    file_.bpe.merges.reserve(merges->as_array()->size());
    for (size_t i = 0; i < merges->as_array()->size(); ++i) {
      const JsonValue& entry = (*merges->as_array())[i];
      if (i == 0 && entry.as_string() != nullptr && entry.as_string()->starts_with("#version")) continue;
      LEVIN_TRY(read_merge(entry, i));
    }
    return {};
  }

  Status read_merge(const JsonValue& entry, size_t i) {
    std::string_view left, right;
    if (const std::string* text = entry.as_string()) {
      const size_t space = text->find(' ');
      if (space != std::string::npos && text->find(' ', space + 1) == std::string::npos) {
        left = std::string_view(*text).substr(0, space);
        right = std::string_view(*text).substr(space + 1);
      }
    } else if (const io::JsonArray* pair = entry.as_array(); pair != nullptr && pair->size() == 2) {
      const std::string* first = (*pair)[0].as_string();
      const std::string* second = (*pair)[1].as_string();
      if (first != nullptr && second != nullptr) left = *first, right = *second;
    }
    if (left.empty() || right.empty()) {
      return invalid(
          fmt::format("model.merges[{}] is {}, expected \"a b\" or [\"a\", \"b\"]", i, io::describe_json(entry)));
    }
    Merge merge;
    LEVIN_ASSIGN(merge.left, token_of(left, i));
    LEVIN_ASSIGN(merge.right, token_of(right, i));
    LEVIN_ASSIGN(merge.joined, token_of(fmt::format("{}{}", left, right), i));
    file_.bpe.merges.push_back(merge);
    return {};
  }

  Result<TokenId> token_of(std::string_view spelling, size_t merge) const {
    const auto found = ids_.find(spelling);
    if (found != ids_.end()) return found->second;
    return invalid(
        fmt::format("model.merges[{}] needs the token \"{}\", which model.vocab does not have", merge, spelling));
  }

  Status read_added_tokens(const JsonFields& document) {
    if (!document.has("added_tokens")) return {};
    const io::JsonArray* list = document.find("added_tokens")->as_array();
    if (list == nullptr) return document.unexpected("added_tokens", "a list");
    std::unordered_map<std::string_view, TokenId> names;
    file_.added.reserve(list->size());  // `names` looks into it
    for (size_t i = 0; i < list->size(); ++i) {
      const std::string key = fmt::format("added_tokens[{}]", i);
      LEVIN_ASSIGN(AddedToken token, read_added_token((*list)[i], key));
      file_.added.push_back(std::move(token));
      const AddedToken& added = file_.added.back();
      if (!names.emplace(added.name, added.id).second) {
        return invalid(fmt::format("{}.content is \"{}\", which is listed twice", key, added.name));
      }
      LEVIN_TRY(place_added_token(added, key));
    }
    return {};
  }

  static Result<AddedToken> read_added_token(const JsonValue& entry, const std::string& key) {
    LEVIN_ASSIGN(const JsonFields fields, JsonFields::of(entry, fmt::format("{}: {}", kFile, key)));
    LEVIN_TRY(check_keys(fields, fmt::format("{}.", key),
                         {"id", "content", "special", "single_word", "lstrip", "rstrip", "normalized"}));
    AddedToken token;
    if (!fields.has("id")) return invalid(fmt::format("{}.id is missing", key));
    LEVIN_ASSIGN(token.id, to_id(*fields.find("id"), fmt::format("{}.id", key)));
    LEVIN_ASSIGN(token.name, fields.get<std::string>("content"));
    LEVIN_ASSIGN(token.special, fields.get<bool>("special"));
    LEVIN_ASSIGN(token.single_word, fields.get<bool>("single_word"));
    LEVIN_ASSIGN(token.lstrip, fields.get<bool>("lstrip"));
    LEVIN_ASSIGN(token.rstrip, fields.get<bool>("rstrip"));
    LEVIN_ASSIGN(token.normalized, fields.get<bool>("normalized"));
    if (token.name.empty()) return invalid(fmt::format("{}.content is empty", key));
    return token;
  }

  // An added token may repeat a token of the vocabulary (same id) or bring an id of its own.
  Status place_added_token(const AddedToken& token, std::string_view key) {
    const auto found = ids_.find(token.name);
    if (found == ids_.end()) return set_token(token.id, token.name, key);
    if (found->second != token.id) {
      return invalid(
          fmt::format("{} \"{}\" has id {}, but {} in model.vocab", key, token.name, token.id, found->second));
    }
    file_.tokens[static_cast<size_t>(token.id)] = token.name;
    return {};
  }

  Status check_byte_tokens_stay_text() const {
    for (const AddedToken& token : file_.added) {
      const auto& bytes = file_.bpe.byte_tokens;
      if (std::find(bytes.begin(), bytes.end(), token.id) == bytes.end()) continue;
      return refuse(fmt::format("added token \"{}\"", token.name), "is the token of a single byte");
    }
    return {};
  }

  Status read_post_processor(const JsonValue& value, const std::string& key) {
    if (value.is_null() || has_type(value, "ByteLevel")) return {};  // ByteLevel only moves offsets
    if (has_type(value, "TemplateProcessing")) return read_template(*value.as_object(), key);
    if (!has_type(value, "Sequence")) return refuse(key, fmt::format("has type {}", type_of(value)));
    const JsonValue* list = value.as_object()->find("processors");
    if (list == nullptr || list->as_array() == nullptr) return invalid(fmt::format("{}.processors is not a list", key));
    for (size_t i = 0; i < list->as_array()->size(); ++i) {
      LEVIN_TRY(read_post_processor((*list->as_array())[i], fmt::format("{}.processors[{}]", key, i)));
    }
    return {};
  }

  // Of "single": special tokens, then the text. Tokens after the text are refused: a prompt continues after it.
  Status read_template(const io::JsonObject& object, const std::string& key) {
    const JsonValue* single = object.find("single");
    const io::JsonArray* items = single != nullptr ? single->as_array() : nullptr;
    if (items == nullptr) return invalid(fmt::format("{}.single is not a list", key));
    bool after_text = false;
    for (const JsonValue& item : *items) {
      const io::JsonObject* fields = item.as_object();
      if (fields != nullptr && fields->contains("Sequence") && !after_text) {
        after_text = true;
      } else if (fields != nullptr && fields->contains("SpecialToken") && !after_text) {
        LEVIN_TRY(add_template_token(object, *fields->find("SpecialToken"), key));
      } else {
        return refuse(fmt::format("{}.single", key), "has more than special tokens and then the text");
      }
    }
    return {};
  }

  Status add_template_token(const io::JsonObject& object, const JsonValue& item, const std::string& key) {
    const auto member = [](const JsonValue* value, std::string_view name) -> const JsonValue* {
      const io::JsonObject* fields = value != nullptr ? value->as_object() : nullptr;
      return fields != nullptr ? fields->find(name) : nullptr;
    };
    const JsonValue* name = member(&item, "id");
    const JsonValue* known = object.find("special_tokens");
    const JsonValue* entry =
        name != nullptr && name->as_string() != nullptr ? member(known, *name->as_string()) : nullptr;
    const JsonValue* ids = member(entry, "ids");
    if (ids == nullptr || ids->as_array() == nullptr) {
      return invalid(fmt::format("{}.single names a token that {}.special_tokens does not describe", key, key));
    }
    for (const JsonValue& value : *ids->as_array()) {
      LEVIN_ASSIGN(const TokenId id, to_id(value, fmt::format("{}.special_tokens ids", key)));
      if (static_cast<size_t>(id) >= file_.tokens.size() || file_.tokens[static_cast<size_t>(id)].empty()) {
        return invalid(fmt::format("{}.special_tokens has id {}, which is not a token", key, id));
      }
      file_.prefix.push_back(id);
    }
    return {};
  }

  ByteAlphabet alphabet_;
  std::unordered_map<std::string_view, TokenId> ids_;  // of model.vocab; looks into the document
  TokenizerFile file_;
};

}  // namespace

Result<TokenizerFile> parse_tokenizer_file(std::string_view json) {
  LEVIN_ASSIGN(const JsonValue value, io::parse_json(json, kFile));
  LEVIN_ASSIGN(const JsonFields document, JsonFields::of(value, kFile));
  return Reader().read(document);
}

}  // namespace levin::text
