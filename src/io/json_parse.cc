// The tree builder over simdjson's on-demand parser: simdjson finds the tokens, checks UTF-8 and decodes strings;
// numbers keep their text, so their grammar is checked here. Every value is visited, as on-demand parsing validates
// only those.
#include <fmt/core.h>
#include <simdjson.h>

#include <algorithm>
#include <limits>
#include <string>

#include "io/json.h"

namespace levin::io {
namespace {

namespace ondemand = simdjson::ondemand;

constexpr std::string_view kSpace = " \t\n\r";
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

std::string_view without_trailing_space(std::string_view token) {
  return token.substr(0, token.find_last_not_of(kSpace) + 1);
}

std::string_view first_bytes(std::string_view token) {
  size_t cut = std::min<size_t>(token.size(), 40);
  while (cut > 0 && cut < token.size() && (static_cast<unsigned char>(token[cut]) & 0xC0) == 0x80) --cut;
  return token.substr(0, cut);
}

std::string explain(simdjson::error_code code) {
  switch (code) {
    case simdjson::UTF8_ERROR:
      return "the text is not valid UTF-8";
    case simdjson::EMPTY:
      return "the text is empty";
    case simdjson::UNESCAPED_CHARS:
      return "a control character inside a string must be written as an escape";
    case simdjson::UNCLOSED_STRING:
      return "a string is not closed";
    case simdjson::STRING_ERROR:
      return "a string has an invalid escape";
    case simdjson::INCOMPLETE_ARRAY_OR_OBJECT:
      return "the text ends before a list or object is closed";
    case simdjson::TAPE_ERROR:
      return "expected a comma, a colon, a key in quotes, a value or a closing bracket";
    case simdjson::CAPACITY:
      return "the text is longer than 4 GB";
    case simdjson::MEMALLOC:
      return "not enough memory";
    default:
      return simdjson::error_message(code);
  }
}

// Where the list or object that `text` begins with is closed; npos: nowhere.
size_t end_of_container(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if ((c == '}' || c == ']') && --depth == 0) {
      return i + 1;
    }
  }
  return std::string_view::npos;
}

class Builder {
 public:
  Builder(std::string_view text, std::string_view what, const JsonParseOptions& options)
      : text_(text), what_(what), options_(options), padded_(text) {}

  Result<JsonValue> build() {
    if (text_.starts_with(kByteOrderMark)) return error_at(0, "the text begins with a byte order mark, remove it");
    if (const auto code = parser_.iterate(padded_).get(document_)) return stage1_error(code);
    std::string_view token;
    if (const auto code = document_.raw_json_token().get(token)) return error_here(code);
    const bool is_container = token.starts_with('{') || token.starts_with('[');
    Result<JsonValue> root = is_container ? container(document_, token, 1) : scalar(document_, token);
    if (!root.ok()) return root;
    // A scalar's token runs up to the next one, so it must reach the end of the text; a container has been consumed.
    const bool all_read = is_container ? at_end() : token_end(token) == text_.size();
    if (!all_read)
      return error_at(is_container ? next_offset() : token_end(token), "text follows the end of the value");
    return root;
  }

 private:
  Result<JsonValue> value(ondemand::value v, int depth) {
    const std::string_view token = v.raw_json_token();
    if (token.starts_with('{') || token.starts_with('[')) return container(v, token, depth + 1);
    return scalar(v, token);
  }

  // `node` is the document or a value.
  template <class Node>
  Result<JsonValue> container(Node& node, std::string_view token, int depth) {
    if (depth > kMaxJsonDepth) {
      return error_at(offset_of(token), fmt::format("lists and objects nest deeper than {}", kMaxJsonDepth));
    }
    if (token.starts_with('[')) {
      ondemand::array array;
      if (const auto code = node.get_array().get(array)) return error_here(code);
      return elements(array, depth);
    }
    ondemand::object object;
    if (const auto code = node.get_object().get(object)) return error_here(code);
    return members(object, depth, offset_of(token));
  }

  Result<JsonValue> elements(ondemand::array& array, int depth) {
    JsonArray out;
    for (auto item : array) {
      ondemand::value v;
      if (const auto code = item.get(v)) return error_here(code);
      LEVIN_ASSIGN(JsonValue element, value(v, depth));
      out.push_back(std::move(element));
    }
    return JsonValue(std::move(out));
  }

