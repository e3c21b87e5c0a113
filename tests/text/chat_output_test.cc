#include "text/chat_output.h"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.h"
#include "support/json_gen.h"
#include "support/must.h"
#include "text/variants.h"

namespace levin::text {
namespace {

using test::demo_tokenizer;
using test::must;

const ChatFormat& format() {
  static const ChatFormat format = must(ChatFormat::make(make_deepseek_v32_chat, demo_tokenizer()));
  return format;
}

struct Parsed {
  std::string reasoning, content;
  std::vector<ToolCall> calls;
  std::vector<bool> complete;  // per call
  int n_faults = 0;
};

void add(Parsed& parsed, const std::vector<OutputEvent>& events) {
  for (const OutputEvent& event : events) {
    const auto call = static_cast<size_t>(event.call);
    switch (event.kind) {
      case OutputEvent::Kind::kReasoning:
        parsed.reasoning += event.text;
        break;
      case OutputEvent::Kind::kContent:
        parsed.content += event.text;
        break;
      case OutputEvent::Kind::kCallBegin:
        ASSERT_EQ(call, parsed.calls.size());
        parsed.calls.push_back({event.text, ""});
        parsed.complete.push_back(false);
        break;
      case OutputEvent::Kind::kArguments:
        parsed.calls.at(call).arguments += event.text;
        break;
      case OutputEvent::Kind::kCallEnd:
        parsed.complete.at(call) = true;
        break;
      case OutputEvent::Kind::kCallBroken:
        ASSERT_FALSE(parsed.complete.at(call));
        break;
    }
  }
}

Parsed parse_ids(const std::vector<TokenId>& ids, bool in_reasoning) {
  ChatOutputParser parser(format(), demo_tokenizer(), in_reasoning);
  Parsed parsed;
  for (const TokenId id : ids) add(parsed, parser.push(id));
  add(parsed, parser.finish());
  parsed.n_faults = parser.n_faults();
  return parsed;
}

TokenId token_of_byte(char byte) {
  for (TokenId id = 0; id < demo_tokenizer().n_ids(); ++id) {
    if (demo_tokenizer().token_bytes(id) == std::string_view(&byte, 1)) return id;
  }
  return kNoToken;
}

// The text as the model would write it: marks as tokens, the rest in the tokenizer's pieces, or byte by byte.
Parsed parse(std::string_view text, bool in_reasoning = false, bool by_bytes = false) {
  std::vector<TokenId> ids;
  for (const TokenId id : must(demo_tokenizer().encode(text))) {
    if (!by_bytes || demo_tokenizer().is_added(id)) {
      ids.push_back(id);
      continue;
    }
    for (const char byte : demo_tokenizer().token_bytes(id)) ids.push_back(token_of_byte(byte));
  }
  return parse_ids(ids, in_reasoning);
}

// As text: R(reasoning) C(content) name(arguments)! for a complete call, ? for a broken one.
std::string shown(const Parsed& parsed) {
  std::string result;
  if (!parsed.reasoning.empty()) result += fmt::format("R({})", parsed.reasoning);
  if (!parsed.content.empty()) result += fmt::format("C({})", parsed.content);
  for (size_t i = 0; i < parsed.calls.size(); ++i) {
    result += fmt::format("{}({}){}", parsed.calls[i].name, parsed.calls[i].arguments, parsed.complete[i] ? "!" : "?");
  }
  return result;
}

struct Case {
  const char* name;
  bool in_reasoning;
  std::string text;
  std::string_view expected;
  bool clean;  // without faults
};

std::string block(std::string_view inside) {
  return fmt::format("\n\n<｜DSML｜function_calls>\n{}\n</｜DSML｜function_calls>", inside);
}
std::string call(std::string_view name, std::string_view inside) {
  return fmt::format("<｜DSML｜invoke name=\"{}\">\n{}\n</｜DSML｜invoke>", name, inside);
}
std::string text_arg(std::string_view name, std::string_view value) {
  return fmt::format("<｜DSML｜parameter name=\"{}\" string=\"true\">{}</｜DSML｜parameter>", name, value);
}
std::string json_arg(std::string_view name, std::string_view value) {
  return fmt::format("<｜DSML｜parameter name=\"{}\" string=\"false\">{}</｜DSML｜parameter>", name, value);
}

const Case kCases[] = {
    {"answer", false, "Hello, world", "C(Hello, world)", true},
    {"reasoning", true, "Let me see.\n</think>Hello", "R(Let me see.\n)C(Hello)", true},
    {"reasoning never closed", true, "Let me", "R(Let me)", true},
    {"reasoning opened by the model", false, "<think>hm</think>yes", "R(hm)C(yes)", true},
    {"text before a block", false, std::string("Look:") + block(call("f", text_arg("a", "x"))),
     "C(Look:)f({\"a\": \"x\"})!", true},
    {"block in the end of a thought", true, std::string("hm</think>") + block(call("f", json_arg("n", "[1, 2]"))),
     "R(hm)f({\"n\": [1, 2]})!", true},
    {"two calls", false, block(call("f", text_arg("a", "x") + "\n" + json_arg("b", "3")) + "\n" + call("g", "")),
     "f({\"a\": \"x\", \"b\": 3})!g({})!", true},
    {"value with quotes and lines", false, block(call("f", text_arg("a", "say \"hi\"\n\\n <b> é"))),
     "f({\"a\": \"say \\\"hi\\\"\\n\\\\n <b> é\"})!", true},
    {"key with quotes", false, block(call("f", text_arg("a\"b", "x"))), "f({\"a\\\"b\": \"x\"})!", true},
    {"tags inside a value", false,
     block(call("f", text_arg("a", "</｜DSML｜invoke> </｜DSML｜function_calls> <｜DSML｜x </think>"))),
     "f({\"a\": \"</｜DSML｜invoke> </｜DSML｜function_calls> <｜DSML｜x </think>\"})!", true},
    {"a tag of another form inside a value", false, block(call("f", text_arg("a", "x</|DSML|parameter>y"))),
     "f({\"a\": \"x</|DSML|parameter>y\"})!", true},
    {"less-than signs", false, "a < b <c <| d </ e", "C(a < b <c <| d </ e)", true},
    {"line breaks in the answer", false, "a\n\nb\n\n\n", "C(a\n\nb\n\n\n)", true},
    {"half a tag at the end", false, "a\n\n<", "C(a\n\n<)", true},
    // Slips of the model.
    {"mark at the end", false, "a\n\n<｜DSML｜", "C(a)", false},
    {"bare invoke", false, std::string("Hm") + call("f", text_arg("a", "x")), "C(Hm)f({\"a\": \"x\"})!", false},
    {"bare invokes, then text", false, call("f", "") + "\n" + call("g", "") + "\ndone", "C(done)f({})!g({})!", false},
    {"bare invoke with the end of a block", false, call("f", "") + "\n</｜DSML｜function_calls>ok", "C(ok)f({})!",
     false},
    {"cut off in a value", false,
     "\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" string=\"true\">xy",
     "f({\"a\": \"xy)?", false},
    {"cut off in a tag", false, "\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f", "", false},
    {"cut off between calls", false, std::string("\n\n<｜DSML｜function_calls>\n") + call("f", "") + "\n", "f({})!",
     false},
    {"malformed sibling", false,
     block(call("f", "") + "\n<｜DSML｜invoke nom=\"g\">\n</｜DSML｜invoke>\n" + call("h", "")), "f({})!h({})!", false},
    {"call without end", false,
     block(std::string("<｜DSML｜invoke name=\"f\">\n") + text_arg("a", "x") + "\n" + call("g", "")),
     "f({\"a\": \"x\")?g({})!", false},
    {"block ends inside a call", false, block(std::string("<｜DSML｜invoke name=\"f\">\n") + text_arg("a", "x")),
     "f({\"a\": \"x\")?", false},
    {"parameter without a name", false, block(call("f", "<｜DSML｜parameter string=\"true\">x</｜DSML｜parameter>")),
     "f()?", false},
    {"parameter without string", false,
     block(call("f",
                "<｜DSML｜parameter name=\"a\">x</｜DSML｜parameter>\n"
                "<｜DSML｜parameter name=\"b\">1</｜DSML｜parameter>")),
     "f({\"a\": \"x\", \"b\": 1})!", false},
    {"value that is no JSON", false, block(call("f", json_arg("a", "Oslo"))), "f({\"a\": \"Oslo\"})!", false},
    {"parameter twice", false, block(call("f", text_arg("a", "1") + "\n" + text_arg("a", "2"))), "f({\"a\": \"1\"})!",
     false},
    {"ASCII bars", false,
     "Hm\n\n<|DSML|function_calls>\n<|DSML|invoke name=\"f\">\n<|DSML|parameter name=\"a\" string=\"true\">x"
     "</|DSML|parameter>\n</|DSML|invoke>\n</|DSML|function_calls>",
     "C(Hm)f({\"a\": \"x\"})!", true},
    {"first bar missing", false,
     "<DSML｜function_calls>\n<DSML｜invoke name=\"f\">\n</DSML｜invoke>\n</DSML｜function_calls>", "f({})!", true},
    {"stray closing tags", false, "a</｜DSML｜invoke>b</｜DSML｜function_calls>c", "C(abc)", false},
    {"unknown tag", false, "a<｜DSML｜other x=\"1\">b", "C(ab)", false},
    {"text between calls", false, block(call("f", "") + " and < now " + call("g", "")), "f({})!g({})!", false},
    {"thoughts about tags", true, "I could write <|DSML|invoke name=\"f\"></think>ok",
     "R(I could write <|DSML|invoke name=\"f\">)C(ok)", true},
    {"a block inside the reasoning", true, std::string("hm") + block(call("f", "")), "R(hm)f({})!", true},
    {"text after a block", false, block(call("f", "")) + "\n\nDone.", "C(Done.)f({})!", true},
    {"two blocks", false, block(call("f", "")) + block(call("g", "")), "f({})!g({})!", true},
};

TEST(ChatOutput, Cases) {
  for (const Case& c : kCases) {
    for (const bool by_bytes : {false, true}) {
      const Parsed parsed = parse(c.text, c.in_reasoning, by_bytes);
      EXPECT_EQ(shown(parsed), c.expected) << c.name << (by_bytes ? ", byte by byte" : "");
      EXPECT_EQ(parsed.n_faults == 0, c.clean) << c.name << ": " << parsed.n_faults;
    }
  }
}

TEST(ChatOutput, ArgumentsArriveWhileTheValueDoes) {
  ChatOutputParser parser(format(), demo_tokenizer(), false);
  Parsed parsed;
  const auto push = [&](std::string_view text) {
    for (const TokenId id : must(demo_tokenizer().encode(text))) add(parsed, parser.push(id));
  };
  push("\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">");
  EXPECT_EQ(parsed.calls.size(), 1u);
  push("\n<｜DSML｜parameter name=\"a\" string=\"true\">one two ");
  EXPECT_EQ(parsed.calls[0].arguments, "{\"a\": \"one two ");
  push("three</");
  EXPECT_EQ(parsed.calls[0].arguments, "{\"a\": \"one two three");
  push("｜DSML｜parameter>\n</｜DSML｜invoke>");
  EXPECT_EQ(parsed.calls[0].arguments, "{\"a\": \"one two three\"}");
  EXPECT_TRUE(parsed.complete[0]);
}

TEST(ChatOutput, TextArrivesAtOnce) {
  ChatOutputParser parser(format(), demo_tokenizer(), false);
  for (const TokenId id : must(demo_tokenizer().encode("plain words, 1 < 2, nothing held back"))) {
    const std::string_view bytes = demo_tokenizer().token_bytes(id);
    const std::vector<OutputEvent> events = parser.push(id);
    if (bytes.find('<') != std::string_view::npos) continue;
    ASSERT_FALSE(events.empty());
    EXPECT_TRUE(events.back().text.ends_with(bytes));
  }
}

TEST(ChatOutput, ReadsBackWhatTheFormatWrites) {
  ASSERT_TRUE(rc::check([] {
    const auto name = rc::gen::container<std::string>(rc::gen::elementOf(std::string("abz_09")));
    Message message = {.role = Role::kAssistant};
    message.reasoning = fmt::format("because {}", *test::arbitrary_text());
    message.content = fmt::format("so {}.", *test::arbitrary_text());
    const int n_calls = *rc::gen::inRange(0, 3);
    for (int i = 0; i < n_calls; ++i) {
      io::JsonObject arguments;
      const int n_arguments = *rc::gen::inRange(0, 4);
      for (int k = 0; k < n_arguments; ++k) {
        arguments.set(*name, *rc::gen::inRange(0, 2) == 0 ? io::JsonValue(*test::arbitrary_text())
                                                          : io::JsonValue(*rc::gen::arbitrary<int64_t>()));
      }
      message.tool_calls.push_back({fmt::format("f{}", *name), io::dump_json(arguments)});
    }
    const auto prompt = must(format().render({.messages = {{.content = "q"}, message}, .thinking = true}));
    std::vector<TokenId> ids = must(demo_tokenizer().encode(prompt));
    const auto start = std::find(ids.begin(), ids.end(), format().output_marks().think_begin);
    ids.erase(ids.begin(), start + 1);

    const Parsed parsed = parse_ids(ids, true);
    RC_ASSERT(parsed.reasoning == message.reasoning);
    RC_ASSERT(parsed.content == message.content);
    RC_ASSERT(parsed.calls.size() == message.tool_calls.size());
    for (size_t i = 0; i < parsed.calls.size(); ++i) {
      RC_ASSERT(parsed.complete[i]);
      RC_ASSERT(parsed.calls[i].name == message.tool_calls[i].name);
      RC_ASSERT(parsed.calls[i].arguments == message.tool_calls[i].arguments);
    }
    RC_ASSERT(parsed.n_faults == 0);
  }));
}

TEST(ChatOutput, AnyTokensAreSurvivedAndNoMarkShows) {
  ASSERT_TRUE(rc::check([] {
    const std::vector<std::string> parts = {"｜DSML｜",
                                            "<｜DSML｜",
                                            "</｜DSML｜",
                                            "function_calls>",
                                            "invoke name=\"f\">",
                                            "invoke>",
                                            "parameter name=\"a\" string=\"true\">",
                                            "parameter name=\"b\" string=\"false\">",
                                            "parameter>",
                                            "<think>",
                                            "</think>",
                                            "\n",
                                            "\n\n",
                                            "x",
                                            "<",
                                            "</",
                                            "\">",
                                            "1"};
    const auto picks = *rc::gen::container<std::vector<std::string>>(rc::gen::elementOf(parts));
    std::string text;
    for (const std::string& pick : picks) text += pick;
    const Parsed parsed = parse(text, *rc::gen::arbitrary<bool>());
    RC_ASSERT(parsed.content.find("DSML") == std::string::npos);
    RC_ASSERT(parsed.reasoning.find("DSML") == std::string::npos);
    for (size_t i = 0; i < parsed.calls.size(); ++i) {
      if (parsed.complete[i]) {
        RC_ASSERT(io::parse_json(parsed.calls[i].arguments, "arguments").ok());
      }
    }
    RC_ASSERT(shown(parse(text, false, true)) == shown(parse(text, false, false)));
  }));
}

}  // namespace
}  // namespace levin::text
