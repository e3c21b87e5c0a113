#include "grammar/json_schema.h"

#include <fmt/core.h>

#include <algorithm>
#include <span>
#include <utility>

#include "grammar/number_range.h"
#include "grammar/regex.h"
#include "grammar/schema_values.h"
#include "grammar/text_forms.h"

namespace levin::grammar {
namespace {

using io::JsonArray;
using io::JsonObject;
using io::JsonValue;

constexpr std::string_view kHonoured[] = {"type",
                                          "enum",
                                          "const",
                                          "anyOf",
                                          "oneOf",
                                          "allOf",
                                          "$ref",
                                          "$defs",
                                          "definitions",
                                          "properties",
                                          "required",
                                          "additionalProperties",
                                          "patternProperties",
                                          "items",
                                          "prefixItems",
                                          "minItems",
                                          "maxItems",
                                          "minLength",
                                          "maxLength",
                                          "pattern",
                                          "format",
                                          "minimum",
                                          "maximum",
                                          "exclusiveMinimum",
                                          "exclusiveMaximum"};
// With these, a schema says nothing of its own.
constexpr std::string_view kDefinitions[] = {"$defs", "definitions"};

struct Format {
  std::string_view name, pattern;
};
// Without the 29th of February, which is a day in some years only.
constexpr std::string_view kDate =
    "[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))";
constexpr std::string_view kTime =
    "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";
constexpr std::string_view kLabel = "[a-zA-Z0-9]([a-zA-Z0-9-]{0,30}[a-zA-Z0-9])?";

std::optional<std::string> pattern_of_format(std::string_view format) {
  if (format == "date") return std::string(kDate);
  if (format == "time") return std::string(kTime);
  if (format == "date-time") return fmt::format("{}T{}", kDate, kTime);
  if (format == "uuid") return "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}";
  if (format == "ipv4") {
    constexpr std::string_view kByte = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])";
    return fmt::format("{0}(\\.{0}){{3}}", kByte);
  }
  if (format == "hostname") return fmt::format("{0}(\\.{0}){{0,6}}", kLabel);
  if (format == "email")
    return fmt::format("[a-zA-Z0-9_+-]{{1,32}}(\\.[a-zA-Z0-9_+-]{{1,32}}){{0,3}}@{0}(\\.{0}){{1,4}}", kLabel);
  return std::nullopt;
}

bool is_in(std::string_view word, std::span<const std::string_view> list) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

Result<int64_t> count_at(const JsonObject& schema, std::string_view key, int64_t fallback, const std::string& path) {
  const JsonValue* value = schema.find(key);
  if (value == nullptr) return fallback;
  const std::optional<int64_t> count = value->as_number() != nullptr ? value->to_int64() : std::nullopt;
  if (count && *count >= 0) return *count;
  return schema_error(path, fmt::format("has {} {}, expected a whole number from 0", key, io::describe_json(*value)));
}

Result<CountRange> count_range(const JsonObject& schema, std::string_view min, std::string_view max,
                               const std::string& path) {
  CountRange out;
  LEVIN_ASSIGN(out.min, count_at(schema, min, 0, path));
  LEVIN_ASSIGN(out.max, count_at(schema, max, kNoLimit, path));
  return out;
}

Result<const std::string*> string_at(const JsonObject& schema, std::string_view key, const std::string& path) {
  const JsonValue* value = schema.find(key);
  if (value == nullptr || value->as_string() != nullptr) return value != nullptr ? value->as_string() : nullptr;
  return schema_error(path, fmt::format("has {} {}, expected a string", key, io::describe_json(*value)));
}

Expression one_of_values(const JsonArray& values) {
  std::vector<Expression> parts;
  for (const JsonValue& value : values) parts.push_back(literal(io::dump_json(value)));
  return choice(std::move(parts));
}

}  // namespace

Status SchemaReader::check_keywords(const JsonObject& schema, const std::string& path) const {
  if (unsupported_ == Unsupported::kPassedOver) return {};
  for (const io::JsonMember& m : schema.members()) {
    if (is_in(m.key, kHonoured) || is_annotation(m.key)) continue;
    const bool* flag = m.value.as_bool();
    if (m.key == "uniqueItems" && flag != nullptr && !*flag) continue;
    if (m.key == "nullable" && flag != nullptr && !*flag) continue;
    return schema_error(path, fmt::format("has the keyword \"{}\", which is not supported", m.key));
  }
  return {};
}

