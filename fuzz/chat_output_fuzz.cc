// What a model might write, as text in which the marks of the format are tokens; the first byte's lowest bits: whether
// it begins inside the reasoning, and whose format it is. The parser never shows a mark, gives complete calls JSON
// objects as arguments, and does not care where its input is cut.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "io/json.h"
#include "text/chat_output.h"

using namespace levin;
using namespace levin::text;

namespace {

struct Answer {
  std::string reasoning, content;
  std::vector<ToolCall> calls;
  std::vector<bool> complete;
  int n_faults = 0;
};

void add(Answer& answer, const std::vector<OutputEvent>& events) {
  for (const OutputEvent& event : events) {
    const bool of_call = event.kind != OutputEvent::Kind::kReasoning && event.kind != OutputEvent::Kind::kContent;
    const auto call = static_cast<size_t>(event.call);
    if (event.kind == OutputEvent::Kind::kCallBegin) {
      LEVIN_CHECK(call == answer.calls.size(), "call {} begins after {} calls", event.call, answer.calls.size());
      answer.calls.push_back({event.text, ""});
      answer.complete.push_back(false);
      continue;
    }
    LEVIN_CHECK(!of_call || call + 1 == answer.calls.size(), "an event of call {} of {}", event.call,
                answer.calls.size());
    LEVIN_CHECK(!of_call || !answer.complete[call], "an event of call {} after its end", event.call);
    switch (event.kind) {
      case OutputEvent::Kind::kReasoning:
        answer.reasoning += event.text;
        break;
      case OutputEvent::Kind::kContent:
        answer.content += event.text;
        break;
      case OutputEvent::Kind::kArguments:
        answer.calls[call].arguments += event.text;
        break;
      case OutputEvent::Kind::kCallEnd:
        answer.complete[call] = true;
        break;
      case OutputEvent::Kind::kCallBegin:
      case OutputEvent::Kind::kCallBroken:
        break;
    }
  }
}

Answer parse(const ChatFormat& format, const Tokenizer& tokenizer, const std::vector<TokenId>& ids, bool in_reasoning) {
  ChatOutputParser parser(format, tokenizer, in_reasoning);
  Answer answer;
  for (const TokenId id : ids) add(answer, parser.push(id));
  add(answer, parser.finish());
  answer.n_faults = parser.n_faults();
  return answer;
}

// The same text in tokens of one byte; the marks stay.
std::vector<TokenId> by_bytes(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  static const std::vector<TokenId> byte_tokens = [&] {
    std::vector<TokenId> result(256);
    for (TokenId id = 0; id < tokenizer.n_ids(); ++id) {
      const std::string_view bytes = tokenizer.token_bytes(id);
      if (bytes.size() == 1) result[static_cast<uint8_t>(bytes[0])] = id;
    }
    return result;
  }();
  std::vector<TokenId> result;
  for (const TokenId id : ids) {
    if (tokenizer.is_added(id)) {
      result.push_back(id);
      continue;
    }
    for (const char byte : tokenizer.token_bytes(id)) result.push_back(byte_tokens[static_cast<uint8_t>(byte)]);
  }
  return result;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Tokenizer tokenizer = Tokenizer::load(LEVIN_SOURCE_DIR "/models/demo-v32").value();
  static const ChatFormat v32 = ChatFormat::make(make_deepseek_v32_chat, tokenizer).value();
  static const ChatFormat v4 = ChatFormat::make(make_deepseek_v4_chat, tokenizer).value();
  if (size == 0) return 0;
  const ChatFormat& format = (data[0] & 2) != 0 ? v4 : v32;
  const bool in_reasoning = (data[0] & 1) != 0;
  const std::vector<TokenId> ids =
      tokenizer.encode(std::string_view(reinterpret_cast<const char*>(data) + 1, size - 1)).value();
  const Answer answer = parse(format, tokenizer, ids, in_reasoning);
  for (size_t i = 0; i < answer.calls.size(); ++i) {
    if (!answer.complete[i]) continue;
    const Result<io::JsonValue> arguments = io::parse_json(answer.calls[i].arguments, "arguments");
    LEVIN_CHECK(arguments.ok(), "{}", arguments.error().message);
    LEVIN_CHECK(arguments->as_object() != nullptr, "arguments are no object: {}", answer.calls[i].arguments);
  }
  const Answer again = parse(format, tokenizer, by_bytes(tokenizer, ids), in_reasoning);
  LEVIN_CHECK(again.reasoning == answer.reasoning, "reasoning differs byte by byte");
  LEVIN_CHECK(again.content == answer.content, "the answer differs byte by byte");
  LEVIN_CHECK(again.calls.size() == answer.calls.size(), "calls differ byte by byte");
  LEVIN_CHECK(again.complete == answer.complete, "ends of calls differ byte by byte");
  for (size_t i = 0; i < answer.calls.size(); ++i) {
    LEVIN_CHECK(again.calls[i].name == answer.calls[i].name, "names differ byte by byte");
    LEVIN_CHECK(again.calls[i].arguments == answer.calls[i].arguments, "arguments differ byte by byte");
  }
  return 0;
}
