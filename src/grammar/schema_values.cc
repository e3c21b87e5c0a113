#include "grammar/schema_values.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

namespace levin::grammar {
namespace {

using io::JsonArray;
using io::JsonMember;
using io::JsonObject;
using io::JsonValue;

constexpr std::string_view kTypes[] = {"string", "integer", "number", "boolean", "null", "array", "object"};
constexpr std::string_view kAnnotations[] = {"title",     "description", "default",  "examples",      "example",
                                             "$schema",   "$id",         "$comment", "deprecated",    "readOnly",
                                             "writeOnly", "strict",      "name",     "discriminator", "$anchor"};
struct TypedKeyword {
  std::string_view keyword, type;
};
constexpr TypedKeyword kTypedKeywords[] = {
    {"properties", "object"},        {"required", "object"}, {"additionalProperties", "object"},
    {"patternProperties", "object"}, {"items", "array"},     {"prefixItems", "array"},
    {"minItems", "array"},           {"maxItems", "array"},  {"minLength", "string"},
    {"maxLength", "string"},         {"pattern", "string"},  {"format", "string"},
    {"minimum", "number"},           {"maximum", "number"},  {"exclusiveMinimum", "number"},
    {"exclusiveMaximum", "number"}};

const JsonObject kNoMembers;
const JsonValue kAnything = true;

const JsonObject* object_at(const JsonObject& schema, std::string_view key) {
  const JsonValue* value = schema.find(key);
  return value != nullptr ? value->as_object() : nullptr;
}

JsonArray as_list(const JsonValue& value) { return value.as_array() != nullptr ? *value.as_array() : JsonArray{value}; }

// 1.0 too, as JSON schemas have it.
bool is_whole(const JsonValue& value) {
  if (value.as_number() == nullptr) return false;
  const std::optional<double> number = value.to_double();
  return value.as_number()->is_integer() || (number && *number == std::trunc(*number));
}

bool contains(const JsonArray& list, const JsonValue& value) {
  return std::any_of(list.begin(), list.end(), [&](const JsonValue& entry) { return same_value(entry, value); });
}

// The values of enum or const; nullopt: neither is there.
std::optional<JsonArray> listed_values(const JsonObject& schema) {
  if (const JsonValue* only = schema.find("const")) return JsonArray{*only};
  const JsonValue* list = schema.find("enum");
  if (list == nullptr || list->as_array() == nullptr) return std::nullopt;
  return *list->as_array();
}

bool have_no_value_in_common(const std::optional<JsonArray>& a, const std::optional<JsonArray>& b) {
  return a && b && std::none_of(a->begin(), a->end(), [&](const JsonValue& value) { return contains(*b, value); });
}

bool is_required(const JsonObject& schema, const std::string& name) {
  const JsonValue* required = schema.find("required");
  return required != nullptr && required->as_array() != nullptr && contains(*required->as_array(), name);
}

bool admits_type(const JsonObject& schema, std::string_view type) {
  if (const std::optional<JsonArray> values = listed_values(schema)) {
    return std::any_of(values->begin(), values->end(), [&](const JsonValue& v) { return is_of_type(v, type); });
  }
  const JsonValue* types = schema.find("type");
  if (types == nullptr) return true;
  const JsonArray list = as_list(*types);
  return contains(list, type) || (type == "integer" && contains(list, "number"));
}

// Objects that meet both differ in a property that both require.
bool differ_in_a_property(const JsonObject& a, const JsonObject& b) {
  const JsonObject* of_a = object_at(a, "properties");
  const JsonObject* of_b = object_at(b, "properties");
  if (of_a == nullptr || of_b == nullptr) return false;
  return std::any_of(of_a->members().begin(), of_a->members().end(), [&](const JsonMember& m) {
    const JsonObject* mine = m.value.as_object();
    const JsonObject* other = object_at(*of_b, m.key);
    return mine != nullptr && other != nullptr && is_required(a, m.key) && is_required(b, m.key) &&
           have_no_value_in_common(listed_values(*mine), listed_values(*other));
  });
}

JsonArray in_both(const JsonArray& a, const JsonArray& b) {
  JsonArray out;
  for (const JsonValue& entry : a) {
    if (contains(b, entry)) out.push_back(entry);
  }
  return out;
}

// Of types: an integer is a number too.
void add_integers_of_numbers(const JsonArray& a, const JsonArray& b, JsonArray* both) {
  const auto has = [](const JsonArray& list, std::string_view type) { return contains(list, JsonValue(type)); };
  const bool wanted = (has(a, "integer") && has(b, "number")) || (has(a, "number") && has(b, "integer"));
  if (wanted && !has(*both, "integer") && !has(*both, "number")) both->emplace_back("integer");
}

Result<JsonValue> join_properties(std::string_view key, const JsonValue& a, const JsonValue& b,
                                  const std::string& path) {
  if (a.as_object() == nullptr || b.as_object() == nullptr)
    return schema_error(path, fmt::format("has {} that are not an object", key));
  JsonObject out = *a.as_object();
  for (const JsonMember& m : b.as_object()->members()) {
    const JsonValue* mine = out.find(m.key);
    if (mine == nullptr) {
      out.set(m.key, m.value);
      continue;
    }
    LEVIN_ASSIGN(JsonValue joined, join_schemas(*mine, m.value, fmt::format("{}.{}.{}", path, key, m.key)));
    out.set(m.key, std::move(joined));
  }
  return JsonValue(std::move(out));
}

Result<JsonValue> join_keyword(std::string_view key, const JsonValue& a, const JsonValue& b, const std::string& path) {
  if (same_value(a, b) || is_annotation(key) || key == "$defs" || key == "definitions") return a;
  if (key == "properties" || key == "patternProperties") return join_properties(key, a, b, path);
  if (key == "required" || key == "allOf") {
    JsonArray all = as_list(a);
    for (const JsonValue& entry : as_list(b)) {
      if (key == "allOf" || !contains(all, entry)) all.push_back(entry);
    }
    return JsonValue(std::move(all));
  }
  if (key == "type" || key == "enum") {
    JsonArray both = in_both(as_list(a), as_list(b));
    if (key == "type") add_integers_of_numbers(as_list(a), as_list(b), &both);
    if (both.empty()) return schema_error(path, fmt::format("joins two schemas whose {} have nothing in common", key));
    return JsonValue(std::move(both));
  }
  const std::optional<double> x = a.to_double(), y = b.to_double();
  const bool lower = key.starts_with("min") || key == "exclusiveMinimum";
  const bool upper = key.starts_with("max") || key == "exclusiveMaximum";
  if (x && y && (lower || upper)) return (*x < *y) == lower ? b : a;
  return schema_error(path, fmt::format("joins two schemas that say different things about \"{}\"", key));
}

bool admits_anything(const JsonValue& schema) {
  if (const bool* flag = schema.as_bool()) return *flag;
  return schema.as_object() != nullptr && schema.as_object()->n_members() == 0;
}

// A keyword that speaks of all but what another one next to it names. Joined with a schema that names more, it would
// no longer speak of that.
struct RestKeyword {
  std::string_view rest, named;
};
constexpr RestKeyword kRestKeywords[] = {
    {"additionalProperties", "properties"}, {"additionalProperties", "patternProperties"}, {"items", "prefixItems"}};

Status check_rests(const JsonObject& one, const JsonObject& other, const std::string& path) {
  for (const RestKeyword& keyword : kRestKeywords) {
    const JsonValue* rest = one.find(keyword.rest);
    const JsonValue* mine = one.find(keyword.named);
    const JsonValue* theirs = other.find(keyword.named);
    if (rest == nullptr || theirs == nullptr || admits_anything(*rest)) continue;
    if (mine != nullptr && *mine == *theirs) continue;
    return schema_error(path,
                        fmt::format("joins schemas with other {}, and {} in one of them", keyword.named, keyword.rest));
  }
  return {};
}

}  // namespace

Error schema_error(const std::string& path, std::string_view what) {
  return {ErrorKind::kUsage, fmt::format("{} {}", path, what)};
}

bool is_type_name(std::string_view type) {
  return std::find(std::begin(kTypes), std::end(kTypes), type) != std::end(kTypes);
}

std::string_view type_of_keyword(std::string_view keyword) {
  for (const TypedKeyword& typed : kTypedKeywords) {
    if (typed.keyword == keyword) return typed.type;
  }
  return {};
}

bool is_annotation(std::string_view keyword) {
  return std::find(std::begin(kAnnotations), std::end(kAnnotations), keyword) != std::end(kAnnotations);
}

bool same_value(const JsonValue& a, const JsonValue& b) {
  if (a.as_number() != nullptr && b.as_number() != nullptr) return a.to_double() == b.to_double();
  if (a.as_array() != nullptr && b.as_array() != nullptr) {
    return std::equal(a.as_array()->begin(), a.as_array()->end(), b.as_array()->begin(), b.as_array()->end(),
                      same_value);
  }
  const JsonObject* x = a.as_object();
  const JsonObject* y = b.as_object();
  if (x == nullptr || y == nullptr) return a == b;
  return x->n_members() == y->n_members() &&
         std::all_of(x->members().begin(), x->members().end(), [&](const JsonMember& m) {
           const JsonValue* other = y->find(m.key);
           return other != nullptr && same_value(m.value, *other);
         });
}

bool is_of_type(const JsonValue& value, std::string_view type) {
  if (type == "string") return value.as_string() != nullptr;
  if (type == "number") return value.as_number() != nullptr;
  if (type == "integer") return is_whole(value);
  if (type == "boolean") return value.as_bool() != nullptr;
  if (type == "array") return value.as_array() != nullptr;
  if (type == "object") return value.as_object() != nullptr;
  return type == "null" && value.is_null();
}

Result<std::vector<std::string>> types_of(const JsonObject& schema, const std::string& path) {
  std::vector<std::string> out;
  if (const JsonValue* type = schema.find("type")) {
    for (const JsonValue& entry : as_list(*type)) {
      if (entry.as_string() == nullptr || !is_type_name(*entry.as_string())) {
        return schema_error(path, fmt::format("has the type {}, which JSON does not know", io::describe_json(entry)));
      }
      out.push_back(*entry.as_string());
    }
    if (out.empty()) return schema_error(path, "has a type that is an empty list, expected a type or several");
    return out;
  }
  for (const JsonMember& m : schema.members()) {
    const std::string_view type = type_of_keyword(m.key);
    if (!type.empty() && std::find(out.begin(), out.end(), type) == out.end()) out.emplace_back(type);
  }
  return out;
}

const JsonValue* member_at(const JsonValue& value, const std::string& key) {
  if (const JsonObject* object = value.as_object()) return object->find(key);
  const JsonArray* list = value.as_array();
  if (list == nullptr || key.empty() || key.size() > 6 || key.find_first_not_of("0123456789") != std::string::npos) {
    return nullptr;
  }
  const size_t place = std::stoul(key);
  return place < list->size() ? &(*list)[place] : nullptr;
}

std::string unescape_pointer(std::string_view part) {
  std::string out;
  for (size_t i = 0; i < part.size(); ++i) {
    if (part.substr(i).starts_with("~1") || part.substr(i).starts_with("~0")) {
      out += part[++i] == '1' ? '/' : '~';
    } else {
      out += part[i];
    }
  }
  return out;
}

Result<JsonValue> join_schemas(const JsonValue& a, const JsonValue& b, const std::string& path) {
  for (const auto& [one, other] : {std::pair(&a, &b), std::pair(&b, &a)}) {
    if (const bool* any = one->as_bool()) return *any ? *other : *one;
    if (one->as_object() == nullptr) return schema_error(path, "combines something that is not a schema");
  }
  JsonObject out = *a.as_object();
  const JsonObject& more = *b.as_object();
  LEVIN_TRY(check_rests(out, more, path));
  LEVIN_TRY(check_rests(more, out, path));
  for (const JsonMember& m : more.members()) {
    const JsonValue* here = out.find(m.key);
    if (here == nullptr) {
      out.set(m.key, m.value);
      continue;
    }
    LEVIN_ASSIGN(JsonValue joined, join_keyword(m.key, *here, m.value, path));
    out.set(m.key, std::move(joined));
  }
  return JsonValue(std::move(out));
}

bool are_apart(const JsonValue& a, const JsonValue& b) {
  const JsonObject* x = a.as_object();
  const JsonObject* y = b.as_object();
  if (x == nullptr || y == nullptr) return false;
  if (have_no_value_in_common(listed_values(*x), listed_values(*y))) return true;
  return std::all_of(std::begin(kTypes), std::end(kTypes), [&](std::string_view type) {
    if (!admits_type(*x, type) || !admits_type(*y, type)) return true;
    return type == "object" && differ_in_a_property(*x, *y);
  });
}

std::vector<std::string> ObjectShape::names() const {
  std::vector<std::string> out;
  for (const Property& property : properties) out.push_back(property.name);
  return out;
}

int64_t n_values(const JsonValue& document) {
  int64_t n = 1;
  if (const JsonArray* list = document.as_array()) {
    for (const JsonValue& entry : *list) n += n_values(entry);
  } else if (const JsonObject* object = document.as_object()) {
    for (const JsonMember& m : object->members()) n += n_values(m.value);
  }
  return n;
}

int64_t n_characters(const JsonValue& document) {
  int64_t n = 0;
  if (const std::string* text = document.as_string()) {
    n += std::ssize(*text);
  } else if (const JsonArray* list = document.as_array()) {
    for (const JsonValue& entry : *list) n += n_characters(entry);
  } else if (const JsonObject* object = document.as_object()) {
    for (const JsonMember& m : object->members()) {
      if (is_annotation(m.key) && m.value.as_string() != nullptr) continue;
      n += std::ssize(m.key) + n_characters(m.value);
    }
  }
  return n;
}

Result<ObjectShape> object_shape(const JsonObject& schema, const std::string& path) {
  ObjectShape out;
  const JsonValue* properties = schema.find("properties");
  if (properties != nullptr && properties->as_object() == nullptr)
    return schema_error(path, "has properties that are not an object");
  const JsonObject& known = properties != nullptr ? *properties->as_object() : kNoMembers;
  std::vector<std::string> only_required;
  std::set<std::string, std::less<>> required;
  if (const JsonValue* list = schema.find("required")) {
    if (list->as_array() == nullptr) return schema_error(path, "has a required that is not a list");
    for (const JsonValue& entry : *list->as_array()) {
      const std::string* name = entry.as_string();
      if (name == nullptr)
        return schema_error(path, fmt::format("requires {}, expected a name", io::describe_json(entry)));
      if (required.insert(*name).second && !known.contains(*name)) only_required.push_back(*name);
    }
  }
  for (const JsonMember& m : known.members()) {
    out.properties.push_back({.name = m.key, .schema = &m.value, .required = required.contains(m.key)});
  }
  const JsonValue* others = schema.find("additionalProperties");
  for (const std::string& name : only_required) {
    out.properties.push_back(
        {.name = name, .schema = others != nullptr ? others : &kAnything, .required = true, .listed = false});
  }
  return out;
}

}  // namespace levin::grammar
