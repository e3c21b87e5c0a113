// The chat formats of DeepSeek-V4 and V4.1: against the reference encoders (golden/make_deepseek_v4_goldens.py), and what that leaves
// open.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "support/must.h"
#include "support/temp_dir.h"
#include "text/chat.h"
#include "text/chat_output.h"
#include "text/variants.h"

namespace levin::text {
namespace {

using test::demo_tokenizer;
using test::must;

// The demonstration tokenizer with the marks of reminders and, in V4.1, of system messages, which the released ones have.
const Tokenizer& tokenizer() {
  static const Tokenizer tokenizer = [] {
    io::JsonValue document = test::variant_document("deepseek");
    io::JsonArray& added = *document.as_object()->find("added_tokens")->as_array();
    TokenId id = demo_tokenizer().n_ids();
    for (const char* mark : {"<｜latest_reminder｜>", "<｜System｜>"}) {
      added.push_back(io::JsonObject{{"id", id++},
                                     {"content", mark},
                                     {"special", true},
                                     {"single_word", false},
                                     {"lstrip", false},
                                     {"rstrip", false},
                                     {"normalized", false}});
    }
    return must(Tokenizer::parse(io::dump_json(document), ""));
  }();
  return tokenizer;
}

const ChatFormat& v41_format() {
  static const ChatFormat format = must(ChatFormat::make(make_deepseek_v41_chat, tokenizer()));
  return format;
}

const ChatFormat& format() {
  static const ChatFormat format = must(ChatFormat::make(make_deepseek_v4_chat, tokenizer()));
  return format;
}

std::string prompt(const ChatRequest& request, const ChatFormat& chat = format()) {
  return tokenizer().decode(must(tokenizer().encode(must(chat.render(request)))), false);
}

Message message(Role role, std::string text) { return {.role = role, .content = std::move(text)}; }
Message user(std::string text) { return message(Role::kUser, std::move(text)); }
Message answer(std::string text, std::string reasoning = "") {
  return {.role = Role::kAssistant, .content = std::move(text), .reasoning = std::move(reasoning)};
}
Message result(std::string text, std::string call_id) {
  return {.role = Role::kTool, .content = std::move(text), .call_id = std::move(call_id)};
}

// ---- the reference encoder ---------------------------------------------------------------------------------------

Role role_of(const std::string& name) {
  constexpr std::pair<std::string_view, Role> kRoles[] = {
      {"system", Role::kSystem},       {"developer", Role::kDeveloper}, {"user", Role::kUser},
      {"assistant", Role::kAssistant}, {"tool", Role::kTool},           {"latest_reminder", Role::kReminder}};
  for (const auto& [text, role] : kRoles) {
    if (name == text) return role;
  }
  ADD_FAILURE() << name;
  return Role::kUser;
}

Message message_of(const io::JsonObject& object) {
  const auto text = [](const io::JsonObject& from, std::string_view key) {
    const io::JsonValue* value = from.find(key);
    return value == nullptr ? std::string() : *value->as_string();
  };
  Message out = message(role_of(text(object, "role")), text(object, "content"));
  out.reasoning = text(object, "reasoning_content");
  out.call_id = text(object, "tool_call_id");
  if (const io::JsonValue* format = object.find("response_format")) out.response_format = *format;
  if (const io::JsonValue* tools = object.find("tools")) {
    for (const io::JsonValue& tool : *tools->as_array()) out.tools.push_back(*tool.as_object()->find("function"));
  }
  if (const io::JsonValue* calls = object.find("tool_calls")) {
    for (const io::JsonValue& call : *calls->as_array()) {
      const io::JsonObject& function = *call.as_object()->find("function")->as_object();
      out.tool_calls.push_back({text(function, "name"), text(function, "arguments"), text(*call.as_object(), "id")});
    }
  }
  return out;
}

ChatRequest request_of(const io::JsonObject& golden) {
  ChatRequest request{.thinking = *golden.find("thinking")->as_bool()};
  for (const io::JsonValue& m : *golden.find("messages")->as_array())
    request.messages.push_back(message_of(*m.as_object()));
  if (*golden.find("keep_reasoning")->as_bool()) request.keep_reasoning = true;
  const std::string* effort = golden.find("effort")->as_string();
  constexpr std::pair<std::string_view, Effort> kEfforts[] = {
      {"low", Effort::kLow}, {"high", Effort::kHigh}, {"xhigh", Effort::kExtraHigh}, {"max", Effort::kMax}};
  for (const auto& [name, value] : kEfforts) {
    if (effort != nullptr && *effort == name) request.effort = value;
  }
  return request;
}

std::string fnv(std::string_view text) {
  uint64_t hash = 14695981039346656037u;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 1099511628211u;
  return fmt::format("{}", hash);
}

void expect_goldens(const char* file, const ChatFormat& chat) {
  std::istringstream lines(test::read_text_file(file));
  int n = 0;
  for (std::string line; std::getline(lines, line); ++n) {
    const io::JsonValue golden = must(io::parse_json(line, "golden"));
    const std::string made = prompt(request_of(*golden.as_object()), chat);
    ASSERT_EQ(fnv(made), *golden.as_object()->find("hash")->as_string()) << "line " << n + 1 << ":\n" << made;
  }
  EXPECT_EQ(n, 252);
}

TEST(ChatDeepSeekV4, MakesTheReferenceEncodersPrompts) {
  expect_goldens("tests/text/golden/deepseek_v4.jsonl", format());
}

TEST(ChatDeepSeekV41, MakesTheReferenceEncodersPrompts) {
  expect_goldens("tests/text/golden/deepseek_v41.jsonl", v41_format());
}

// ---- word by word ------------------------------------------------------------------------------------------------

TEST(ChatDeepSeekV4, OneQuestion) {
  EXPECT_EQ(format().name(), "DeepSeek-V4");
  EXPECT_EQ(prompt({.messages = {user("Hi?")}}), "<｜begin▁of▁sentence｜><｜User｜>Hi?<｜Assistant｜></think>");
  EXPECT_EQ(prompt({.messages = {message(Role::kSystem, "Be kind."), user("Hi?")}, .thinking = true}),
            "<｜begin▁of▁sentence｜>Be kind.<｜User｜>Hi?<｜Assistant｜><think>");
}

TEST(ChatDeepSeekV4, ResultsStandInTheUsersTurnInTheOrderOfTheCalls) {
  const std::vector<ToolCall> calls = {{"f", R"({"x": 1})", "a"}, {"g", "{}", "b"}};
  const ChatRequest request = {.messages = {user("q"),
                                            {.role = Role::kAssistant, .reasoning = "r", .tool_calls = calls},
                                            result("of g", "b"),
                                            user("hurry"),
                                            result("of f", "a")},
                               .thinking = true};
  EXPECT_EQ(prompt(request),
            "<｜begin▁of▁sentence｜><｜User｜>q<｜Assistant｜></think>\n\n<｜DSML｜tool_calls>\n"
            "<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"x\" string=\"false\">1</｜DSML｜parameter>\n"
            "</｜DSML｜invoke>\n<｜DSML｜invoke name=\"g\">\n\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
            "<｜end▁of▁sentence｜><｜User｜><tool_result>of f</tool_result>\n\nhurry\n\n<tool_result>of g</tool_result>"
            "<｜Assistant｜><think>");
}

TEST(ChatDeepSeekV4, ReasoningIsDroppedUnlessThereAreTools) {
  ChatRequest request = {.messages = {message(Role::kSystem, "s"), user("a"), answer("b", "why"), user("c")},
                         .thinking = true};
  const std::string without =
      "<｜begin▁of▁sentence｜>s<｜User｜>a<｜Assistant｜></think>b<｜end▁of▁sentence｜>"
      "<｜User｜>c<｜Assistant｜><think>";
  EXPECT_EQ(prompt(request), without);
  request.keep_reasoning = true;
  EXPECT_EQ(prompt(request),
            "<｜begin▁of▁sentence｜>s<｜User｜>a<｜Assistant｜><think>why</think>b<｜end▁of▁sentence｜>"
            "<｜User｜>c<｜Assistant｜><think>");
  request.keep_reasoning.reset();
  request.messages[0].tools = {io::JsonObject{{"name", "f"}}};
  EXPECT_NE(prompt(request).find("<think>why</think>b"), std::string::npos);
  request.keep_reasoning = false;
  EXPECT_EQ(prompt(request).find("why"), std::string::npos);
}

TEST(ChatDeepSeekV4, RemindersHaveTheirMark) {
  const ChatRequest request = {.messages = {user("a"), message(Role::kReminder, "Monday"), answer("b"), user("c")}};
  EXPECT_EQ(prompt(request),
            "<｜begin▁of▁sentence｜><｜User｜>a<｜Assistant｜></think><｜latest_reminder｜>Mondayb<｜end▁of▁sentence｜>"
            "<｜User｜>c<｜Assistant｜></think>");
  // a tokenizer without it
  const ChatFormat plain = must(ChatFormat::make(make_deepseek_v4_chat, demo_tokenizer()));
  const auto refused = plain.render(request);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().kind, ErrorKind::kUsage);
  EXPECT_NE(refused.error().message.find("messages[1]: a reminder"), std::string::npos) << refused.error().message;
}

TEST(ChatDeepSeekV4, DeveloperMessagesNeedContent) {
  const auto refused = format().render({.messages = {user("a"), message(Role::kDeveloper, "")}});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message, "messages[1]: a developer message needs content");
}

