// The chat format of DeepSeek-V3.2.
#include <fmt/core.h>

#include <string>
#include <string_view>

#include "text/chat_deepseek.h"

namespace levin::text {
namespace {

using deepseek::append_calls;
using deepseek::append_response_format;
using deepseek::append_tools;
using deepseek::developer_without_content;
using deepseek::kAssistant;
using deepseek::kBos;
using deepseek::kEos;
using deepseek::kThinkBegin;
using deepseek::kThinkEnd;
using deepseek::kUser;
using deepseek::Marks;

// The words of the format, letter by letter from the reference encoder (NOTICE).
constexpr std::string_view kToolsBegin = R"(

## Tools

You have access to a set of tools you can use to answer the user's question.
You can invoke functions by writing a "<｜DSML｜function_calls>" block like the following as part of your reply to the user:
<｜DSML｜function_calls>
<｜DSML｜invoke name="$FUNCTION_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="$FUNCTION_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜function_calls>

String and scalar parameters should be specified as is without any escaping or quotes, while lists and objects should use JSON format. The "string" attribute should be set to "true" for string type parameters and "false" for other types (numbers, booleans, arrays, objects).

If the thinking_mode is enabled, then after function results you should strongly consider outputting a thinking block. Here is an example:

<｜DSML｜function_calls>
...
</｜DSML｜function_calls>

<function_results>
...
</function_results>

<think>...thinking about results</think>

Here are the functions available in JSONSchema format:
<functions>
)";
constexpr std::string_view kToolsEnd = "\n</functions>\n";
constexpr DsmlTags kTags{.block = "function_calls"};
constexpr std::string_view kDeveloperText = "\n\n# The user's message is: ";

int last_user_index(const std::vector<const Message*>& messages) {
  for (int i = static_cast<int>(messages.size()) - 1; i >= 0; --i) {
    const Role role = messages[static_cast<size_t>(i)]->role;
    if (role == Role::kUser || role == Role::kDeveloper) return i;
  }
  return -1;
}

class Renderer {
 public:
  Renderer(const ChatRequest& request, const Marks& marks) : thinking_(request.thinking), out_(marks.words()) {
    for (const Message& message : request.messages) messages_.push_back(&message);
    last_user_ = last_user_index(messages_);
    if (thinking_) drop_earlier_developer_messages();
  }

  Result<std::vector<Segment>> render() {
    out_.format(kBos);
    for (int i = 0; i < static_cast<int>(messages_.size()); ++i) {
      if (at(i).role != Role::kTool) caller_ = i;
      switch (at(i).role) {
        case Role::kSystem:
        case Role::kReminder:
          system(at(i));
          break;
        case Role::kDeveloper:
          LEVIN_TRY(developer(i));
          break;
        case Role::kUser:
          user(i);
          break;
        case Role::kAssistant:
          LEVIN_TRY(assistant(i));
          break;
        case Role::kTool:
          LEVIN_TRY(tool_result(i));
          break;
      }
    }
    return out_.take();
  }

 private:
  const Message& at(int i) const { return *messages_[static_cast<size_t>(i)]; }

  // Thinking mode forgets them together with the reasoning they led to.
  void drop_earlier_developer_messages() {
    std::vector<const Message*> kept;
    for (int i = 0; i < static_cast<int>(messages_.size()); ++i) {
      if (i >= last_user_ || at(i).role != Role::kDeveloper) kept.push_back(messages_[static_cast<size_t>(i)]);
    }
    messages_ = std::move(kept);
    last_user_ = last_user_index(messages_);
  }

  void tools_and_response_format(const Message& message) {
    if (!message.tools.empty()) {
      out_.format(kToolsBegin);
      append_tools(out_, message.tools);
      out_.format(kToolsEnd);
    }
    append_response_format(out_, message.response_format);
  }

  void system(const Message& message) {
    out_.user(message.content);
    tools_and_response_format(message);
  }

  void begin_answer(bool with_reasoning) { out_.format(with_reasoning ? kThinkBegin : kThinkEnd); }

  void user(int i) {
    out_.format(kUser);
    out_.user(at(i).content);
    out_.format(kAssistant);
    begin_answer(thinking_ && i == last_user_);
  }

  Status developer(int i) {
    if (at(i).content.empty()) return developer_without_content(i);
    out_.format(kUser);
    tools_and_response_format(at(i));
    out_.format(kDeveloperText);
    out_.user(at(i).content);
    out_.format(kAssistant);
    begin_answer(thinking_ && i == last_user_);
    return {};
  }

  Status assistant(int i) {
    const Message& message = at(i);
    if (thinking_ && i > last_user_) {
      if (message.reasoning.empty() && message.tool_calls.empty()) {
        return Error{ErrorKind::kUsage,
                     fmt::format("messages[{}]: in thinking mode an answer after the last user message needs its "
                                 "reasoning or tool calls; send reasoning_content back, or turn thinking off",
                                 i)};
      }
      out_.user(message.reasoning);
      out_.format(kThinkEnd);
    }
    out_.user(message.content);
    append_calls(out_, kTags, message.tool_calls);
    out_.format(kEos);
    return {};
  }

  // A result answers the call of its own place in the list; the block stays open until the last call has one.
  Status tool_result(int i) {
    const int place = i - caller_;  // 1 for the first result
    const int n_calls =
        caller_ >= 0 && at(caller_).role == Role::kAssistant ? static_cast<int>(at(caller_).tool_calls.size()) : 0;
    if (place > n_calls) {
      return Error{ErrorKind::kUsage,
                   fmt::format("messages[{}]: a tool result, but the answer before it made {} calls and {} results "
                               "stand before this one",
                               i, n_calls, place - 1)};
    }
    if (place == 1) out_.format("\n\n<function_results>");
    out_.format("\n<result>");
    out_.user(at(i).content);
    out_.format("</result>");
    if (place == n_calls) {
      out_.format("\n</function_results>\n\n");
      begin_answer(thinking_ && i >= last_user_);
    }
    return {};
  }

  bool thinking_;
  SegmentBuilder out_;
  std::vector<const Message*> messages_;
  int last_user_ = -1;
  int caller_ = -1;  // the last message so far that is not a tool's
};

class DeepSeekV32Chat : public ChatRenderer {
 public:
  static Result<std::shared_ptr<const ChatRenderer>> make(const Tokenizer& tokenizer) {
    auto chat = std::make_shared<DeepSeekV32Chat>();
    chat->name_ = "DeepSeek-V3.2";
    LEVIN_TRY(find_marks(tokenizer, chat->marks_.slots(), chat->name_));
    chat->output_marks_ = chat->marks_.output_marks(kTags);
    return std::shared_ptr<const ChatRenderer>(std::move(chat));
  }

  Result<std::vector<Segment>> render(const ChatRequest& request) const override {
    return Renderer(request, marks_).render();
  }

 private:
  Marks marks_;
};

}  // namespace

Result<std::shared_ptr<const ChatRenderer>> make_deepseek_v32_chat(const Tokenizer& tokenizer, const ChatSource&) {
  return DeepSeekV32Chat::make(tokenizer);
}

}  // namespace levin::text