Result<const JsonValue*> SchemaReader::find_reference(const std::string& reference, const std::string& path) const {
  const auto missing = [&] {
    return schema_error(
        path,
        fmt::format("refers to \"{}\", which is not in the schema; only references inside it are known", reference));
  };
  if (reference.empty() || reference[0] != '#') return missing();
  const JsonValue* at = &root_;
  for (size_t begin = 1; begin < reference.size();) {
    if (reference[begin] != '/') return missing();
    const size_t end = std::min(reference.find('/', begin + 1), reference.size());
    const std::string key = unescape_pointer(std::string_view(reference).substr(begin + 1, end - begin - 1));
    at = member_at(*at, key);
    if (at == nullptr) return missing();
    begin = end;
  }
  return at;
}

Result<Expression> SchemaReader::referenced(const std::string& reference, const std::string& path) {
  LEVIN_ASSIGN(const JsonValue* target, find_reference(reference, path));
  const auto [found, is_new] = references_.emplace(reference, -1);
  if (!is_new) return call(found->second);
  const RuleId rule = rules_.reserve();
  found->second = rule;
  LEVIN_ASSIGN(const Expression form, value_of(*target, reference));
  LEVIN_TRY(rules_.define(rule, form));
  return call(rule);
}

Error SchemaReader::too_large(const std::string& path) {
  return schema_error(path, fmt::format("has or makes more than {} parts, or is deeper than {}; references with other "
                                        "keywords are written out",
                                        kMaxValues, kMaxDepth));
}

// Each part that is joined counts as a value that is made: what there is of the joined schema is copied for it.
Result<JsonValue> SchemaReader::resolve(const JsonValue& schema, const std::string& path) {
  if (n_in_document_ > kMaxValues) return too_large(path);
  JsonValue at = schema;
  for (int n_steps = 0; n_steps < io::kMaxJsonDepth; ++n_steps) {
    const JsonObject* object = at.as_object();
    if (object == nullptr) return at;
    LEVIN_ASSIGN(const std::string* reference, string_at(*object, "$ref", path));
    if (reference != nullptr) {
      LEVIN_ASSIGN(const JsonValue* target, find_reference(*reference, path));
      JsonObject rest = *object;
      rest.erase("$ref");
      LEVIN_ASSIGN(at, join_schemas(JsonValue(std::move(rest)), *target, path));
      continue;
    }
    const JsonValue* all = object->find("allOf");
    if (all == nullptr) return at;
    if (all->as_array() == nullptr) return schema_error(path, "has an allOf that is not a list");
    JsonObject rest = *object;
    rest.erase("allOf");
    JsonValue joined(std::move(rest));
    for (const JsonValue& part : *all->as_array()) {
      if (++n_values_ > kMaxValues) return too_large(path);
      LEVIN_ASSIGN(joined, join_schemas(joined, part, path));
    }
    at = std::move(joined);
  }
  return schema_error(path, "refers to itself without anything between");
}

// Refuses what is too large, before much is made of it.
Status SchemaReader::count_part(const std::string& path) {
  if (n_in_document_ > kMaxValues || ++n_values_ > kMaxValues || depth_ > kMaxDepth) return too_large(path);
  if (n_characters_ <= kMaxCharacters) return {};
  return schema_error(path, fmt::format("has {} characters in its names and values, more than the {} that are allowed",
                                        n_characters_, kMaxCharacters));
}

Result<Expression> SchemaReader::value_of(const JsonValue& schema, const std::string& path) {
  LEVIN_TRY(count_part(path));
  ++depth_;
  Result<Expression> out = value_at_depth(schema, path);
  --depth_;
  return out;
}

