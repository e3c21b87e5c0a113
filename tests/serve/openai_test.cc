// OpenAI's routes as a client sees them, over a socket, with the demonstration model.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <thread>

#include "serve/openai_json.h"
#include "serve/served_demo.h"

namespace levin::test {
namespace {

const std::string kJapan = R"({"role": "user", "content": "What is the capital of Japan?"})";
const std::string kTokyo = "The capital of Japan is Tokyo.";

std::string chat(const std::string& more, const std::string& message = kJapan) {
  return R"({"model": "demo", "messages": [)" + message + "]" + (more.empty() ? "" : ", " + more) + "}";
}

class OpenAiTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { demo_ = std::make_unique<ServedDemo>(); }
  static void TearDownTestSuite() { demo_ = nullptr; }

  static Reply post(const std::string& path, const std::string& body) { return ask(demo_->port(), path, body); }
  static io::JsonValue answer(const std::string& path, const std::string& body) {
    const Reply reply = post(path, body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return json(reply.body);
  }
  static io::JsonValue chat_answer(const std::string& more, const std::string& message = kJapan) {
    return answer("/v1/chat/completions", chat(more, message));
  }

  static std::unique_ptr<ServedDemo> demo_;
};
std::unique_ptr<ServedDemo> OpenAiTest::demo_;

TEST_F(OpenAiTest, ServesTheSmallRoutes) {
  EXPECT_EQ(ask(demo_->port(), "/health").status, 200);
  EXPECT_EQ(at(json(ask(demo_->port(), "/v1/models").body), "data.0.max_model_len"), io::JsonValue(2048));
  EXPECT_EQ(at(json(ask(demo_->port(), "/v1/models/other-name").body), "root"), io::JsonValue("demo"));
  EXPECT_EQ(ask(demo_->port(), "/v1/models/unknown").status, 404);
  EXPECT_EQ(ask(demo_->port(), "/v1/models/").status, 404);
  EXPECT_EQ(at(json(ask(demo_->port(), "/version").body), "version"), io::JsonValue("test"));
  EXPECT_EQ(at(json(ask(demo_->port(), "/tokenizer_info").body), "eos_token"), io::JsonValue("<｜end▁of▁sentence｜>"));
  const io::JsonValue tokens = answer("/tokenize", R"({"prompt": "a river", "add_special_tokens": false})");
  EXPECT_EQ(at(answer("/detokenize", "{\"tokens\": " + io::dump_json(at(tokens, "tokens")) + "}"), "prompt"),
            io::JsonValue("a river"));
  EXPECT_EQ(at(answer("/render", chat("")), "prompt"),
            io::JsonValue("<｜begin▁of▁sentence｜><｜User｜>What is the capital of Japan?<｜Assistant｜></think>"));
}

TEST_F(OpenAiTest, SaysWhatIsServedAndHow) {
  const io::JsonValue props = json(ask(demo_->port(), "/props").body);
  EXPECT_EQ(at(props, "model_alias"), io::JsonValue("demo"));
  EXPECT_EQ(at(props, "build_info"), io::JsonValue("levin test"));
  EXPECT_EQ(at(props, "chat_format"), io::JsonValue("DeepSeek-V3.2"));
  EXPECT_EQ(at(props, "total_slots"), io::JsonValue(64));
  EXPECT_EQ(at(props, "speculation_steps"), io::JsonValue(3));
  EXPECT_EQ(at(props, "default_generation_settings.n_ctx"), io::JsonValue(2048));
  EXPECT_EQ(at(props, "default_generation_settings.params.temperature"), io::JsonValue(0.0));
}

// Of a request's parts, under the names that dashboards know, and of the process.
TEST_F(OpenAiTest, CountsWhatDashboardsShow) {
  const auto figure = [&](const std::string& name) {
    const std::string page = demo_->server().metrics();
    const size_t found = page.find("\n" + name);
    return found == std::string::npos ? -1.0 : std::atof(page.c_str() + page.find(' ', found + 1));
  };
  const double n_prompt_before = figure("vllm:request_prompt_tokens_sum");
  const double n_answer_before = figure("vllm:request_generation_tokens_sum");
  const double n_before = figure("vllm:request_queue_time_seconds_count");
  chat_answer("");
  EXPECT_EQ(figure("vllm:request_prompt_tokens_sum") - n_prompt_before, 13);
  EXPECT_EQ(figure("vllm:request_generation_tokens_sum") - n_answer_before, 13);
  for (const char* name : {"queue", "prefill", "decode", "inference"}) {
    const std::string full = std::string("request_") + name + "_time_seconds";
    EXPECT_EQ(figure("vllm:" + full + "_count"), n_before + 1) << name;
    EXPECT_EQ(figure("levin_" + full + "_count"), n_before + 1) << name;
    EXPECT_GT(figure("vllm:" + full + "_sum"), 0) << name;
  }
  EXPECT_LE(figure("vllm:request_queue_time_seconds_sum") + figure("vllm:request_inference_time_seconds_sum"),
            figure("vllm:e2e_request_latency_seconds_sum"));
  EXPECT_GT(figure("process_cpu_seconds_total"), 0);
  EXPECT_GT(figure("process_resident_memory_bytes"), 1e6);
  EXPECT_GT(figure("process_virtual_memory_bytes"), figure("process_resident_memory_bytes"));
  EXPECT_GT(figure("process_open_fds"), 3);
  EXPECT_GE(figure("process_max_fds"), figure("process_open_fds"));
  const double now = static_cast<double>(std::time(nullptr));
  EXPECT_GT(figure("process_start_time_seconds"), now - 3600);
  EXPECT_LE(figure("process_start_time_seconds"), now + 2);
}

TEST_F(OpenAiTest, HasAPageForBrowsers) {
  EXPECT_NE(ask(demo_->port(), "/").body.find("levin test serves demo"), std::string::npos);
  const Reply page = ask(demo_->port(), "/", "", {{"Accept", "text/html,*/*"}});
  EXPECT_NE(page.head.find("Content-Security-Policy: default-src 'none'"), std::string::npos) << page.head;
  EXPECT_TRUE(page.body.starts_with("<!doctype html>"));
  EXPECT_TRUE(page.body.ends_with("</html>\n"));
}

TEST_F(OpenAiTest, AnswersAChat) {
  const io::JsonValue found = chat_answer(R"("max_tokens": 40, "unknown_field": [1], "stop": null)");
  EXPECT_EQ(at(found, "object"), io::JsonValue("chat.completion"));
  EXPECT_EQ(at(found, "choices.0.message.content"), io::JsonValue(kTokyo));
  EXPECT_EQ(at(found, "choices.0.finish_reason"), io::JsonValue("stop"));
  EXPECT_EQ(at(found, "usage.prompt_tokens"), io::JsonValue(13));
  EXPECT_EQ(at(found, "usage.total_tokens"), io::JsonValue(26));
}

TEST_F(OpenAiTest, KeepsReasoningApart) {
  for (const char* how : {R"("thinking": {"type": "enabled"})", R"("reasoning_effort": "high")", R"("think": true)",
                          R"("chat_template_kwargs": {"thinking": true})"}) {
    const io::JsonValue found = chat_answer(how);
    EXPECT_EQ(at(found, "choices.0.message.reasoning_content"),
              io::JsonValue("The country is Japan. Its capital is Tokyo."));
    EXPECT_EQ(at(found, "choices.0.message.reasoning"), at(found, "choices.0.message.reasoning_content"));
    EXPECT_EQ(at(found, "choices.0.message.content"), io::JsonValue(kTokyo));
  }
  EXPECT_TRUE(at(chat_answer(R"("reasoning_effort": "none")"), "choices.0.message.reasoning").is_null());
}

TEST_F(OpenAiTest, StreamsWhatItWouldHaveAnswered) {
  const Reply reply = post("/v1/chat/completions",
                           chat(R"("stream": true, "thinking": true, "stream_options": {"include_usage": true})"));
  EXPECT_EQ(reply.status, 200);
  EXPECT_NE(reply.head.find("Content-Type: text/event-stream"), std::string::npos);
  std::vector<std::string> events = events_of(reply.body);
  ASSERT_GT(events.size(), 4u);
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(at(json(events.front()), "choices.0.delta.role"), io::JsonValue("assistant"));
  std::string content, reasoning;
  for (size_t i = 0; i + 2 < events.size(); ++i) {
    const io::JsonValue chunk = json(events[i]);
    EXPECT_TRUE(at(chunk, "usage").is_null());
    if (const auto text = at(chunk, "choices.0.delta.content"); !text.is_null()) content += *text.as_string();
    if (const auto text = at(chunk, "choices.0.delta.reasoning"); !text.is_null()) reasoning += *text.as_string();
  }
  EXPECT_EQ(content, kTokyo);
  EXPECT_EQ(reasoning, "The country is Japan. Its capital is Tokyo.");
  EXPECT_EQ(at(json(events[events.size() - 3]), "choices.0.finish_reason"), io::JsonValue("stop"));
  const io::JsonValue last = json(events[events.size() - 2]);
  EXPECT_EQ(io::dump_json(at(last, "choices")), "[]");
  EXPECT_EQ(at(last, "usage.completion_tokens"), io::JsonValue(29));
}

// Of what every chunk says, the last is what the whole answer would say.
TEST_F(OpenAiTest, EveryChunkMayHaveTheUsage) {
  const std::string more =
      R"("n": 2, "max_tokens": 6, "stream": true, "stream_options": {"continuous_usage_stats": true})";
  const std::pair<std::string, std::string> requests[] = {
      {"/v1/chat/completions", chat(more)},
      {"/v1/completions", R"({"prompt": ["def read_file(", "import os"], )" + more + "}"},
      {"/v1/completions", R"({"prompt": "import os", "echo": true, "max_tokens": 0, "stream": true,
                              "stream_options": {"continuous_usage_stats": true}})"}};
  const size_t n_prompts[] = {1, 2, 1}, n_answer[] = {12, 24, 0};
  for (size_t i = 0; i < 3; ++i) {
    const auto& [path, body] = requests[i];
    std::vector<std::string> events = events_of(post(path, body).body);
    ASSERT_GT(events.size(), 1u);
    events.pop_back();  // [DONE]
    const io::JsonValue n_prompt = at(json(events.front()), "usage.prompt_tokens");
    EXPECT_GT(*n_prompt.to_uint64(), n_prompts[i]) << events.front();
    uint64_t n_before = 0;
    for (const std::string& event : events) {
      const io::JsonValue chunk = json(event);
      EXPECT_EQ(at(chunk, "usage.prompt_tokens"), n_prompt) << event;
      const uint64_t n_now = at(chunk, "usage.completion_tokens").to_uint64().value_or(0);
      EXPECT_GE(n_now, n_before) << event;
      n_before = n_now;
    }
    EXPECT_EQ(n_before, n_answer[i]) << path;
  }
}

TEST_F(OpenAiTest, EndsAtStopStringsAndLimits) {
  const std::string repeat = R"({"role": "user", "content": "Repeat: river stone apple tiger"})";
  io::JsonValue found = chat_answer(R"("stop": ["tiger", "ne ap"])", repeat);
  EXPECT_EQ(at(found, "choices.0.message.content"), io::JsonValue("river sto"));
  EXPECT_EQ(at(found, "choices.0.stop_reason"), io::JsonValue("ne ap"));
  found = chat_answer(R"("stop": "apple", "include_stop_str_in_output": true)", repeat);
  EXPECT_EQ(at(found, "choices.0.message.content"), io::JsonValue("river stone apple"));
  found = chat_answer(R"("max_completion_tokens": 2, "max_tokens": 50)", repeat);
  EXPECT_EQ(at(found, "choices.0.finish_reason"), io::JsonValue("length"));
  EXPECT_EQ(at(found, "usage.completion_tokens"), io::JsonValue(2));
  // the limit decides that a longer one, which began before, will not come
  found = chat_answer(R"("max_tokens": 2, "stop": ["tone or", "ne"])", repeat);
  EXPECT_EQ(at(found, "choices.0.message.content"), io::JsonValue("river sto"));
  EXPECT_EQ(at(found, "choices.0.finish_reason"), io::JsonValue("stop"));
  EXPECT_EQ(at(found, "choices.0.stop_reason"), io::JsonValue("ne"));
  // a part of a stop string that does not become one is shown in the end
  EXPECT_EQ(at(chat_answer(R"("stop": "Tokyo.x")"), "choices.0.message.content"), io::JsonValue(kTokyo));
}

// Of all choices together, position by position.
TEST_F(OpenAiTest, TellsHowManyDraftsWereAccepted) {
  const std::string repeat = R"({"role": "user", "content": "Repeat: river stone apple tiger"})";
  const io::JsonValue one = at(chat_answer("", repeat), "usage.speculation");
  const io::JsonValue two = at(chat_answer(R"("n": 2)", repeat), "usage.speculation");
  for (const io::JsonValue& found : {one, two}) {
    const io::JsonArray accepted = *at(found, "accepted_per_position").as_array();
    ASSERT_EQ(accepted.size(), 3u);  // --spec-steps
    int64_t sum = 0;
    for (const io::JsonValue& n : accepted) sum += *n.to_int64();
    EXPECT_EQ(io::JsonValue(sum), at(found, "accepted"));
    EXPECT_GT(sum, 0);
  }
}

TEST_F(OpenAiTest, TheSameSeedGivesTheSameText) {
  const std::string hot = R"("temperature": 1.2, "max_tokens": 30, "n": 3, "seed": )";
  const auto texts = [&](const std::string& seed) {
    const io::JsonValue found = chat_answer(hot + seed);
    std::vector<std::string> out;
    for (const char* i : {"0", "1", "2"}) {
      out.push_back(*at(found, std::string("choices.") + i + ".message.content").as_string());
    }
    EXPECT_EQ(at(found, "usage.prompt_tokens"), io::JsonValue(13));  // once
    return out;
  };
  EXPECT_EQ(texts("7"), texts("7"));
  EXPECT_NE(texts("7"), texts("-8"));
}

TEST_F(OpenAiTest, GivesLogProbabilitiesOfChats) {
  const io::JsonValue found = chat_answer(R"("logprobs": true, "top_logprobs": 3, "max_tokens": 4)");
  const io::JsonValue content = at(found, "choices.0.logprobs.content");
  ASSERT_EQ(content.as_array()->size(), 4u);
  EXPECT_EQ(at(content, "0.token"), io::JsonValue("The"));
  EXPECT_EQ(io::dump_json(at(content, "0.bytes")), "[84, 104, 101]");
  EXPECT_EQ(at(content, "0.top_logprobs.0.logprob"), at(content, "0.logprob"));
  EXPECT_EQ(at(content, "0.top_logprobs").as_array()->size(), 3u);
}

// What lm-eval asks: prompts as ids, one token, log probabilities of the prompt, and the chosen one in its own map.
TEST_F(OpenAiTest, ScoresPrompts) {
  const std::string body =
      R"({"model": "demo", "prompt": [[0, 345, 83, 339], [0, 512, 600]], "temperature": 0, "max_tokens": 1, "logprobs": 1,
          "seed": 1234, "echo": true})";
  const io::JsonValue found = answer("/v1/completions", body);
  for (const auto& [choice, n] :
       std::initializer_list<std::pair<std::string, size_t>>{{"choices.0.", 5}, {"choices.1.", 4}}) {
    const io::JsonArray logprobs = *at(found, choice + "logprobs.token_logprobs").as_array();
    const io::JsonArray top = *at(found, choice + "logprobs.top_logprobs").as_array();
    ASSERT_EQ(logprobs.size(), n);
    ASSERT_EQ(top.size(), n);
    EXPECT_TRUE(logprobs[0].is_null());
    for (size_t i = 1; i < n; ++i) {
      double best = -1e9;
      bool own = false;
      for (const io::JsonMember& entry : top[i].as_object()->members()) {
        best = std::max(best, *entry.value.to_double());
        own |= entry.value == logprobs[i];
      }
      EXPECT_TRUE(own);
      EXPECT_LE(*logprobs[i].to_double(), best);
    }
  }
  EXPECT_EQ(at(answer("/v1/completions", body), "choices.0.logprobs"), at(found, "choices.0.logprobs"));
}

TEST_F(OpenAiTest, CompletesTexts) {
  const io::JsonValue found =
      answer("/v1/completions", R"({"prompt": ["def read_file(", "import "], "max_tokens": 6})");
  EXPECT_EQ(at(found, "choices.1.index"), io::JsonValue(1));
  const std::string whole = *at(found, "choices.0.text").as_string();
  EXPECT_FALSE(whole.empty());
  const Reply stream =
      post("/v1/completions", R"({"prompt": "def read_file(", "max_tokens": 6, "stream": true, "echo": true})");
  std::string text;
  for (const std::string& event : events_of(stream.body)) {
    if (event != "[DONE]") text += *at(json(event), "choices.0.text").as_string();
  }
  EXPECT_EQ(text, "def read_file(" + whole);
  const io::JsonValue only_prompt =
      answer("/v1/completions", R"({"prompt": "import os", "max_tokens": 0, "echo": true})");
  EXPECT_EQ(at(only_prompt, "choices.0.text"), io::JsonValue("import os"));
  EXPECT_EQ(at(only_prompt, "usage.completion_tokens"), io::JsonValue(int64_t{0}));
}

// Where tokens begin in the text: special tokens of the prompt are not in it.
TEST_F(OpenAiTest, SaysWhereTokensBegin) {
  const io::JsonValue found =
      answer("/v1/completions", R"({"prompt": "def main", "max_tokens": 6, "echo": true, "logprobs": 1})");
  const std::string text = *at(found, "choices.0.text").as_string();
  const io::JsonArray tokens = *at(found, "choices.0.logprobs.tokens").as_array();
  const io::JsonArray offsets = *at(found, "choices.0.logprobs.text_offset").as_array();
  ASSERT_EQ(tokens.size(), offsets.size());
  ASSERT_GE(tokens.size(), 8u);
  EXPECT_EQ(offsets[1], io::JsonValue(0));  // after the token that all texts begin with
  for (size_t i = 1; i < tokens.size(); ++i) {
    const std::string& token = *tokens[i].as_string();
    EXPECT_EQ(text.substr(static_cast<size_t>(*offsets[i].to_uint64()), token.size()), token) << i;
  }
}

TEST_F(OpenAiTest, AnObjectMayHaveASchema) {
  const io::JsonValue found = chat_answer(
      R"("max_tokens": 40, "response_format": {"type": "json_object", "schema": {"type": "object", "properties":
          {"zz": {"type": "boolean"}}, "required": ["zz"], "additionalProperties": false}})");
  const io::JsonValue object = json(*at(found, "choices.0.message.content").as_string());
  EXPECT_NE(at(object, "zz").as_bool(), nullptr);
}

struct Refused {
  const char* path;
  std::string body;
  int status;
  const char* param;  // or the code, for those without a field
  const char* part;   // of the message
};

TEST_F(OpenAiTest, RefusesByName) {
  const Refused cases[] = {
      {"/v1/chat/completions", "{\"mess", 400, "", "a string is not closed"},
      {"/v1/chat/completions", "[]", 400, "", "expected an object"},
      {"/v1/chat/completions", "{\"messages\": [\"\xff\"]}", 400, "", ""},
      {"/v1/chat/completions", "{}", 400, "messages", "messages is missing"},
      {"/v1/chat/completions", R"({"messages": []})", 400, "messages", "at least one message"},
      {"/v1/chat/completions", chat(R"("guided_choice": ["x", ")" + std::string(100'000, 'a') + "\"]"), 400,
       "guided_choice", "has 100001 characters in all"},
      {"/v1/chat/completions", R"({"messages": [{"role": "owl", "content": "x"}]})", 400, "messages",
       "the role \"owl\""},
      {"/v1/chat/completions", R"({"messages": [{"role": "user", "content": 3}]})", 400, "messages",
       "messages[0].content is 3"},
      {"/v1/chat/completions", R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})", 400,
       "messages", "image_url"},
      {"/v1/chat/completions", R"({"messages": [{"role": "user", "content": [{"type": "text", "text": 3}]}]})", 400,
       "messages", "messages[0].content has the text 3"},
      {"/v1/chat/completions", R"({"messages": [{"role": "user", "content": [{"type": "text"}]}]})", 400, "messages",
       "messages[0].content has a part of type text without text"},
      {"/v1/chat/completions", R"({"messages": [{"role": "assistant", "reasoning_content": ["x"]}]})", 400, "messages",
       "messages[0] has the reasoning_content a list of 1"},
      {"/v1/chat/completions", R"({"messages": [{"role": "tool", "content": "x", "tool_call_id": 4}]})", 400,
       "messages", "messages[0] has the tool_call_id 4"},
      {"/v1/chat/completions",
       R"({"messages": [{"role": "assistant", "tool_calls": [{"id": 4, "function": {"name": "f"}}]}]})", 400,
       "messages", "messages[0].tool_calls[0] has the id 4"},
      {"/v1/chat/completions", R"({"messages": [{"role": "assistant", "content": "x"}]})", 400, "messages",
       "is the assistant's"},
      {"/v1/chat/completions", chat(R"("continue_final_message": true)"), 400, "messages", "is not the assistant's"},
      {"/v1/chat/completions", chat(R"("continue_final_message": true, "add_generation_prompt": true)"), 400,
       "add_generation_prompt", "exclude each other"},
      {"/v1/chat/completions", chat(R"("add_generation_prompt": false)"), 400, "add_generation_prompt",
       "may be false only"},
      {"/v1/chat/completions", chat(R"("continue_final_message": true, "response_format": {"type": "json_object"})"),
       400, "continue_final_message", "a form for the answer"},
      {"/v1/chat/completions", chat(R"("temperature": "hot")"), 400, "temperature", "temperature is \"hot\""},
      {"/v1/chat/completions", chat(R"("temperature": -1)"), 400, "temperature", "temperature"},
      {"/v1/chat/completions", chat(R"("top_p": 2)"), 400, "top_p", "top_p"},
      {"/v1/chat/completions", chat(R"("temperature": 1e308)"), 400, "temperature", "from 0 to 100"},
      {"/v1/chat/completions", chat(R"("top_k": -3)"), 400, "top_k", "top_k is -3"},
      {"/v1/chat/completions", chat(R"("min_p": 2)"), 400, "min_p", "min_p is 2"},
      {"/v1/chat/completions", chat(R"("repetition_penalty": 0)"), 400, "repetition_penalty", "is 0"},
      {"/v1/chat/completions", chat(R"("presence_penalty": 101)"), 400, "presence_penalty", "is 101"},
      {"/v1/chat/completions", chat(R"("frequency_penalty": 1e9)"), 400, "frequency_penalty", "is 1"},
      {"/v1/chat/completions", chat(R"("logit_bias": {"1": 1e9})"), 400, "logit_bias", "a logit_bias"},
      {"/v1/chat/completions", chat(R"("allowed_token_ids": [99999])"), 400, "allowed_token_ids", "99999"},
      {"/v1/chat/completions", chat(R"("allowed_token_ids": [])"), 400, "allowed_token_ids", "leaves no token"},
      {"/v1/chat/completions", chat(R"("stop": 5)"), 400, "stop", "a string or a list of strings"},
      {"/v1/chat/completions", chat(R"("stop_token_ids": [99999])"), 400, "stop_token_ids", "99999"},
      {"/v1/chat/completions", chat(R"("allowed_token_ids": [1], "min_tokens": 3)"), 400, "min_tokens",
       "min_tokens is 3"},
      {"/v1/chat/completions", chat(R"("functions": [{"name": "f"}])"), 400, "functions", "send tools"},
      {"/v1/chat/completions", chat(R"("function_call": {"name": "f"})"), 400, "function_call", "send tool_choice"},
      {"/v1/chat/completions", chat(R"("modalities": ["text", "audio"])"), 400, "modalities", "has audio"},
      {"/v1/chat/completions", chat(R"("web_search_options": {})"), 400, "web_search_options", "is not supported"},
      {"/v1/chat/completions", chat(R"("mirostat": 2)"), 400, "mirostat", "is not supported"},
      {"/v1/chat/completions", chat(R"("typical_p": 0.5)"), 400, "typical_p", "is not supported"},
      {"/v1/chat/completions", chat(R"("max_new_tokens": 5)"), 400, "max_new_tokens", "send max_tokens"},
      {"/v1/chat/completions", chat(R"("repeat_penalty": 1.1)"), 400, "repeat_penalty", "send repetition_penalty"},
      {"/v1/chat/completions", chat(R"("echo": true)"), 400, "echo", "is not supported"},
      {"/v1/chat/completions", chat(R"("n": 0)"), 400, "n", "n is 0"},
      {"/v1/chat/completions", chat(R"("max_tokens": 0)"), 400, "max_tokens", "at least 1"},
      {"/v1/chat/completions", chat(R"("stop": 4)"), 400, "stop", "stop is 4"},
      {"/v1/chat/completions", chat(R"("stop": ["x", ")" + std::string(4097, 'x') + "\"]"), 400, "stop", "4097 bytes"},
      {"/v1/chat/completions", chat(R"("stream": "yes")"), 400, "stream", "stream is \"yes\""},
      {"/v1/chat/completions", chat(R"("stream_options": {"include_usage": "yes"})"), 400,
       "stream_options.include_usage", "stream_options.include_usage is \"yes\""},
      {"/v1/chat/completions", chat(R"("chat_template_kwargs": {"thinking": 1})"), 400, "chat_template_kwargs.thinking",
       "chat_template_kwargs.thinking is 1"},
      {"/v1/chat/completions", chat(R"("top_logprobs": 2)"), 400, "top_logprobs", "logprobs"},
      {"/v1/chat/completions", chat(R"("logit_bias": {"x": 1})"), 400, "logit_bias", "\"x\""},
      {"/v1/chat/completions", chat(R"("logit_bias": {"999999": 1})"), 400, "logit_bias", "999999"},
      {"/v1/chat/completions", chat(R"("logit_bias": {"99999999999": 1})"), 400, "logit_bias", "99999999999"},
      {"/v1/chat/completions", chat(R"("logit_bias": {"-1": 1})"), 400, "logit_bias", "\"-1\""},
      {"/v1/chat/completions", chat(R"("min_tokens": -1)"), 400, "min_tokens", "min_tokens is -1"},
      {"/v1/chat/completions", chat(R"("suffix": "x")"), 400, "suffix", "is not supported"},
      {"/v1/chat/completions", chat(R"("n": 2, "best_of": 3)"), 400, "best_of", "other than n"},
      {"/v1/chat/completions", chat(R"("tools": [{"type": "function", "function": {"name": "f", "parameters": "x"}}])"),
       400, "tools", "the parameters \"x\""},
      {"/v1/chat/completions", chat(R"("tools": [{"type": "function", "function": {"name": "f", "description": 5}}])"),
       400, "tools", "the description 5 (a number), expected a string"},
      {"/v1/chat/completions", chat(R"("tools": [{"type": "function", "function": {"name": "f", "strict": "no"}}])"),
       400, "tools", "(a string), expected true or false"},
      {"/v1/chat/completions", chat(R"("tools": [{"type": "custom", "function": {"name": "f"}}])"), 400, "tools",
       "number 0 is no"},
      {"/v1/chat/completions", chat(R"("seed": 1.5)"), 400, "seed", "seed is 1.5"},
      {"/v1/chat/completions", chat(R"("tools": [{"type": "function"}])"), 400, "tools", "number 0"},
      {"/v1/chat/completions", chat(R"("guided_grammar": "a")"), 400, "guided_grammar", "is not supported"},
      {"/v1/chat/completions", chat(R"("max_tokens": 3000)"), 400, "context_length_exceeded",
       "This model's maximum context length is 2048 tokens. However, you requested 3000 output tokens"},
      {"/v1/chat/completions", chat(R"("max_tokens": 9223372036854775807)"), 400, "context_length_exceeded",
       "you requested 9223372036854775807 output tokens"},
      {"/v1/completions", R"({"prompt": [5, 5], "max_tokens": 9223372036854775807})", 400, "context_length_exceeded",
       "at least 2 input tokens, for a total of at least 9223372036854775809 tokens"},
      {"/v1/completions",
       R"({"prompt": [[5],[5],[5],[5],[5],[5],[5],[5],[5],[5],[5],[5],[5],[5],[5],[5],[5]], "n": 64})", 400, "n",
       "n is 64 (number of prompts: 17): 1088 answers, and this server takes at most 1024 at a time"},
      {"/v1/chat/completions", R"({"model": "gpt", "messages": []})", 404, "model_not_found", "`gpt`"},
      {"/v1/completions", "{}", 400, "prompt", "prompt is missing"},
      {"/v1/completions", R"({"prompt": [[0, "x"]]})", 400, "prompt", "prompt has the entry"},
      {"/v1/completions", R"({"prompt": [99999]})", 400, "prompt", "99999"},
      {"/v1/completions", R"({"prompt": "x", "suffix": "y"})", 400, "suffix", "not supported"},
      {"/v1/completions", R"({"prompt": "x", "logprobs": 50})", 400, "logprobs", "logprobs is 50"},
      {"/tokenize", "{}", 400, "prompt", "prompt is missing"},
      {"/detokenize", R"({"tokens": [-1]})", 400, "tokens", "-1"},
      {"/v1/embeddings", "{}", 404, "", "there is no POST /v1/embeddings"},
      {"/v1/models", "{}", 405, "", "GET"},
      {"/v1/responses", R"({"input": "x", "background": true})", 400, "background", "is not supported"},
      {"/v1/responses", R"({"input": "x", "conversation": "conv_1"})", 400, "conversation", "stores nothing"},
      {"/v1/responses", R"({"input": "x", "prompt": {"id": "pmpt_1"}})", 400, "prompt", "stores nothing"},
      {"/v1/responses", R"({"input": "x", "top_logprobs": 2})", 400, "top_logprobs", "/v1/chat/completions"},
      {"/v1/responses", R"({"input": "x", "include": ["message.output_text.logprobs"]})", 400, "include",
       "/v1/chat/completions"},
      {"/v1/responses", R"({"input": "x", "tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}})",
       400, "tool_choice", "allowed_tools, or a function"},
  };
  for (const Refused& refused : cases) {
    const Reply reply = post(refused.path, refused.body);
    EXPECT_EQ(reply.status, refused.status) << refused.body << reply.body;
    const io::JsonValue body = json(reply.body);
    EXPECT_NE(reply.body.find(io::dump_json(refused.part).substr(1, io::dump_json(refused.part).size() - 2)),
              std::string::npos)
        << refused.body << "\n"
        << reply.body;
    if (*refused.param != '\0') {
      EXPECT_TRUE(at(body, "error.param") == io::JsonValue(refused.param) ||
                  at(body, "error.code") == io::JsonValue(refused.param))
          << refused.body << "\n"
          << reply.body;
    }
  }
  EXPECT_EQ(at(chat_answer(""), "choices.0.message.content"), io::JsonValue(kTokyo));  // nobody was disturbed
}

