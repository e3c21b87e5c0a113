// Anthropic's routes as a client sees them, over a socket, with the demonstration model.
#include <gtest/gtest.h>

#include "serve/served_demo.h"

namespace levin::test {
namespace {

const std::string kTokyo = "The capital of Japan is Tokyo.";

std::string message(const std::string& more,
                    const std::string& messages = R"([{"role": "user", "content": "What is the capital of Japan?"}])") {
  return R"({"model": "demo", "max_tokens": 100, "messages": )" + messages + (more.empty() ? "" : ", " + more) + "}";
}

class AnthropicTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { demo_ = std::make_unique<ServedDemo>(); }
  static void TearDownTestSuite() { demo_ = nullptr; }
  static Reply post(const std::string& path, const std::string& body) { return ask(demo_->port(), path, body); }
  static io::JsonValue answer(const std::string& body) {
    const Reply reply = post("/v1/messages?beta=true", body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return json(reply.body);
  }
  static std::string rendered(const std::string& body) {
    const Reply reply = post("/v1/messages/count_tokens", body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return io::dump_json(at(json(reply.body), "input_tokens"));
  }

  static std::unique_ptr<ServedDemo> demo_;
};
std::unique_ptr<ServedDemo> AnthropicTest::demo_;

TEST_F(AnthropicTest, Answers) {
  const io::JsonValue found = answer(message(R"("metadata": {"user_id": "x"}, "thinking": {"type": "disabled"})"));
  EXPECT_EQ(at(found, "type"), io::JsonValue("message"));
  EXPECT_EQ(at(found, "content.0.text"), io::JsonValue(kTokyo));
  EXPECT_EQ(at(found, "stop_reason"), io::JsonValue("end_turn"));
  EXPECT_EQ(at(found, "usage.input_tokens"), io::JsonValue(13));
  EXPECT_EQ(at(found, "usage.output_tokens"), io::JsonValue(13));
}

TEST_F(AnthropicTest, GoesOnWithAnAnswerThatWasBegun) {
  const io::JsonValue found = answer(message("", R"([{"role": "user", "content": "What is the capital of Japan?"},
      {"role": "assistant", "content": [{"type": "text", "text": "The capital of"}]}])"));
  EXPECT_EQ(at(found, "content.0.text"), io::JsonValue(" Japan is Tokyo."));
}

TEST_F(AnthropicTest, ListsModelsInItsOwnShape) {
  const auto get = [](const char* path) { return ask(demo_->port(), path, "", {{"anthropic-version", "2023-06-01"}}); };
  const io::JsonValue list = json(get("/v1/models?limit=20").body);
  EXPECT_EQ(at(list, "has_more"), io::JsonValue(false));
  EXPECT_EQ(at(list, "first_id"), io::JsonValue("demo"));
  EXPECT_EQ(at(list, "last_id"), io::JsonValue("other-name"));
  for (const io::JsonValue& model : {at(list, "data.0"), json(get("/v1/models/demo").body)}) {
    EXPECT_EQ(at(model, "type"), io::JsonValue("model"));
    EXPECT_EQ(at(model, "id"), io::JsonValue("demo"));
    EXPECT_EQ(at(model, "display_name"), io::JsonValue("demo"));
    EXPECT_EQ(at(model, "created_at").as_string()->size(), std::string("2026-01-31T12:00:00Z").size());
  }
  EXPECT_EQ(at(json(get("/v1/models/unknown").body), "error.type"), io::JsonValue("not_found_error"));
}

TEST_F(AnthropicTest, ThinksWhereAsked) {
  const io::JsonValue found = answer(message(R"("thinking": {"type": "enabled", "budget_tokens": 1024})"));
  EXPECT_EQ(at(found, "content.0.type"), io::JsonValue("thinking"));
  EXPECT_EQ(at(found, "content.0.thinking"), io::JsonValue("The country is Japan. Its capital is Tokyo."));
  EXPECT_EQ(at(found, "content.1.text"), io::JsonValue(kTokyo));
}

TEST_F(AnthropicTest, EndsAtStopSequencesAndLimits) {
  const io::JsonValue stopped = answer(message(R"("stop_sequences": ["Japan"])"));
  EXPECT_EQ(at(stopped, "content.0.text"), io::JsonValue("The capital of "));
  EXPECT_EQ(at(stopped, "stop_reason"), io::JsonValue("stop_sequence"));
  EXPECT_EQ(at(stopped, "stop_sequence"), io::JsonValue("Japan"));
  // more tokens than the context holds are as many as it holds
  EXPECT_EQ(
      at(answer(
             R"({"max_tokens": 100000, "messages": [{"role": "user", "content": "What is the capital of Japan?"}]})"),
         "content.0.text"),
      io::JsonValue(kTokyo));
  EXPECT_EQ(
      at(answer(R"({"max_tokens": 2, "messages": [{"role": "user", "content": "What is the capital of Japan?"}]})"),
         "stop_reason"),
      io::JsonValue("max_tokens"));
}

TEST_F(AnthropicTest, StreamsBlockAfterBlock) {
  const Reply reply = post("/v1/messages", message(R"("stream": true, "thinking": {"type": "enabled"})"));
  std::string order, text, thinking;
  for (const std::string& data : events_of(reply.body)) {
    const io::JsonValue event = json(data);
    const std::string type = *at(event, "type").as_string();
    if (type != "content_block_delta") order += type + " ";
    if (const auto delta = at(event, "delta.text"); !delta.is_null()) text += *delta.as_string();
    if (const auto delta = at(event, "delta.thinking"); !delta.is_null()) thinking += *delta.as_string();
    if (type == "message_delta") {
      EXPECT_EQ(at(event, "usage.output_tokens"), io::JsonValue(29));
    }
    EXPECT_NE(reply.body.find("event: " + type + "\ndata: "), std::string::npos);
  }
  EXPECT_EQ(order,
            "message_start ping content_block_start content_block_stop content_block_start content_block_stop "
            "message_delta message_stop ");
  EXPECT_EQ(text, kTokyo);
  EXPECT_EQ(thinking, "The country is Japan. Its capital is Tokyo.");
  EXPECT_NE(reply.body.find("signature_delta"), std::string::npos);
}

// The same conversation in both dialects is the same prompt.
TEST_F(AnthropicTest, ConversationsBecomeThePromptOfTheOtherDialect) {
  const std::string here = message(
      R"("system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
         "tools": [{"name": "weather", "description": "d", "input_schema": {"type": "object", "properties": {}}},
                   {"type": "web_search_20250305", "name": "web_search"}])",
      R"([{"role": "user", "content": [{"type": "text", "text": "How is it?"}]},
          {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"},
                                            {"type": "text", "text": "I look."},
                                            {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"c": 1}}]},
          {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1",
                                        "content": [{"type": "text", "text": "sun"}]}]}])");
  const std::string there =
      R"({"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How is it?"},
          {"role": "assistant", "content": "I look.", "reasoning": "hm", "tool_calls": [
             {"id": "toolu_1", "type": "function", "function": {"name": "weather", "arguments": "{\"c\": 1}"}}]},
          {"role": "tool", "tool_call_id": "toolu_1", "content": "sun"}],
          "tools": [{"type": "function", "function": {"name": "weather", "description": "d",
                     "parameters": {"type": "object", "properties": {}}}}]})";
  EXPECT_EQ(rendered(here), io::dump_json(at(json(post("/render", there).body), "count")));
}