Result<Expression> SchemaReader::value_at_depth(const JsonValue& schema, const std::string& path) {
  if (const bool* any = schema.as_bool()) return *any ? forms_.any_value() : choice({});
  const JsonObject* object = schema.as_object();
  if (object == nullptr) return schema_error(path, fmt::format("is {}, expected a schema", io::describe_json(schema)));
  LEVIN_TRY(check_keywords(*object, path));
  LEVIN_ASSIGN(const std::string* reference, string_at(*object, "$ref", path));
  const bool alone = std::all_of(object->members().begin(), object->members().end(), [](const io::JsonMember& m) {
    return m.key == "$ref" || is_annotation(m.key) || is_in(m.key, kDefinitions);
  });
  if (reference != nullptr && alone) return referenced(*reference, path);
  if (reference != nullptr || object->contains("allOf")) {
    LEVIN_ASSIGN(const JsonValue joined, resolve(schema, path));
    return value_of(joined, path);
  }
  if (object->contains("enum") || object->contains("const")) {
    LEVIN_ASSIGN(const JsonArray values, listed(*object, path));
    return one_of_values(values);
  }
  for (const std::string_view keyword : {"anyOf", "oneOf"}) {
    if (object->contains(keyword)) return alternatives(*object, keyword, path);
  }
  LEVIN_ASSIGN(const std::vector<std::string> types, types_of(*object, path));
  if (types.empty()) return forms_.any_value();
  std::vector<Expression> parts;
  for (const std::string& type : types) {
    LEVIN_ASSIGN(Expression part, of_type(type, *object, path));
    parts.push_back(std::move(part));
  }
  return parts.size() == 1 ? std::move(parts.front()) : choice(std::move(parts));
}

// The parts of anyOf or oneOf, each joined with the keywords next to the list.
Result<std::vector<JsonValue>> SchemaReader::parts_of(const JsonObject& schema, std::string_view keyword,
                                                      const std::string& path) {
  const JsonArray* list = schema.find(keyword)->as_array();
  if (list == nullptr || list->empty())
    return schema_error(path, fmt::format("has {} that is not a non-empty list of schemas", keyword));
  if (list->size() > kMaxParts)
    return schema_error(path, fmt::format("has {} with more than {} parts", keyword, kMaxParts));
  JsonObject rest = schema;
  rest.erase(keyword);
  for (const std::string_view key : kDefinitions) rest.erase(key);
  for (const io::JsonMember& m : schema.members()) {
    if (is_annotation(m.key)) rest.erase(m.key);
  }
  std::vector<JsonValue> parts, resolved;
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string place = fmt::format("{}.{}[{}]", path, keyword, i);
    JsonValue part = (*list)[i];
    if (rest.n_members() > 0) {
      LEVIN_ASSIGN(const JsonValue alone, resolve(part, place));
      LEVIN_ASSIGN(part, join_schemas(JsonValue(rest), alone, place));
    }
    LEVIN_ASSIGN(JsonValue plain, resolve(part, place));
    resolved.push_back(std::move(plain));
    parts.push_back(std::move(part));
  }
  for (size_t i = 0; keyword == "oneOf" && unsupported_ == Unsupported::kRefused && i < resolved.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (are_apart(resolved[j], resolved[i])) continue;
      return schema_error(path,
                          fmt::format("has a oneOf whose parts {} and {} may both be met by one value; use anyOf, or a "
                                      "required property with another const in each",
                                      j, i));
    }
  }
  return parts;
}

Result<Expression> SchemaReader::alternatives(const JsonObject& schema, std::string_view keyword,
                                              const std::string& path) {
  LEVIN_ASSIGN(const std::vector<JsonValue> parts, parts_of(schema, keyword, path));
  std::vector<Expression> forms;
  for (const JsonValue& part : parts) {
    LEVIN_ASSIGN(Expression form, value_of(part, fmt::format("{}.{}[{}]", path, keyword, forms.size())));
    forms.push_back(std::move(form));
  }
  return choice(std::move(forms));
}

// The values of enum and const that are of the schema's type.
Result<JsonArray> SchemaReader::listed(const JsonObject& schema, const std::string& path) const {
  for (const io::JsonMember& m : schema.members()) {
    if (m.key == "enum" || m.key == "const" || m.key == "type" || !is_in(m.key, kHonoured) ||
        is_in(m.key, kDefinitions))
      continue;
    if (unsupported_ == Unsupported::kRefused) {
      return schema_error(path, fmt::format("has \"{}\" together with enum or const, which is not supported", m.key));
    }
  }
  LEVIN_ASSIGN(const std::vector<std::string> types, types_of(schema, path));
  const JsonValue* list = schema.find("enum");
  const JsonValue* only = schema.find("const");
  if (list != nullptr && (list->as_array() == nullptr || list->as_array()->empty())) {
    return schema_error(path, "has an enum that is not a non-empty list of values");
  }
  JsonArray out;
  for (const JsonValue& value : list != nullptr ? *list->as_array() : JsonArray{*only}) {
    if (only != nullptr && !same_value(value, *only)) continue;
    const bool fits = !schema.contains("type") || std::any_of(types.begin(), types.end(), [&](const std::string& type) {
      return is_of_type(value, type);
    });
    if (fits) out.push_back(value);
  }
  return out;
}