// Wherever an answer is cut, the rest is what followed there.
TEST_F(OpenAiTest, ContinuesAnAnswer) {
  const auto message = [](const std::string& members) {
    return kJapan + R"(, {"role": "assistant", )" + members + "}";
  };
  const std::string on = R"("continue_final_message": true, "add_generation_prompt": false)";
  const std::string begun = message(R"("content": "The capital of")");
  io::JsonValue found = chat_answer(on, begun);
  EXPECT_EQ(at(found, "choices.0.message.content"), io::JsonValue(" Japan is Tokyo."));
  EXPECT_EQ(at(answer("/render", chat(on, begun)), "prompt"),
            io::JsonValue(
                "<｜begin▁of▁sentence｜><｜User｜>What is the capital of Japan?<｜Assistant｜></think>The capital of"));
  found = chat_answer(R"("continue_final_message": true)",
                      message(R"("reasoning": "The country is Japan.", "content": "")"));
  EXPECT_EQ(at(found, "choices.0.message.reasoning"), io::JsonValue(" Its capital is Tokyo."));
  EXPECT_EQ(at(found, "choices.0.message.content"), io::JsonValue(kTokyo));
}

// Clients send some fields with the value that asks for nothing.
TEST_F(OpenAiTest, TakesWhatAsksForNothing) {
  const io::JsonValue found = chat_answer(
      R"("modalities": ["text"], "typical_p": 1.0, "repeat_penalty": 1, "mirostat": 0, "length_penalty": 1, "use_beam_search": false,
         "top_n_sigma": -1, "bad_words": [], "function_call": null, "echo": false)");
  EXPECT_EQ(at(found, "choices.0.message.content"), io::JsonValue(kTokyo));
}

