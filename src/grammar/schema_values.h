// Questions about JSON schemas and values that need no grammar.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "io/json.h"

namespace levin::grammar {

// kUsage: of what stands at `path` of a schema, "has ..., expected ...".
Error schema_error(const std::string& path, std::string_view what);

bool is_type_name(std::string_view type);
std::string_view type_of_keyword(std::string_view keyword);  // "minItems": "array"; empty: of no type
bool is_annotation(std::string_view keyword);                // says nothing about values

bool same_value(const io::JsonValue& a, const io::JsonValue& b);  // 1 and 1.0 are the same
bool is_of_type(const io::JsonValue& value, std::string_view type);

// The types a schema speaks of: "type", or those of its keywords; none: any.
Result<std::vector<std::string>> types_of(const io::JsonObject& schema, const std::string& path);

// By a part of a JSON pointer; nullptr: not there.
const io::JsonValue* member_at(const io::JsonValue& value, const std::string& key);
std::string unescape_pointer(std::string_view part);

// One schema that admits what both admit. Refused (kUsage) where they say different things about one keyword that
// cannot be joined.
Result<io::JsonValue> join_schemas(const io::JsonValue& a, const io::JsonValue& b, const std::string& path);

// No value meets both, for certain: other types, other constants, or a required property with other constants.
bool are_apart(const io::JsonValue& a, const io::JsonValue& b);

struct Property {
  std::string name;
  const io::JsonValue* schema = nullptr;
  bool required = false;
  bool listed = true;  // false: required alone; `schema` is additionalProperties
};
struct ObjectShape {
  std::vector<Property> properties;  // as listed, then those that are only required
  std::vector<std::string> names() const;
};
// Values in a document, itself included.
int64_t n_values(const io::JsonValue& document);
// Characters of its names and strings, without annotations.
int64_t n_characters(const io::JsonValue& document);

Result<ObjectShape> object_shape(const io::JsonObject& schema, const std::string& path);

}  // namespace levin::grammar