// ---- efforts -----------------------------------------------------------------------------------------------------

constexpr std::string_view kAbsolute = "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n";
constexpr std::string_view kBeyond = "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n";

// What stands between the beginning and the question, up to its first line break.
std::string effort_words(const ChatFormat& chat, std::optional<Effort> effort, bool thinking = true) {
  const std::string made = prompt({.messages = {user("q")}, .thinking = thinking, .effort = effort}, chat);
  const std::string_view begin = "<｜begin▁of▁sentence｜>";
  EXPECT_TRUE(made.starts_with(begin));
  EXPECT_TRUE(made.ends_with(thinking ? "<｜User｜>q<｜Assistant｜><think>" : "<｜User｜>q<｜Assistant｜></think>"));
  const std::string words = made.substr(begin.size(), made.find("<｜User｜>") - begin.size());
  EXPECT_TRUE(words.empty() || words.ends_with(".\n\n")) << words;
  return words.substr(0, words.find('\n') + 1);
}

TEST(ChatDeepSeekV4, EffortsAreThoseOfTheEncoderBesideTheModel) {
  const test::TempDir folder;
  const auto load = [&] { return must(ChatFormat::load(make_deepseek_v4_chat, folder.path(), tokenizer())); };

  const ChatFormat first = load();  // no encoder
  EXPECT_EQ(first.name(), "DeepSeek-V4");
  EXPECT_EQ(effort_words(first, {}), "");
  EXPECT_EQ(effort_words(first, Effort::kLow), "");
  EXPECT_EQ(effort_words(first, Effort::kHigh), "");
  EXPECT_EQ(effort_words(first, Effort::kMax), kAbsolute);
  EXPECT_EQ(effort_words(first, Effort::kMax, false), "");

  std::filesystem::create_directory(folder / "encoding");
  std::ofstream(folder / "encoding/encoding_dsv4.py") << "PROMPTS = {'max': 'Reasoning Effort: Beyond maximum'}\n";
  const ChatFormat refreshed = load();
  EXPECT_EQ(refreshed.name(), "DeepSeek-V4 (three efforts)");
  EXPECT_EQ(effort_words(refreshed, {}), "");
  EXPECT_EQ(effort_words(refreshed, Effort::kLow), "");
  EXPECT_EQ(effort_words(refreshed, Effort::kHigh), kAbsolute);
  EXPECT_EQ(effort_words(refreshed, Effort::kMax), kBeyond);
}