TEST_F(OpenAiTest, AllowsSomeOfTheTools) {
  const auto tool = [](const char* name) {
    return std::string(R"({"type": "function", "function": {"name": ")") + name +
           R"(", "parameters": {"type": "object", "properties": {}, "additionalProperties": false}}})";
  };
  const std::string tools = R"("max_tokens": 60, "tools": [)" + tool("walk") + ", " + tool("swim") + "]";
  const auto choice = [](const std::string& mode, const std::string& name) {
    return R"(, "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": ")" + mode +
           R"(", "tools": [{"type": "function", "function": {"name": ")" + name + R"("}}]}})";
  };
  const io::JsonValue found = chat_answer(tools + choice("required", "swim"));
  EXPECT_EQ(at(found, "choices.0.message.tool_calls.0.function.name"), io::JsonValue("swim"));
  const std::string prompt = *at(answer("/render", chat(tools + choice("auto", "swim"))), "prompt").as_string();
  EXPECT_NE(prompt.find("swim"), std::string::npos);
  EXPECT_EQ(prompt.find("walk"), std::string::npos);
  const std::string twice =
      R"(, "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "swim"},
          {"type": "function", "name": "swim"}]})";
  EXPECT_EQ(at(answer("/render", chat(tools + twice)), "prompt"), io::JsonValue(prompt));  // described once
  const Reply refused = post("/v1/chat/completions", chat(tools + choice("auto", "fly")));
  EXPECT_EQ(at(json(refused.body), "error.param"), io::JsonValue("tool_choice"));
}