struct Refused {
  std::string body;
  int status;
  const char* type;
  const char* part;
};

TEST_F(AnthropicTest, RefusesByName) {
  const Refused cases[] = {
      {"{", 400, "invalid_request_error", "the request body"},
      {R"({"messages": [{"role": "user", "content": "x"}]})", 400, "invalid_request_error", "max_tokens is missing"},
      {message("", "[]"), 400, "invalid_request_error", "at least one message"},
      {message("", R"([{"role": "owl", "content": "x"}])"), 400, "invalid_request_error", "owl"},
      {message("", R"([{"role": "user"}])"), 400, "invalid_request_error", "messages[0] has no content"},
      {message("", R"([{"role": "user", "content": [{"type": "image", "source": {}}]}])"), 400, "invalid_request_error",
       "image"},
      {message("", R"([{"role": "user", "content": [7]}])"), 400, "invalid_request_error",
       "messages[0].content[0] is 7"},
      {message("", R"([{"role": "user", "content": [{"type": "text", "text": 7}]}])"), 400, "invalid_request_error",
       "messages[0].content[0] has the text 7"},
      {message("", R"([{"role": "user", "content": [{"type": "text"}]}])"), 400, "invalid_request_error",
       "messages[0].content[0] has no text"},
      {message("", R"([{"role": "assistant", "content": [{"type": "thinking", "thinking": {}}]}])"), 400,
       "invalid_request_error", "messages[0].content[0] has the thinking an object"},
      {message("", R"([{"role": "user", "content": [{"type": "tool_result", "tool_use_id": 7}]}])"), 400,
       "invalid_request_error", "messages[0].content[0] has the tool_use_id 7"},
      {message(R"("tools": [{}])"), 400, "invalid_request_error", "number 0 has no name"},
      {message(R"("tools": [{"name": "f", "description": 7}])"), 400, "invalid_request_error", "the description 7"},
      {message(R"("tools": [{"name": "f", "strict": "no"}])"), 400, "invalid_request_error", "the strict \\\"no\\\""},
      {message(R"("tool_choice": {"type": "any"})"), 400, "invalid_request_error", "no tools"},
      {message(R"("temperature": "warm")"), 400, "invalid_request_error", "temperature"},
      {R"({"model": "claude", "messages": []})", 404, "not_found_error", "claude"},
      {message("", R"([{"role": "user", "content": ")" + std::string(20'000, '7') + R"("}])"), 400,
       "invalid_request_error", "prompt is too long: "},
  };
  for (const Refused& refused : cases) {
    const Reply reply = post("/v1/messages", refused.body);
    EXPECT_EQ(reply.status, refused.status) << reply.body;
    EXPECT_EQ(at(json(reply.body), "type"), io::JsonValue("error"));
    EXPECT_EQ(at(json(reply.body), "error.type"), io::JsonValue(refused.type)) << reply.body;
    EXPECT_NE(reply.body.find(refused.part), std::string::npos) << reply.body;
  }
}

}  // namespace
}  // namespace levin::test