Result<Expression> SchemaReader::of_type(const std::string& type, const JsonObject& schema, const std::string& path) {
  if (type == "string") return string_of(schema, path);
  if (type == "integer" || type == "number") return number_of(schema, type == "integer", path);
  if (type == "boolean") return true_or_false();
  if (type == "null") return literal("null");
  return type == "array" ? array_of(schema, path) : object_of(schema, path);
}

Result<SchemaReader::StringShape> SchemaReader::string_shape(const JsonObject& schema, Writing writing,
                                                             const std::string& path) const {
  StringShape out;
  LEVIN_ASSIGN(out.n_characters, count_range(schema, "minLength", "maxLength", path));
  LEVIN_ASSIGN(const std::string* pattern, string_at(schema, "pattern", path));
  LEVIN_ASSIGN(const std::string* format, string_at(schema, "format", path));
  const std::optional<std::string> of_format = format != nullptr ? pattern_of_format(*format) : std::nullopt;
  const bool counted = schema.contains("minLength") || schema.contains("maxLength");
  const int n_said = (counted ? 1 : 0) + (pattern != nullptr ? 1 : 0) + (of_format ? 1 : 0);
  if (n_said > 1 && unsupported_ == Unsupported::kRefused) {
    return schema_error(path, "has two of pattern, format and a length; say it in one pattern");
  }
  if (pattern == nullptr && !of_format) return out;
  const Result<Expression> parsed = parse_regex(pattern != nullptr ? *pattern : *of_format,
                                                pattern != nullptr ? RegexMatch::kSearch : RegexMatch::kWhole, writing);
  if (parsed.ok()) {
    out.pattern = *parsed;
    out.n_characters = {};
  } else if (unsupported_ == Unsupported::kRefused) {
    return schema_error(path, fmt::format("has a pattern that cannot be used: {}", parsed.error().message));
  }
  return out;
}

Result<Expression> SchemaReader::string_of(const JsonObject& schema, const std::string& path) {
  LEVIN_ASSIGN(const StringShape shape, string_shape(schema, Writing::kJsonString, path));
  if (shape.pattern) return sequence({literal("\""), *shape.pattern, literal("\"")});
  if (shape.n_characters.min > shape.n_characters.max) return choice({});
  return forms_.string(shape.n_characters);
}

Result<Expression> SchemaReader::number_of(const JsonObject& schema, bool integer, const std::string& path) const {
  NumberRange range;
  for (const std::string_view key : {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}) {
    const JsonValue* value = schema.find(key);
    if (value == nullptr) continue;
    if (value->as_number() == nullptr) {
      return schema_error(path, fmt::format("has {} {}, expected a number", key, io::describe_json(*value)));
    }
    LEVIN_ASSIGN(const Decimal decimal, parse_decimal(value->as_number()->text()));
    const Bound bound{.value = decimal, .open = key.starts_with("exclusive")};
    std::optional<Bound>& side = key.ends_with("inimum") ? range.low : range.high;
    if (side) return schema_error(path, fmt::format("has {} and another bound of the same side", key));
    side = bound;
  }
  return integer ? integer_in(range) : number_in(range);
}

Result<Expression> SchemaReader::array_of(const JsonObject& schema, const std::string& path) {
  LEVIN_ASSIGN(const CountRange n_items, count_range(schema, "minItems", "maxItems", path));
  std::vector<Expression> first;
  if (const JsonValue* list = schema.find("prefixItems")) {
    if (list->as_array() == nullptr) return schema_error(path, "has prefixItems that are not a list");
    if (list->as_array()->size() > kMaxParts) {
      return schema_error(path, fmt::format("has more than {} prefixItems", kMaxParts));
    }
    for (const JsonValue& item : *list->as_array()) {
      LEVIN_ASSIGN(Expression form, value_of(item, fmt::format("{}.prefixItems[{}]", path, first.size())));
      first.push_back(std::move(form));
    }
  }
  std::optional<Expression> rest;
  const JsonValue* items = schema.find("items");
  const bool no_more = items != nullptr && items->as_bool() != nullptr && !*items->as_bool();
  if (items != nullptr && !no_more) {
    LEVIN_ASSIGN(rest, value_of(*items, path + ".items"));
  } else if (!no_more && n_items.min > std::ssize(first)) {
    LEVIN_ASSIGN(rest, forms_.any_value());
  } else if (!no_more && first.empty()) {
    LEVIN_ASSIGN(rest, forms_.any_value());
  }
  if (n_items.min > n_items.max || (!rest && n_items.min > std::ssize(first))) return choice({});
  return forms_.array(first, rest, n_items);
}