// ---- what comes back ---------------------------------------------------------------------------------------------

struct Parsed {
  std::string reasoning, content, name, arguments;
  int n_complete = 0, n_faults = 0;
};

Parsed parse(std::string_view text, bool in_reasoning, const ChatFormat& chat = format()) {
  ChatOutputParser parser(chat, tokenizer(), in_reasoning);
  Parsed out;
  const auto take = [&](const std::vector<OutputEvent>& events) {
    for (const OutputEvent& event : events) {
      if (event.kind == OutputEvent::Kind::kReasoning) out.reasoning += event.text;
      if (event.kind == OutputEvent::Kind::kContent) out.content += event.text;
      if (event.kind == OutputEvent::Kind::kCallBegin) out.name += event.text;
      if (event.kind == OutputEvent::Kind::kArguments) out.arguments += event.text;
    }
  };
  for (const TokenId id : must(tokenizer().encode(text))) take(parser.push(id));
  take(parser.finish());
  out.n_complete = parser.n_complete_calls();
  out.n_faults = parser.n_faults();
  return out;
}

TEST(ChatDeepSeekV4, CallsAreReadFromTheirBlock) {
  const Parsed parsed = parse(
      "look it up</think>One moment.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"get_weather\">\n"
      "<｜DSML｜parameter name=\"city\" string=\"true\">Oslo</｜DSML｜parameter>\n"
      "<｜DSML｜parameter name=\"days\" string=\"false\">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n"
      "</｜DSML｜tool_calls><｜end▁of▁sentence｜>",
      true);
  EXPECT_EQ(parsed.reasoning, "look it up");
  EXPECT_EQ(parsed.content, "One moment.");
  EXPECT_EQ(parsed.name, "get_weather");
  EXPECT_EQ(parsed.arguments, R"({"city": "Oslo", "days": 2})");
  EXPECT_EQ(parsed.n_complete, 1);
  EXPECT_EQ(parsed.n_faults, 0);
}

