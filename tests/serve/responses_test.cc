// /v1/responses as a client sees it, over a socket, with the demonstration model.
#include <gtest/gtest.h>

#include "serve/served_demo.h"

namespace levin::test {
namespace {

const std::string kTokyo = "The capital of Japan is Tokyo.";
const std::string kThought = "The country is Japan. Its capital is Tokyo.";

std::string ask_with(const std::string& more, const std::string& input = R"("What is the capital of Japan?")") {
  return R"({"model": "demo", "input": )" + input + (more.empty() ? "" : ", " + more) + "}";
}

class ResponsesTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { demo_ = std::make_unique<ServedDemo>(); }
  static void TearDownTestSuite() { demo_ = nullptr; }
  static Reply post(const std::string& body) { return ask(demo_->port(), "/v1/responses", body); }
  static io::JsonValue answer(const std::string& body) {
    const Reply reply = post(body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return json(reply.body);
  }
  static std::unique_ptr<ServedDemo> demo_;
};
std::unique_ptr<ServedDemo> ResponsesTest::demo_;

TEST_F(ResponsesTest, AnswersWithItems) {
  const io::JsonValue found = answer(ask_with(R"("reasoning": {"effort": "high"}, "store": false)"));
  EXPECT_EQ(at(found, "status"), io::JsonValue("completed"));
  EXPECT_EQ(at(found, "output.0.content.0.text"), io::JsonValue(kThought));
  EXPECT_EQ(at(found, "output.1.content.0.text"), io::JsonValue(kTokyo));
  EXPECT_EQ(at(found, "usage.output_tokens"), io::JsonValue(29));
  const io::JsonValue cut = answer(ask_with(R"("max_output_tokens": 2)"));
  EXPECT_EQ(at(cut, "status"), io::JsonValue("incomplete"));
  EXPECT_EQ(at(cut, "incomplete_details.reason"), io::JsonValue("max_output_tokens"));
}

TEST_F(ResponsesTest, SaysWhatWasAsked) {
  const io::JsonValue plain = answer(ask_with(""));
  EXPECT_TRUE(at(plain, "instructions").is_null());
  EXPECT_EQ(at(plain, "text.format.type"), io::JsonValue("text"));
  EXPECT_EQ(at(plain, "temperature"), io::JsonValue(0.0));
  const std::string asked =
      R"("instructions": "Be brief.", "temperature": 0.5, "top_p": 0.9, "max_output_tokens": 3, "metadata": {"a": "b"},
         "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}], "tool_choice": "none",
         "text": {"format": {"type": "json_object"}}, "reasoning": {"effort": "none"}, "store": true)";
  const io::JsonValue request = json("{" + asked + "}");
  for (const io::JsonValue& found :
       {answer(ask_with(asked)),
        at(json(events_of(post(ask_with(asked + R"(, "stream": true)")).body).front()), "response")}) {
    for (const io::JsonMember& member : request.as_object()->members()) {
      if (member.key == "store") continue;  // nothing is stored, whatever was asked
      EXPECT_EQ(at(found, member.key), member.value) << member.key;
    }
    EXPECT_EQ(at(found, "store"), io::JsonValue(false));
  }
}

TEST_F(ResponsesTest, StreamsTheSameItemByItem) {
  const Reply reply = post(ask_with(R"("stream": true, "reasoning": {"effort": "high"})"));
  std::string order, text, thought;
  int64_t n = 0;
  for (const std::string& data : events_of(reply.body)) {
    const io::JsonValue event = json(data);
    const std::string type = *at(event, "type").as_string();
    EXPECT_EQ(at(event, "sequence_number"), io::JsonValue(n++));
    if (type == "response.output_text.delta") {
      text += *at(event, "delta").as_string();
    } else if (type == "response.reasoning_text.delta") {
      thought += *at(event, "delta").as_string();
    } else {
      order += type.substr(9) + " ";
    }
    if (type == "response.completed") {
      EXPECT_EQ(at(event, "response.output.1.content.0.text"), io::JsonValue(kTokyo));
    }
  }
  EXPECT_EQ(order,
            "created in_progress output_item.added reasoning_text.done output_item.done output_item.added "
            "content_part.added output_text.done content_part.done output_item.done completed ");
  EXPECT_EQ(text, kTokyo);
  EXPECT_EQ(thought, kThought);
}

// Where an answer has no text too: cut off in its reasoning or in a call, or at an end that comes at once.
TEST_F(ResponsesTest, AStreamEndsWithTheItemsOfAWholeAnswer) {
  const auto kinds = [](const io::JsonValue& response) {
    std::string out = *at(response, "status").as_string() + ":";
    const io::JsonValue output = at(response, "output");
    for (const io::JsonValue& item : *output.as_array()) out += " " + *at(item, "type").as_string();
    return out;
  };
  const std::pair<const char*, const char*> cases[] = {
      {R"("reasoning": {"effort": "high"}, "max_output_tokens": 3)", "incomplete: reasoning"},
      {R"("tools": [{"type": "function", "name": "f", "parameters": {"type": "object", "properties": {"a": {"type":
          "string", "minLength": 50}}, "required": ["a"]}}], "tool_choice": "required", "max_output_tokens": 12)",
       "incomplete:"},
      {R"("allowed_token_ids": [1])", "completed: message"},
      {"", "completed: message"},
  };
  for (const auto& [more, expected] : cases) {
    EXPECT_EQ(kinds(answer(ask_with(more))), expected) << more;
    const std::string streamed = std::string(more) + (*more != 0 ? ", " : "") + R"("stream": true)";
    EXPECT_EQ(kinds(at(json(events_of(post(ask_with(streamed)).body).back()), "response")), expected) << more;
  }
}

