// The OpenAPI document against the server: every route and no other, every field that is read and no other.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <set>

#include "serve/request_body.h"
#include "serve/routes.h"
#include "serve/served_demo.h"

namespace levin::test {
namespace {

using Names = std::set<std::string, std::less<>>;
using serve::Route;

const std::string kConversation =
    R"({"max_tokens": 2, "messages": [{"role": "user", "content": "What is the capital of Japan?"}]})";

// Every POST route with a body that it takes; one whose fields are not all read together has several.
const std::pair<std::string, std::string> kTakenBodies[] = {
    {"/tokenize", R"({"prompt": "x"})"},
    {"/tokenize", kConversation},
    {"/detokenize", R"({"tokens": [5]})"},
    {"/render", kConversation},
    {"/v1/chat/completions", kConversation},
    {"/v1/completions", R"({"prompt": "x", "max_tokens": 2})"},
    {"/v1/responses", R"({"input": "x", "max_output_tokens": 2})"},
    {"/v1/messages", kConversation},
    {"/v1/messages/count_tokens", kConversation}};

Names keys_of(const io::JsonValue& object) {
  Names out;
  for (const io::JsonMember& member : object.as_object()->members()) out.insert(member.key);
  return out;
}

// The member by a key with dots or slashes in it.
io::JsonValue member(const io::JsonValue& object, std::string_view key) {
  const io::JsonValue* value = object.as_object() != nullptr ? object.as_object()->find(key) : nullptr;
  return value != nullptr ? *value : io::JsonValue();
}

TEST(OpenApiTest, HasEveryRouteAndNoOther) {
  const ServedDemo demo;
  const io::JsonValue document = json(ask(demo.port(), "/openapi.json").body);
  EXPECT_EQ(at(document, "openapi"), io::JsonValue("3.1.0"));
  const io::JsonValue paths = at(document, "paths");
  Names documented, known;
  for (const io::JsonMember& path : paths.as_object()->members()) {
    for (const std::string& method : keys_of(path.value)) documented.insert(method + " " + path.key);
    const std::string asked = path.key == "/v1/models/{id}" ? "/v1/models/demo" : path.key;
    EXPECT_NE(ask(demo.port(), asked).status, 404) << asked;
  }
  for (const Route& route : serve::built_in_routes()) {
    std::string path(route.path);
    if (path.ends_with('*')) path.replace(path.size() - 1, 1, "{id}");
    known.insert((route.method == "GET" ? "get " : "post ") + path);
    EXPECT_FALSE(route.what.empty()) << path;
  }
  EXPECT_EQ(documented, known);
}

TEST(OpenApiTest, HasTheFieldsThatAreReadAndNoOther) {
  std::map<std::string, Names> read;
  std::mutex reading;
  serve::ServerOptions options;
  options.on_fields = [&](const std::string& path, const Names& fields) {
    const std::lock_guard lock(reading);
    read[path].insert(fields.begin(), fields.end());
  };
  std::optional<ServedDemo> demo(options);
  Names posts;
  for (const auto& [path, body] : kTakenBodies) {
    posts.insert(path);
    const Reply reply = ask(demo->port(), path, body);
    EXPECT_EQ(reply.status, 200) << path << reply.body;
  }
  const io::JsonValue paths = at(json(ask(demo->port(), "/openapi.json").body), "paths");
  demo.reset();  // which waits for handlers: what they read they tell after the reply
  for (const io::JsonMember& path : paths.as_object()->members()) {
    if (!keys_of(path.value).contains("post")) continue;
    EXPECT_EQ(posts.erase(path.key), 1u) << path.key;
    const io::JsonValue schema = at(member(at(path.value, "post.requestBody.content"), "application/json"), "schema");
    Names documented = keys_of(at(schema, "properties"));
    const io::JsonValue refused = at(schema, "x-refused");
    for (const io::JsonValue& name : refused.is_null() ? io::JsonArray() : *refused.as_array()) {
      EXPECT_TRUE(documented.insert(*name.as_string()).second) << path.key << *name.as_string();
    }
    EXPECT_EQ(documented, read[path.key]) << path.key;
  }
  EXPECT_TRUE(posts.empty());
}

// A value of none of these types.
std::string value_of_another_type(const io::JsonValue& types) {
  const auto has = [&](const char* type) {
    const io::JsonArray& list = *types.as_array();
    return std::find(list.begin(), list.end(), io::JsonValue(type)) != list.end();
  };
  if (!has("object")) return R"({"x": 1})";
  return has("number") ? R"("text")" : "3.5";
}

TEST(OpenApiTest, TheTypesAreThoseThatAreTaken) {
  const ServedDemo demo;
  const io::JsonValue paths = at(json(ask(demo.port(), "/openapi.json").body), "paths");
  // Of these nothing is read but whether they are there.
  const Names come_back = {
      "metadata", "max_tool_calls", "prompt_cache_key", "safety_identifier", "service_tier", "truncation", "user"};
  for (const io::JsonMember& path : paths.as_object()->members()) {
    if (!keys_of(path.value).contains("post")) continue;
    const io::JsonValue schema = at(member(at(path.value, "post.requestBody.content"), "application/json"), "schema");
    const io::JsonValue properties = at(schema, "properties");
    for (const io::JsonMember& property : properties.as_object()->members()) {
      if (come_back.contains(property.key)) continue;
      std::string replies;
      bool refused = false;
      for (const auto& [of, taken] : kTakenBodies) {
        if (of != path.key) continue;
        io::JsonObject body = *json(taken).as_object();
        body.set(property.key, json(value_of_another_type(at(property.value, "type"))));
        const Reply reply = ask(demo.port(), path.key, io::dump_json(body));
        const bool names_fields = !path.key.starts_with("/v1/messages");
        refused |= reply.status == 400 &&
                   (!names_fields || at(json(reply.body), "error.param") == io::JsonValue(property.key));
        replies += reply.body;
      }
      EXPECT_TRUE(refused) << path.key << " " << property.key << ": " << replies;
    }
  }
}

// ---- a route of one's own: docs/adding_a_route.md --------------------------------------------------------------------

serve::FieldList reverse_fields() {
  static constexpr serve::Field kFields[] = {{"text", "string", "What is to be turned round", true}};
  return kFields;
}

void handle_reverse(const serve::ServedModel& model, const std::shared_ptr<serve::Exchange>& exchange) {
  using namespace serve;
  with_body(model, *exchange, ApiDialect::kOpenAi, [&](const RequestBody& body) -> std::optional<ApiError> {
    Result<std::string> text = body.fields().get<std::string>("text");
    if (!text.ok()) return bad_request(text.error().message, body.param());
    std::reverse(text->begin(), text->end());
    exchange->respond({.body = io::dump_json(io::JsonObject{{"text", *text}})});
    return std::nullopt;
  });
}

TEST(AddingARouteTest, ARowIsAllThatTheServerNeeds) {
  serve::ServerOptions options;
  options.api_keys = {"key"};
  options.more_routes = {{"POST", "/reverse", handle_reverse, "A text turned round", false, {reverse_fields()}}};
  const ServedDemo demo(options);
  const std::vector<std::pair<std::string, std::string>> key = {{"X-Api-Key", "key"}};
  EXPECT_EQ(at(json(ask(demo.port(), "/reverse", R"({"text": "abc"})", key).body), "text"), io::JsonValue("cba"));
  const Reply refused = ask(demo.port(), "/reverse", R"({"text": 3})", key);
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(at(json(refused.body), "error.param"), io::JsonValue("text"));
  EXPECT_EQ(ask(demo.port(), "/reverse", R"({"model": "other", "text": "abc"})", key).status, 404);
  EXPECT_EQ(ask(demo.port(), "/reverse", R"({"text": "abc"})").status, 401);
  EXPECT_EQ(ask(demo.port(), "/reverse", "", key).status, 405);
  const io::JsonValue paths = at(json(ask(demo.port(), "/openapi.json").body), "paths");
  EXPECT_EQ(at(member(paths, "/reverse"), "post.summary"), io::JsonValue("A text turned round"));
}

}  // namespace
}  // namespace levin::test