TEST_F(OpenAiTest, AClientThatLeavesFreesItsPlace) {
  {
    HttpClient client(demo_->port());
    const std::string body = chat(R"("stream": true, "ignore_eos": true, "max_tokens": 1900)");
    client.send("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
                std::to_string(body.size()) + "\r\n\r\n" + body);
    EXPECT_EQ(client.read_reply(true).status, 200);
    EXPECT_FALSE(client.read_some().empty());
  }
  const auto cancelled = [&] {
    return demo_->server().metrics().find("finished_reason=\"cancelled\"} 1\n") != std::string::npos;
  };
  for (int i = 0; i < 200 && !cancelled(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_TRUE(cancelled());
}

TEST_F(OpenAiTest, ManyAtOnceAreAnsweredAsOneAlone) {
  const auto text = [&](int i) {
    return *at(chat_answer(R"("temperature": 0.9, "max_tokens": 24, "seed": )" + std::to_string(i)),
               "choices.0.message.content")
                .as_string();
  };
  std::vector<std::string> alone, together(12);
  for (int i = 0; i < 12; ++i) alone.push_back(text(i));
  std::vector<std::thread> threads;
  for (int i = 0; i < 12; ++i) threads.emplace_back([&, i] { together[static_cast<size_t>(i)] = text(i); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(together, alone);
}

TEST(ServerTest, AsksForAKey) {
  serve::ServerOptions options;
  options.api_keys = {"secret", "second"};
  ServedDemo demo(options);
  EXPECT_EQ(ask(demo.port(), "/health").status, 200);
  EXPECT_EQ(ask(demo.port(), "/metrics").status, 401);
  EXPECT_EQ(ask(demo.port(), "/v1/models", "", {{"Authorization", "Bearer wrong!"}}).status, 401);
  EXPECT_NE(ask(demo.port(), "/v1/models").head.find("WWW-Authenticate: Bearer"), std::string::npos);
  EXPECT_EQ(ask(demo.port(), "/v1/models", "", {{"Authorization", "Bearer secret"}}).status, 200);
  EXPECT_EQ(ask(demo.port(), "/v1/models", "", {{"Authorization", "bearer  secret"}}).status, 200);
  EXPECT_EQ(ask(demo.port(), "/v1/models", "", {{"X-Api-Key", "second"}}).status, 200);
}

// Options of the server hold for requests that leave a field out, of each dialect.
TEST(ServerTest, RequestsHaveTheServersDefaults) {
  serve::ServerOptions options;
  options.defaults = {.seed = 7, .stop_strings = {"o"}, .max_tokens = 3};
  ServedDemo demo(options);
  const auto answer = [&](const std::string& path, const std::string& body) {
    const Reply reply = ask(demo.port(), path, body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return json(reply.body);
  };
  const io::JsonValue stopped = answer("/v1/chat/completions", chat(R"("max_tokens": 30)"));
  EXPECT_EQ(at(stopped, "choices.0.message.content"), io::JsonValue("The capital "));
  EXPECT_EQ(at(stopped, "seed"), io::JsonValue(7));
  const io::JsonValue cut = answer("/v1/chat/completions", chat(R"("stop": [], "seed": 8)"));
  EXPECT_EQ(at(cut, "choices.0.finish_reason"), io::JsonValue("length"));
  EXPECT_EQ(at(cut, "usage.completion_tokens"), io::JsonValue(3));
  EXPECT_EQ(at(cut, "seed"), io::JsonValue(8));
  const io::JsonValue completed =
      answer("/v1/completions", R"({"prompt": "import ", "stop": null, "ignore_eos": true})");
  EXPECT_EQ(at(completed, "seed"), io::JsonValue(7));
  EXPECT_LE(*at(completed, "usage.completion_tokens").to_uint64(), 3u);
  const io::JsonValue response = answer("/v1/responses", R"({"input": "What is the capital of Japan?", "stop": []})");
  EXPECT_EQ(at(response, "usage.output_tokens"), io::JsonValue(3));
}

// Also a random one, so that every answer can be had again.
TEST(ServerTest, EveryAnswerTellsItsSeed) {
  const ServedDemo demo;
  struct Asked {
    const char* path;
    std::string body;
    size_t n_events;  // of its stream that tell the seed
  };
  const std::string messages = R"("messages": [{"role": "user", "content": "Repeat: river stone"}], "max_tokens": 3)";
  for (const Asked& asked : {Asked{"/v1/chat/completions", messages + R"(, "n": 2)", 2},
                             {"/v1/completions", R"("prompt": "import ", "max_tokens": 3)", 1},
                             {"/v1/responses", R"("input": "Repeat: river", "max_output_tokens": 3)", 3},
                             {"/v1/messages", messages, 1}}) {
    const auto n_told = [&](const std::string& more, const std::string& seed) {
      const std::string body = ask(demo.port(), asked.path, "{" + asked.body + more + "}").body;
      const std::string text = R"("seed":)" + seed;
      size_t n = 0;
      for (size_t at = body.find(text); at != std::string::npos; at = body.find(text, at + 1)) ++n;
      return n;
    };
    EXPECT_EQ(n_told(R"(, "stream": true, "seed": 77)", "77"), asked.n_events) << asked.path;
    EXPECT_EQ(n_told(R"(, "stream": true)", ""), asked.n_events) << asked.path;
    EXPECT_EQ(n_told("", " "), 1u) << asked.path;
  }
}

TEST(ServerTest, ARequestMayMindTheEndsThatTheServerIgnores) {
  serve::ServerOptions options;
  options.defaults.ignore_eos = true;
  const ServedDemo demo(options);
  const auto reason = [&](const std::string& more) {
    const Reply reply = ask(demo.port(), "/v1/chat/completions", chat(R"("max_tokens": 30)" + more));
    return at(json(reply.body), "choices.0.finish_reason");
  };
  EXPECT_EQ(reason(""), io::JsonValue("length"));
  EXPECT_EQ(reason(R"(, "ignore_eos": true)"), io::JsonValue("length"));
  EXPECT_EQ(reason(R"(, "ignore_eos": false)"), io::JsonValue("stop"));
}

TEST(ServerTest, ARequestsBiasesStandInPlaceOfTheServers) {
  const ServedDemo plain;
  const int32_t first = must(plain.tokenizer().encode(kTokyo)).front();
  serve::ServerOptions options;
  options.defaults.sampling.logit_bias = {{first, -100.0}};
  const ServedDemo demo(options);
  const auto answer = [&](const std::string& more) {
    return at(json(ask(demo.port(), "/v1/chat/completions", chat(more)).body), "choices.0.message.content");
  };
  EXPECT_NE(answer(R"("max_tokens": 30)"), io::JsonValue(kTokyo));
  EXPECT_EQ(answer(R"("max_tokens": 30, "logit_bias": {})"), io::JsonValue(kTokyo));
  EXPECT_EQ(answer(R"("max_tokens": 30, "logit_bias": {")" + std::to_string(first) + R"(": 1})"),
            io::JsonValue(kTokyo));
}

// More than the context holds is what the context holds, where the request itself does not ask for it.
TEST(ServerTest, ADefaultLimitIsNoLargerThanTheContext) {
  serve::ServerOptions options;
  options.defaults = {.max_tokens = 1000000};
  ServedDemo demo(options);
  EXPECT_EQ(ask(demo.port(), "/v1/chat/completions", chat("")).status, 200);
  EXPECT_EQ(ask(demo.port(), "/v1/chat/completions", chat(R"("max_tokens": 1000000)")).status, 400);
}

TEST(ServerTest, LetsBrowsersInWhereAsked) {
  serve::ServerOptions options;
  options.cors_origins = {"http://page"};
  ServedDemo demo(options);
  EXPECT_NE(ask(demo.port(), "/health", "", {{"Origin", "http://page"}})
                .head.find("Access-Control-Allow-Origin: http://page"),
            std::string::npos);
  EXPECT_EQ(ask(demo.port(), "/health", "", {{"Origin", "http://other"}}).head.find("Access-Control"),
            std::string::npos);
  EXPECT_NE(ask(demo.port(), "/health", "", {{"X-Request-Id", "abc"}}).head.find("x-request-id: abc"),
            std::string::npos);
}

struct Visitor {
  const char* host;
  const char* origin;  // empty: none
  int status;
};

int status_of(uint16_t port, const Visitor& visitor) {
  HttpClient client(port);
  std::string head = std::string("GET /version HTTP/1.1\r\nHost: ") + visitor.host + "\r\n";
  if (*visitor.origin != '\0') head += std::string("Origin: ") + visitor.origin + "\r\n";
  client.send(head + "\r\n");
  return client.read_reply().status;
}

TEST(ServerTest, WithoutKeysAnswersNoForeignPage) {
  serve::ServerOptions options;
  options.cors_origins = {"http://page", "http://Other.Page"};
  options.allowed_hosts = {"desk.lan", "Shelf.LAN"};
  {
    const ServedDemo demo(options);
    for (const Visitor& visitor : {Visitor{"127.0.0.1:8000", "", 200},
                                   {"LocalHost", "", 200},
                                   {"a.localhost:1", "", 200},
                                   {"[::1]:8000", "", 200},
                                   {"192.168.1.2", "", 200},
                                   {"desk.lan:8000", "", 200},
                                   {"DESK.lan:8000", "", 200},
                                   {"shelf.lan", "", 200},
                                   {"evil.example", "", 403},
                                   {"localhost.evil.example", "", 403},
                                   {"127.0.0.1.evil.example:80", "", 403},
                                   {"localhost:8000", "http://page", 200},
                                   {"localhost:8000", "http://other.page", 200},
                                   {"localhost:8000", "http://localhost:8000", 200},
                                   {"127.0.0.1:8000", "http://localhost:3000", 200},
                                   {"desk.lan:8000", "http://desk.lan:8000", 200},
                                   {"localhost:8000", "http://evil.example", 403},
                                   {"localhost:8000", "http://localhost.evil.example", 403},
                                   {"localhost:8000", "null", 403},
                                   {"127.0.0.1:8000", "http://203.0.113.7", 403}}) {
      EXPECT_EQ(status_of(demo.port(), visitor), visitor.status) << visitor.host << " " << visitor.origin;
    }
  }
  options.api_keys = {"secret"};  // then it is the key that counts
  const ServedDemo demo(options);
  EXPECT_EQ(status_of(demo.port(), {"evil.example", "http://evil.example", 200}), 200);
}

TEST(ServerTest, AnswersThatAreCutOffSaySo) {
  const auto demo = std::make_unique<ServedDemo>();
  const auto send = [&](HttpClient& client, const char* path, const std::string& body) {
    client.send(std::string("POST ") + path +
                " HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  };
  const std::string endless = R"("ignore_eos": true, "max_tokens": 1900)";
  HttpClient whole(demo->port()), stream(demo->port()), messages(demo->port());
  send(stream, "/v1/chat/completions", chat(endless + R"(, "stream": true)"));
  EXPECT_EQ(stream.read_reply(true).status, 200);
  EXPECT_FALSE(stream.read_some().empty());
  send(whole, "/v1/chat/completions", chat(endless));
  send(messages, "/v1/messages", chat(endless));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  demo->server().stop(std::chrono::milliseconds(0));
  const Reply refused = whole.read_reply();
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(at(json(refused.body), "error.code"), io::JsonValue("shutting_down"));
  EXPECT_EQ(at(json(messages.read_reply().body), "error.type"), io::JsonValue("overloaded_error"));
  std::string rest;
  for (std::string piece = stream.read_some(); !piece.empty(); piece = stream.read_some()) rest += piece;
  EXPECT_NE(rest.find(R"("code":"shutting_down")"), std::string::npos) << rest.substr(rest.size() - 200);
}

TEST(ServerTest, TellsWhenTheQueueIsFull) {
  serve::ServerOptions options;
  options.max_queued = 1;
  ServedDemo demo(options);
  HttpClient first(demo.port());
  const std::string body = chat(R"("stream": true, "ignore_eos": true, "max_tokens": 1900)");
  first.send("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + std::to_string(body.size()) +
             "\r\n\r\n" + body);
  EXPECT_EQ(first.read_reply(true).status, 200);
  const Reply reply = ask(demo.port(), "/v1/chat/completions", chat(""));
  EXPECT_EQ(reply.status, 429);
  EXPECT_NE(reply.head.find("Retry-After"), std::string::npos);
}

// However long its client waits, the queue does not grow.
TEST(ServerTest, ARequestThatNoQueueHoldsIsNotTriedAgain) {
  serve::ServerOptions options;
  options.max_queued = 2;
  ServedDemo demo(options);
  const auto post = [&](const std::string& prompt, int n) {
    return ask(demo.port(), "/v1/completions",
               R"({"max_tokens": 1, "prompt": )" + prompt + R"(, "n": )" + std::to_string(n) + "}");
  };
  const Reply prompts = post(R"(["a", "b", "c"])", 1);
  EXPECT_EQ(prompts.status, 400) << prompts.body;
  EXPECT_EQ(prompts.head.find("Retry-After"), std::string::npos);
  EXPECT_EQ(at(json(prompts.body), "error.param"), io::JsonValue("prompt"));
  EXPECT_EQ(at(json(prompts.body), "error.message"),
            io::JsonValue("prompt has 3 entries: 3 answers, and this server takes at most 2 at a time "
                          "(--max-queued-requests); ask for fewer per request"));
  EXPECT_EQ(at(json(post(R"(["a", "b"])", 2).body), "error.param"), io::JsonValue("n"));
  EXPECT_EQ(post(R"(["a", "b"])", 1).status, 200);
}

TEST(ServerTest, RefusalsAreJsonWhateverTheyQuote) {
  ServedDemo demo;
  EXPECT_EQ(at(json(ask(demo.port(), "/v1/models/%ff").body), "error.message"),
            io::JsonValue("The model `\uFFFD` does not exist here; this server has `demo`"));
  EXPECT_EQ(at(json(ask(demo.port(), "/\xff\xfe").body), "error.message"),
            io::JsonValue("there is no GET /\uFFFD\uFFFD here"));
  const io::JsonValue anthropic = json(ask(demo.port(), "/v1/messages/%C3", "{}").body);
  EXPECT_EQ(at(anthropic, "error.message"), io::JsonValue("there is no POST /v1/messages/\uFFFD here"));
  HttpClient client(demo.port());
  client.send("GET /v1/models HTTP/1.1\r\nHost: \xff\xfe.com\r\n\r\n");
  const Reply reply = client.read_reply();
  EXPECT_EQ(reply.status, 403);
  EXPECT_NE(at(json(reply.body), "error.message").as_string()->find("\uFFFD\uFFFD.com"), std::string::npos)
      << reply.body;
}

// One place in the steps and eight long answers for it, which take seconds; then comes somebody of a better priority.
TEST(ServerTest, ABetterPriorityGoesBeforeAllThatWait) {
  ServedDemo demo({}, {.max_running = 1});
  const auto figure = [&](const std::string& name) {
    const std::string page = demo.server().metrics();
    const size_t at = page.find("\n" + name + " ");
    return at == std::string::npos ? -1 : std::atoi(page.c_str() + at + name.size() + 2);
  };
  HttpClient others(demo.port());
  const std::string body = chat(R"("stream": true, "ignore_eos": true, "max_tokens": 1900, "n": 8, "priority": 3)");
  others.send("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
              std::to_string(body.size()) + "\r\n\r\n" + body);
  EXPECT_EQ(others.read_reply(true).status, 200);
  const std::string waiting = R"(levin_requests_waiting{model_name="demo",engine="0"})";
  for (int i = 0; i < 500 && figure(waiting) <= 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  ASSERT_GT(figure(waiting), 0);
  EXPECT_EQ(ask(demo.port(), "/v1/chat/completions", chat(R"("max_tokens": 2, "priority": -1)")).status, 200);
  const int n_over = figure(R"(levin_ended_total{model_name="demo",engine="0",finished_reason="length"})");
  EXPECT_GE(n_over, 1);  // the one that was asked for
  EXPECT_LT(n_over, 8);
}

TEST(LogprobTest, StaysInsideJson) {
  EXPECT_EQ(serve::finite_logprob(-std::numeric_limits<double>::infinity()), -9999.0);
  EXPECT_EQ(serve::finite_logprob(-0.25), -0.25);
}

}  // namespace
}  // namespace levin::test
