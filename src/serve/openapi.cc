// The OpenAPI document, from the table of routes and the lists of fields.
#include <fmt/core.h>

#include <string>
#include <utility>

#include "serve/generation_fields.h"
#include "serve/routes.h"

namespace levin::serve {
namespace {

constexpr Field kModel = {"model", "string", "A name of the served model; default: the served model"};

io::JsonObject field_schema(const Field& field) {
  io::JsonArray types;
  for (std::string_view rest = field.type; !rest.empty();) {
    const size_t end = std::min(rest.find('|'), rest.size());
    types.emplace_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  if (!field.required) types.emplace_back("null");
  return {{"type", std::move(types)}, {"description", field.what}};
}

// Readers that share a field list it each; the first one's word counts.
io::JsonObject body_schema(const Route& route) {
  io::JsonObject properties;
  properties.set(kModel.name, field_schema(kModel));
  io::JsonArray required;
  bool generates = false;
  for (const FieldList& list : route.fields) {
    generates = generates || list.data() == generation_fields().data();
    for (const Field& field : list) {
      if (properties.contains(field.name)) continue;
      properties.set(field.name, field_schema(field));
      if (field.required) required.emplace_back(field.name);
    }
  }
  io::JsonObject schema = {
      {"type", "object"}, {"properties", std::move(properties)}, {"required", std::move(required)}};
  if (!generates) return schema;
  io::JsonArray refused;
  for (const std::string_view name : refused_fields()) refused.emplace_back(name);
  schema.set("x-refused", std::move(refused));
  return schema;
}

io::JsonObject operation(const Route& route) {
  io::JsonObject out = {{"summary", route.what}};
  if (route.path.ends_with('*')) {
    out.set("parameters",
            io::JsonArray{io::JsonObject{
                {"name", "id"}, {"in", "path"}, {"required", true}, {"schema", io::JsonObject{{"type", "string"}}}}});
  }
  if (!route.fields.empty()) {
    out.set("requestBody",
            io::JsonObject{
                {"required", true},
                {"content", io::JsonObject{{"application/json", io::JsonObject{{"schema", body_schema(route)}}}}}});
  }
  out.set("responses",
          io::JsonObject{{"200", io::JsonObject{{"description", "The answer"}}},
                         {"default", io::JsonObject{{"description", "An error, as described in docs/server.md"}}}});
  if (!route.open) out.set("security", io::JsonArray{io::JsonObject{{"key", io::JsonArray()}}, io::JsonObject()});
  return out;
}

}  // namespace

io::JsonObject openapi_document(std::span<const Route> routes, std::string_view version) {
  io::JsonObject paths;
  for (const Route& route : routes) {
    std::string path(route.path);
    if (path.ends_with('*')) path.replace(path.size() - 1, 1, "{id}");
    const io::JsonValue* known = paths.find(path);
    io::JsonObject methods = known != nullptr ? *known->as_object() : io::JsonObject();
    methods.set(route.method == "GET" ? "get" : "post", operation(route));
    paths.set(path, std::move(methods));
  }
  const io::JsonObject key = {{"type", "http"}, {"scheme", "bearer"}};
  return {{"openapi", "3.1.0"},
          {"info", io::JsonObject{{"title", "levin"}, {"version", version}}},
          {"paths", std::move(paths)},
          {"components", io::JsonObject{{"securitySchemes", io::JsonObject{{"key", key}}}}}};
}

}  // namespace levin::serve