// What one answer gave comes back as several items, and is the same prompt as in chat.
TEST_F(ResponsesTest, ItemsBecomeThePromptOfTheOtherDialect) {
  const std::string items =
      R"([{"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
          {"role": "user", "content": "How is it?"},
          {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
          {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
          {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{\"c\": 1}"},
          {"type": "web_search_call", "id": "ws_1"},
          {"type": "function_call_output", "call_id": "c1", "output": "sun"}])";
  const std::string tools =
      R"([{"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "weather", "description": "d",
          "parameters": {"type": "object"}, "strict": false}]}, {"type": "web_search"}])";
  const std::string chat =
      R"({"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How is it?"},
          {"role": "assistant", "content": "I look.", "reasoning": "hm", "tool_calls": [
             {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{\"c\": 1}"}}]},
          {"role": "tool", "tool_call_id": "c1", "content": "sun"}],
          "tools": [{"type": "function", "function": {"name": "weather", "description": "d",
                     "parameters": {"type": "object"}}}]})";
  const io::JsonValue found = answer(ask_with(R"("max_output_tokens": 1, "tools": )" + tools, items));
  EXPECT_EQ(at(found, "usage.input_tokens"), at(json(ask(demo_->port(), "/render", chat).body), "count"));
}

TEST_F(ResponsesTest, AnswersAProbeWithNothingInIt) {
  EXPECT_EQ(post(ask_with(R"("max_output_tokens": 1)", "[]")).status, 200);
}

TEST_F(ResponsesTest, RefusesByName) {
  struct Refused {
    std::string body;
    const char* param;
  };
  for (const Refused& refused : std::initializer_list<Refused>{
           {"{}", "input"},
           {ask_with("", "7"), "input"},
           {ask_with("", R"([{"role": "owl", "content": ""}])"), "input"},
           {ask_with("", R"([{"role": "user", "content": [{"type": "input_image"}]}])"), "input"},
           {ask_with("", R"([{"role": "assistant", "content": "x"}])"), "input"},
           {ask_with("", R"([{"type": "function_call", "arguments": "{}"}])"), "input"},
           {ask_with("", R"([{"type": "function_call", "name": "f", "arguments": {"a": 1}},
                             {"role": "user", "content": "x"}])"),
            "input"},
           {ask_with("", R"([{"type": "reasoning", "content": [{"type": "reasoning_text", "text": 5}]},
                             {"role": "user", "content": "x"}])"),
            "input"},
           {ask_with(R"("previous_response_id": "resp_1")"), "previous_response_id"},
           {ask_with(R"("tool_choice": "required")"), "tool_choice"},
           {ask_with("", R"([{"type": "item_reference", "id": "msg_1"}])"), "input"},
           {ask_with(R"("tools": [5])"), "tools"},
           {ask_with(R"("tools": [{"type": "function", "name": 5}], "tool_choice": "required")"), "tools"},
           {ask_with(
                R"("tools": [{"type": "function", "name": null}], "tool_choice": {"type": "function", "name": "f"})"),
            "tools"},
           {ask_with(R"("tools": [{"type": "namespace", "tools": [{"type": "function"}]}],
                        "text": {"format": {"type": "json_object"}})"),
            "tools"},
           {ask_with(R"("tools": [{"type": "function", "name": "f", "parameters": "x"}])"), "tools"},
           {ask_with(R"("tools": [{"type": "function", "name": "f", "strict": 1}])"), "tools"},
           {ask_with(R"("suffix": "x")"), "suffix"},
           {ask_with(R"("best_of": 3)"), "best_of"},
           {ask_with(R"("max_output_tokens": 0)"), "max_output_tokens"}}) {
    const Reply reply = post(refused.body);
    EXPECT_EQ(reply.status, 400) << refused.body;
    EXPECT_EQ(at(json(reply.body), "error.param"), io::JsonValue(refused.param)) << reply.body;
  }
}

}  // namespace
}  // namespace levin::test
