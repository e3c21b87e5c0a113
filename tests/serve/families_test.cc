// The other families over the same routes: GLM with the demonstration model, DeepSeek-V4 with weights by chance.
#include <gtest/gtest.h>

#include "serve/served_demo.h"
#include "support/temp_checkpoint.h"

namespace levin::test {
namespace {

const std::string kModels = std::string(LEVIN_SOURCE_DIR) + "/models/";
const std::string kQuestion = R"("messages": [{"role": "user", "content": "What is the capital of Japan?"}])";
const std::string kTokyo = "The capital of Japan is Tokyo.";

io::JsonValue answer(const ServedDemo& demo, const std::string& path, const std::string& members) {
  const Reply reply = ask(demo.port(), path, "{" + members + "}");
  EXPECT_EQ(reply.status, 200) << reply.body;
  return json(reply.body);
}

// The contents of a chat's chunks, one after the other.
std::string streamed(const ServedDemo& demo, const std::string& members) {
  std::string text;
  for (const std::string& event :
       events_of(ask(demo.port(), "/v1/chat/completions", "{" + members + R"(, "stream": true})").body)) {
    if (event == "[DONE]") continue;
    if (const io::JsonValue piece = at(json(event), "choices.0.delta.content"); !piece.is_null())
      text += *piece.as_string();
  }
  return text;
}

class GlmTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    serve::ServerOptions options;
    const text::Tokenizer tokenizer = must(text::Tokenizer::load(kModels + "demo-glm"));
    for (const char* end : {"<|endoftext|>", "<|user|>", "<|observation|>"}) {
      options.defaults.sampling.stop_tokens.push_back(*tokenizer.added_id(end));
    }
    demo_ =
        std::make_unique<ServedDemo>(options, EngineOptions{.model_folder = kModels + "demo-glm", .max_running = 64});
  }
  static void TearDownTestSuite() { demo_ = nullptr; }
  static std::unique_ptr<ServedDemo> demo_;
};
std::unique_ptr<ServedDemo> GlmTest::demo_;

TEST_F(GlmTest, AnswersInEveryDialect) {
  EXPECT_EQ(at(answer(*demo_, "/v1/chat/completions", kQuestion), "choices.0.message.content"), io::JsonValue(kTokyo));
  EXPECT_EQ(streamed(*demo_, kQuestion), kTokyo);
  EXPECT_EQ(at(answer(*demo_, "/v1/messages", kQuestion + R"(, "max_tokens": 50)"), "content.0.text"),
            io::JsonValue(kTokyo));
  EXPECT_EQ(
      at(answer(*demo_, "/v1/responses", R"("input": "What is the capital of Japan?")"), "output.0.content.0.text"),
      io::JsonValue(kTokyo));
}

TEST_F(GlmTest, RendersThinksAndContinues) {
  EXPECT_EQ(at(answer(*demo_, "/render", kQuestion), "prompt"),
            io::JsonValue("[gMASK]<sop><|user|>What is the capital of Japan?<|assistant|><think></think>"));
  const std::string thinking = kQuestion + R"(, "thinking": true)";
  EXPECT_EQ(at(answer(*demo_, "/render", thinking), "prompt"),
            io::JsonValue("[gMASK]<sop><|user|>What is the capital of Japan?<|assistant|><think>"));
  EXPECT_EQ(at(answer(*demo_, "/v1/chat/completions", thinking), "choices.0.message.content"), io::JsonValue(kTokyo));
  const std::string begun =
      R"("continue_final_message": true, "messages": [{"role": "user", "content": "What is the capital of Japan?"},
      {"role": "assistant", "content": "The capital of"}])";
  EXPECT_EQ(at(answer(*demo_, "/v1/chat/completions", begun), "choices.0.message.content"),
            io::JsonValue(" Japan is Tokyo."));
}

TEST_F(GlmTest, CallsAToolInItsOwnMarkup) {
  const io::JsonValue found =
      answer(*demo_, "/v1/chat/completions", kQuestion + R"(, "max_tokens": 80, "tool_choice": "required",
      "tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "object",
      "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["n"], "additionalProperties": false}}}])");
  EXPECT_EQ(at(found, "choices.0.message.tool_calls.0.function.name"), io::JsonValue("look"));
  const io::JsonValue arguments = json(*at(found, "choices.0.message.tool_calls.0.function.arguments").as_string());
  EXPECT_NE(at(arguments, "n").to_int64(), std::nullopt);
  EXPECT_EQ(at(found, "choices.0.finish_reason"), io::JsonValue("tool_calls"));
}

// With an MTP layer and with a block drafter.
class DeepSeekV4Test : public ::testing::TestWithParam<const char*> {
 protected:
  // The fixture's model with room for the demonstration model's tokens.
  DeepSeekV4Test() : model_(TempCheckpoint::from_fixture(GetParam())) {
    model_.set_config("vocab_size", 4096);
    model_.write();
    for (const char* file : {"tokenizer.json", "tokenizer_config.json"}) {
      std::filesystem::copy_file(kModels + "demo-v32/" + file, model_.path() / file);
    }
    demo_ = std::make_unique<ServedDemo>(
        serve::ServerOptions(),
        EngineOptions{.model_folder = model_.path().string(), .load_format = LoadFormat::kDummy, .max_running = 4});
  }
  TempCheckpoint model_;
  std::unique_ptr<ServedDemo> demo_;
};

INSTANTIATE_TEST_SUITE_P(Fixtures, DeepSeekV4Test, ::testing::Values("v4-flash", "v4-dspark"),
                         [](const auto& fixture) { return fixture.index == 0 ? "Mtp" : "BlockDrafter"; });

TEST_P(DeepSeekV4Test, TheSameRequestGivesTheSameTextInEveryWay) {
  const std::string members = kQuestion + R"(, "temperature": 0.8, "seed": 7, "max_tokens": 40, "ignore_eos": true)";
  const io::JsonValue found = answer(*demo_, "/v1/chat/completions", members);
  EXPECT_EQ(at(found, "usage.completion_tokens"), io::JsonValue(40));
  const std::string text = *at(found, "choices.0.message.content").as_string();
  EXPECT_FALSE(text.empty());
  EXPECT_EQ(streamed(*demo_, members), text);
  EXPECT_EQ(at(answer(*demo_, "/v1/messages", members), "content.0.text"), io::JsonValue(text));
}

// Its prefixes are kept in blocks of 128 tokens, apart from the cache.
TEST_P(DeepSeekV4Test, FindsAPromptAgain) {
  std::string words;
  for (int i = 0; i < 120; ++i) words += " river stone apple";
  const std::string members = R"("prompt": ")" + words + R"(", "max_tokens": 20, "ignore_eos": true)";
  const io::JsonValue first = answer(*demo_, "/v1/completions", members),
                      again = answer(*demo_, "/v1/completions", members);
  EXPECT_EQ(at(first, "usage.prompt_tokens_details.cached_tokens"), io::JsonValue(0));
  EXPECT_GE(*at(again, "usage.prompt_tokens_details.cached_tokens").to_int64(), 128);
  EXPECT_EQ(at(again, "choices.0.text"), at(first, "choices.0.text"));
}

}  // namespace
}  // namespace levin::test