  Result<JsonValue> members(ondemand::object& object, int depth, size_t offset) {
    std::vector<JsonMember> out;
    for (auto item : object) {
      ondemand::field field;
      if (const auto code = std::move(item).get(field)) return error_here(code);
      std::string_view key;
      if (const auto code = field.unescaped_key().get(key)) return error_here(code);
      std::string owned_key(key);
      LEVIN_ASSIGN(JsonValue member, value(field.value(), depth));
      out.push_back({std::move(owned_key), std::move(member)});
    }
    std::optional<std::string> duplicate;
    JsonObject owned(std::move(out), &duplicate);
    if (duplicate && options_.duplicates == DuplicateKeys::kError) {
      return error_at(
          offset, fmt::format("the object that begins here has the key {} twice", first_bytes(dump_json(*duplicate))));
    }
    return JsonValue(std::move(owned));
  }

  template <class Node>
  Result<JsonValue> scalar(Node& node, std::string_view token) {
    if (token.starts_with('"')) {
      std::string_view text;
      if (const auto code = node.get_string().get(text)) {
        return error_at(offset_of(token), explain(code));
      }
      return JsonValue(text);
    }
    const std::string_view word = without_trailing_space(token);
    if (word == "null") return JsonValue();
    if (word == "true") return JsonValue(true);
    if (word == "false") return JsonValue(false);
    if (auto number = JsonNumber::from_text(word)) return JsonValue(std::move(*number));
    if (word == "NaN" || word == "Infinity" || word == "-Infinity") {
      return error_at(offset_of(token), fmt::format("{} is not allowed in JSON, write a number or null", word));
    }
    return error_at(offset_of(token), fmt::format("expected a value, found '{}'", first_bytes(word)));
  }

  size_t offset_of(std::string_view token) const { return static_cast<size_t>(token.data() - padded_.data()); }
  size_t token_end(std::string_view token) const { return offset_of(token) + token.size(); }

  bool at_end() {
    const char* location = nullptr;
    return document_.current_location().get(location) == simdjson::OUT_OF_BOUNDS;
  }

  // Where the parser stands, clamped into the text.
  size_t next_offset() {
    const char* location = nullptr;
    if (document_.current_location().get(location) != simdjson::SUCCESS) return text_.size();
    return std::min(static_cast<size_t>(location - padded_.data()), text_.size());
  }

  // The parser looks at the last character first: what follows a whole value looks to it like a value without an end.
  Error error_here(simdjson::error_code code) {
    if (code == simdjson::INCOMPLETE_ARRAY_OR_OBJECT) {
      const size_t begin = text_.find_first_not_of(kSpace);
      const size_t end = end_of_container(text_.substr(begin));
      const size_t rest = end == std::string_view::npos ? end : text_.find_first_not_of(kSpace, begin + end);
      if (rest != std::string_view::npos) return error_at(rest, "text follows the end of the value");
      return error_at(text_.size(), explain(code));
    }
    return error_at(next_offset(), explain(code));
  }

  // Errors of the first pass, which has no position; the first broken line is found for the most common one.
  Error stage1_error(simdjson::error_code code) const {
    if (code != simdjson::UTF8_ERROR) return Error{options_.kind, fmt::format("{}: {}", what_, explain(code))};
    size_t begin = 0;
    while (begin < text_.size()) {
      const size_t end = std::min(text_.find('\n', begin), text_.size());
      if (!simdjson::validate_utf8(text_.data() + begin, end - begin)) break;
      begin = end + 1;
    }
    return error_at(begin, explain(code));
  }

  Error error_at(size_t offset, std::string_view message) const {
    const std::string_view before = text_.substr(0, offset);
    const size_t line = 1 + static_cast<size_t>(std::count(before.begin(), before.end(), '\n'));
    const size_t column = offset - (before.rfind('\n') + 1) + 1;  // npos + 1 is 0
    return Error{options_.kind, fmt::format("{}: line {}, column {}: {}", what_, line, column, message)};
  }

  std::string_view text_;
  std::string_view what_;
  const JsonParseOptions& options_;
  simdjson::padded_string padded_;
  ondemand::parser parser_;
  ondemand::document document_;
};

}  // namespace

Result<JsonValue> parse_json(std::string_view text, std::string_view what, const JsonParseOptions& options) {
  if (text.size() >= std::numeric_limits<uint32_t>::max()) {
    return Error{options.kind, fmt::format("{}: the text is longer than 4 GB", what)};
  }
  return Builder(text, what, options).build();
}

}  // namespace levin::io