Result<SchemaReader::PlainForms> SchemaReader::plain_forms(const JsonValue& schema, const std::string& path,
                                                           const Expression& suffix) {
  PlainForms out;
  LEVIN_ASSIGN(const JsonValue plain, resolve(schema, path));
  LEVIN_TRY(count_part(path));
  ++depth_;
  const Status added = add_plain_forms(plain, path, suffix, &out);
  --depth_;
  LEVIN_TRY(added);
  return out;
}

Status SchemaReader::add_plain_forms(const JsonValue& schema, const std::string& path, const Expression& suffix,
                                     PlainForms* out) {
  static const JsonObject kNothingSaid;
  const JsonObject* object = schema.as_bool() != nullptr && *schema.as_bool() ? &kNothingSaid : schema.as_object();
  if (object == nullptr) return schema_error(path, "admits nothing");
  LEVIN_TRY(check_keywords(*object, path));
  if (object->contains("enum") || object->contains("const")) return add_listed_plain(*object, path, suffix, out);
  for (const std::string_view keyword : {"anyOf", "oneOf"}) {
    if (!object->contains(keyword)) continue;
    LEVIN_ASSIGN(const std::vector<JsonValue> parts, parts_of(*object, keyword, path));
    for (size_t i = 0; i < parts.size(); ++i) {
      LEVIN_ASSIGN(const PlainForms forms, plain_forms(parts[i], fmt::format("{}.{}[{}]", path, keyword, i), suffix));
      out->strings.insert(out->strings.end(), forms.strings.begin(), forms.strings.end());
      out->others.insert(out->others.end(), forms.others.begin(), forms.others.end());
    }
    return {};
  }
  LEVIN_ASSIGN(std::vector<std::string> types, types_of(*object, path));
  const auto string_type = std::find(types.begin(), types.end(), "string");
  if (types.empty() || string_type != types.end()) {
    LEVIN_TRY(add_plain_string(*object, path, suffix, out));
  }
  if (types.empty()) {
    LEVIN_ASSIGN(Expression any, forms_.any_value());
    out->others.push_back(std::move(any));
  }
  if (string_type != types.end()) types.erase(string_type);
  for (const std::string& type : types) {
    LEVIN_ASSIGN(Expression form, of_type(type, *object, path));
    out->others.push_back(std::move(form));
  }
  return {};
}

Status SchemaReader::add_listed_plain(const JsonObject& schema, const std::string& path, const Expression& suffix,
                                      PlainForms* out) {
  LEVIN_ASSIGN(const JsonArray values, listed(schema, path));
  std::vector<Expression> texts;
  JsonArray others;
  for (const JsonValue& value : values) {
    if (const std::string* text = value.as_string()) {
      texts.push_back(literal(*text));
    } else {
      others.push_back(value);
    }
  }
  if (!texts.empty()) {
    LEVIN_ASSIGN(const RuleId rule, rules_.add(sequence({choice(std::move(texts)), suffix})));
    out->strings.push_back(rule);
  }
  if (!others.empty()) out->others.push_back(one_of_values(others));
  return {};
}

Status SchemaReader::add_plain_string(const JsonObject& schema, const std::string& path, const Expression& suffix,
                                      PlainForms* out) {
  LEVIN_ASSIGN(const StringShape shape, string_shape(schema, Writing::kPlain, path));
  if (shape.n_characters.min > shape.n_characters.max) return schema_error(path, "admits no string");
  const bool counted = shape.n_characters.min > 0 || shape.n_characters.max != kNoLimit;
  const Expression character = one_of(all_but({}), Writing::kPlain, counted ? EdgeKind::kCounts : EdgeKind::kPlain);
  Expression text = shape.pattern ? *shape.pattern : repeat(character, 0);
  LEVIN_ASSIGN(const RuleId rule, rules_.add(sequence({std::move(text), suffix}), shape.n_characters));
  out->strings.push_back(rule);
  return {};
}

}  // namespace levin::grammar
