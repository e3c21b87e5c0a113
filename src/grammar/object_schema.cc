// Objects of JSON schemas: members that are named, those whose names match patterns, and others.
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "grammar/json_schema.h"
#include "grammar/schema_values.h"

namespace levin::grammar {

using io::JsonObject;
using io::JsonValue;

namespace {

// Anything where it is not said.
JsonValue additional(const JsonObject& schema) {
  const JsonValue* others = schema.find("additionalProperties");
  return others != nullptr ? *others : JsonValue(true);
}

}  // namespace

Result<Expression> SchemaReader::object_of(const JsonObject& schema, const std::string& path) {
  LEVIN_ASSIGN(const ObjectShape shape, object_shape(schema, path));
  LEVIN_ASSIGN(const NamePatterns patterns, name_patterns(schema, shape.names(), path));
  std::vector<ObjectMember> members;
  for (const Property& property : shape.properties) {
    const std::string place = fmt::format("{}.properties.{}", path, property.name);
    LEVIN_ASSIGN(const JsonValue obeyed, obeyed_by(property, patterns, place));
    LEVIN_ASSIGN(const Expression value, value_of(obeyed, place));
    LEVIN_ASSIGN(const RuleId rule, rules_.add(value));
    members.push_back(
        {.name = literal(io::dump_json(property.name)), .value = call(rule), .required = property.required});
  }
  LEVIN_ASSIGN(const std::optional<Expression> others, other_members(schema, shape.names(), patterns, path));
  return forms_.object(members, others);
}

Result<std::vector<SchemaReader::NamedMember>> SchemaReader::named_members(const JsonValue& schema,
                                                                           const std::string& path) {
  std::vector<NamedMember> out;
  LEVIN_ASSIGN(const JsonValue plain, resolve(schema, path));
  const JsonObject* object = plain.as_object();
  if (object == nullptr) return out;
  LEVIN_TRY(check_named_alone(*object, path));
  LEVIN_ASSIGN(const ObjectShape shape, object_shape(*object, path));
  LEVIN_ASSIGN(const NamePatterns patterns, name_patterns(*object, shape.names(), path));
  for (const Property& property : shape.properties) {
    Result<JsonValue> obeyed = obeyed_by(property, patterns, fmt::format("{}.properties.{}", path, property.name));
    if (!obeyed.ok() && unsupported_ == Unsupported::kPassedOver) obeyed = *property.schema;
    if (!obeyed.ok()) return obeyed.error();
    out.push_back({.name = property.name, .schema = std::move(*obeyed), .required = property.required});
  }
  return out;
}

// Nothing but the members' names and schemas limits the object.
Status SchemaReader::check_named_alone(const JsonObject& schema, const std::string& path) const {
  if (unsupported_ == Unsupported::kPassedOver) return {};
  LEVIN_TRY(check_keywords(schema, path));
  for (const std::string_view keyword : {"anyOf", "oneOf", "enum", "const"}) {
    if (schema.contains(keyword)) {
      return schema_error(path,
                          fmt::format("has \"{}\", which is not supported next to properties that are written one "
                                      "by one; say it in the properties",
                                      keyword));
    }
  }
  LEVIN_ASSIGN(const std::vector<std::string> types, types_of(schema, path));
  if (types.empty() || std::find(types.begin(), types.end(), "object") != types.end()) return {};
  return schema_error(path, fmt::format("is of type {}, expected object", types.front()));
}

// What a property obeys. A name that a pattern has is not one of additionalProperties.
Result<JsonValue> SchemaReader::obeyed_by(const Property& property, const NamePatterns& patterns,
                                          const std::string& place) const {
  const std::vector<size_t> matched = patterns.classes.patterns_of(property.name);
  if (matched.empty()) return *property.schema;
  return joined(patterns, matched, property.listed ? *property.schema : JsonValue(true), place);
}

// A lenient reader ignores patterns that cannot be read.
Result<SchemaReader::NamePatterns> SchemaReader::name_patterns(const JsonObject& schema,
                                                               const std::vector<std::string>& names,
                                                               const std::string& path) const {
  NamePatterns out;
  const JsonValue* value = schema.find("patternProperties");
  if (value == nullptr) return out;
  if (value->as_object() == nullptr) return schema_error(path, "has patternProperties that are not an object");
  std::vector<std::string> patterns;
  for (const io::JsonMember& m : value->as_object()->members()) {
    patterns.push_back(m.key);
    out.schemas.push_back(&m.value);
  }
  if (patterns.empty()) return out;
  Result<NameClasses> classes = NameClasses::of(patterns, names, rules_);
  if (!classes.ok() && unsupported_ == Unsupported::kPassedOver) return NamePatterns();
  if (!classes.ok())
    return schema_error(path, fmt::format("has patternProperties that cannot be used: {}", classes.error().message));
  out.classes = std::move(*classes);
  return out;
}

// What a member obeys whose name matches patterns.
Result<JsonValue> SchemaReader::joined(const NamePatterns& patterns, const std::vector<size_t>& matched,
                                       JsonValue schema, const std::string& path) const {
  for (const size_t pattern : matched) {
    LEVIN_ASSIGN(schema, join_schemas(schema, *patterns.schemas[pattern], path));
  }
  return schema;
}

Result<std::optional<Expression>> SchemaReader::other_members(const JsonObject& schema,
                                                              const std::vector<std::string>& names,
                                                              const NamePatterns& patterns, const std::string& path) {
  if (!patterns.schemas.empty()) return classed_members(schema, patterns, path);
  const JsonValue* others = schema.find("additionalProperties");
  const bool* flag = others != nullptr ? others->as_bool() : nullptr;
  if (flag != nullptr ? !*flag : others == nullptr && !names.empty()) return std::optional<Expression>();
  const Result<NameClasses> free = NameClasses::of({}, names, rules_);
  if (!free.ok()) {
    return schema_error(path, fmt::format("has properties with names that are too long for other members next to them: "
                                          "{}; shorten the names or set additionalProperties to false",
                                          free.error().message));
  }
  LEVIN_ASSIGN(Expression value, value_of(additional(schema), path + ".additionalProperties"));
  LEVIN_ASSIGN(const RuleId name, rules_.add(free->others().front().automaton));
  LEVIN_ASSIGN(Expression out, forms_.member(sequence({literal("\""), call(name), literal("\"")}), std::move(value)));
  return std::optional<Expression>(std::move(out));
}

// Members by the patterns that their names match.
Result<std::optional<Expression>> SchemaReader::classed_members(const JsonObject& schema, const NamePatterns& patterns,
                                                                const std::string& path) {
  std::vector<Expression> parts;
  for (const NameClasses::Class& names : patterns.classes.others()) {
    if (names.patterns.empty() && !schema.contains("additionalProperties")) continue;
    const std::string place = path + (names.patterns.empty() ? ".additionalProperties" : ".patternProperties");
    const Result<JsonValue> both =
        joined(patterns, names.patterns, names.patterns.empty() ? additional(schema) : JsonValue(true), place);
    if (!both.ok()) continue;  // nobody needs such a member
    LEVIN_ASSIGN(Expression value, value_of(*both, place));
    LEVIN_ASSIGN(const RuleId name, rules_.add(names.automaton));
    LEVIN_ASSIGN(Expression member,
                 forms_.member(sequence({literal("\""), call(name), literal("\"")}), std::move(value)));
    parts.push_back(std::move(member));
  }
  if (parts.empty()) return std::optional<Expression>();
  return std::optional<Expression>(choice(std::move(parts)));
}

}  // namespace levin::grammar