TEST(ChatDeepSeekV4, TheNewestReminderIsNeverPartOfAnAnswer) {
  const Parsed parsed = parse("a<｜latest_reminder｜>b", false);
  EXPECT_EQ(parsed.content, "ab");
}

// ---- V4.1 --------------------------------------------------------------------------------------------------------

TEST(ChatDeepSeekV41, SystemMessagesHaveAMarkAndOneInsideAsksForAnAnswer) {
  EXPECT_EQ(v41_format().name(), "DeepSeek-V4.1");
  EXPECT_EQ(prompt({.messages = {user("Hi?")}}, v41_format()),
            "<｜begin▁of▁sentence｜><｜User｜>Hi?<｜Assistant｜></think>");
  EXPECT_EQ(prompt({.messages = {message(Role::kSystem, "Be kind."), user("Hi?")}}, v41_format()),
            "<｜begin▁of▁sentence｜><｜System｜>Be kind.<｜User｜>Hi?<｜Assistant｜></think>");
  EXPECT_EQ(prompt({.messages = {user("Hi?"), answer("Yes?"), message(Role::kSystem, "Go on.")}}, v41_format()),
            "<｜begin▁of▁sentence｜><｜User｜>Hi?<｜Assistant｜></think>Yes?<｜end▁of▁sentence｜><｜System｜>Go on."
            "<｜Assistant｜></think>");
}

TEST(ChatDeepSeekV41, EffortIsANumberAfterTheMarkOfTheSystem) {
  const auto begin = [](std::optional<Effort> effort) {
    return prompt({.messages = {user("Hi?")}, .thinking = true, .effort = effort}, v41_format());
  };
  const auto expected = [](int number) {
    return fmt::format(
        "<｜begin▁of▁sentence｜><｜System｜>Reasoning Effort: {} (range 1-100, the higher the value, the more thorough "
        "the "
        "reasoning)\n\n<｜User｜>Hi?<｜Assistant｜><think>",
        number);
  };
  EXPECT_EQ(begin({}), expected(50));
  EXPECT_EQ(begin(Effort::kLow), expected(25));
  EXPECT_EQ(begin(Effort::kHigh), expected(50));
  EXPECT_EQ(begin(Effort::kExtraHigh), expected(75));
  EXPECT_EQ(begin(Effort::kMax), expected(100));
}

TEST(ChatDeepSeekV41, CallsAreReadFromTheirBlock) {
  const std::string_view text =
      "look it up</think>One moment.\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"get_weather\">\n"
      "<｜DSML｜ parameter name=\"city\" string=\"true\">Oslo</｜DSML｜ parameter>\n"
      "<｜DSML｜ parameter name=\"days\" string=\"false\">2</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n"
      "</｜DSML｜ calls><｜end▁of▁sentence｜>";
  const Parsed parsed = parse(text, true, v41_format());
  EXPECT_EQ(parsed.reasoning, "look it up");
  EXPECT_EQ(parsed.content, "One moment.");
  EXPECT_EQ(parsed.name, "get_weather");
  EXPECT_EQ(parsed.arguments, R"({"city": "Oslo", "days": 2})");
  EXPECT_EQ(parsed.n_complete, 1);
  EXPECT_EQ(parsed.n_faults, 0);
}

TEST(ChatDeepSeekV41, ATokenizerWithoutTheMarkOfTheSystemIsNamed) {
  const auto refused = ChatFormat::make(make_deepseek_v41_chat, demo_tokenizer());
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("<｜System｜>"), std::string::npos) << refused.error().message;
}

}  // namespace
}  // namespace levin::text
