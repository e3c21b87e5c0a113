// The chat format of GLM-5, in the variants that its releases have had. Turns begin with a role's token and end with
// the next one; there is no token in between and no line break.
#include <map>
#include <string>
#include <string_view>

#include "text/chat_renderer.h"
#include "text/segment_builder.h"

namespace levin::text {
namespace {

// The words of the format, letter by letter from the chat template of the checkpoints (NOTICE).
constexpr std::string_view kToolsBegin = R"(<|system|>
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
)";
constexpr std::string_view kToolsEnd =
    "</tools>\n\nFor each function call, output the function name and arguments within the following XML format:\n"
    "<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key><arg_value>{arg-value-1}</arg_value>"
    "<arg_key>{arg-key-2}</arg_key><arg_value>{arg-value-2}</arg_value>...</tool_call>";

// How the releases differ. A model without a template has the newest words and neither an effort line nor memory.
struct Variant {
  std::string_view name = "GLM-5 (no chat template)";
  bool effort_line = false;         // "Reasoning Effort: Max" stands first
  bool effort_when_silent = false;  // also without thinking
  bool low_effort = false;          // knows "Low" as well as "High"
  bool high_is_most = false;        // and no "Max"
  bool empty_thought = true;        // no reasoning is <think></think>; otherwise a lone </think>
  bool loop_thought = false;        // ... but <think></think> after the last question
  bool whole_tools = false;         // tools with the {"type": "function", "function": ...} around them
  bool strips_reasoning = false;    // of white space at both ends
  bool keeps_reasoning = false;     // of answers before the last question, unless told otherwise
  bool sorts_results = false;       // results stand in the order of their calls
};

// By what the template does, not by what it is called: copies of one release differ in white space and syntax.
Variant variant_of(std::string_view chat_template) {
  const auto has = [&](std::string_view words) { return chat_template.find(words) != std::string_view::npos; };
  Variant v;
  if (chat_template.empty()) return v;
  v.effort_line = has("Reasoning Effort: ");
  v.effort_when_silent = v.effort_line && !has("enable_thinking) and effective_reasoning_effort");
  v.low_effort = v.effort_line && has("'low'");
  v.high_is_most = v.effort_line && has("else 'high'");
  v.empty_thought = has("'<think></think>'");
  v.whole_tools = !has("defer_loading");
  v.loop_thought = !v.empty_thought && !v.whole_tools;
  v.strips_reasoning = has("reasoning_content.strip()");
  v.keeps_reasoning = has("clear_thinking is defined else false");
  v.sorts_results = has("can_sort");
  v.name = v.sorts_results || v.low_effort ? "GLM-5.3"
           : v.effort_line                 ? "GLM-5.2"
           : v.loop_thought                ? "GLM-5.1"
                                           : "GLM-5";
  return v;
}

// What GLM-5.2 released, for a template that is none of GLM's.
constexpr Variant kNewestKnown{.name = "GLM-5.2", .effort_line = true};

struct Marks {
  TokenId prefix_mask, prefix_start, system, user, assistant, observation, end_of_text;
  TokenId think_begin, think_end, response_begin, response_end;
  TagCalls calls;

  std::vector<MarkSlot> slots() {
    return {{"[gMASK]", &prefix_mask},
            {"<sop>", &prefix_start},
            {"<|system|>", &system},
            {"<|user|>", &user},
            {"<|assistant|>", &assistant},
            {"<|observation|>", &observation},
            {"<|endoftext|>", &end_of_text},
            {"<think>", &think_begin},
            {"</think>", &think_end},
            {"<tool_response>", &response_begin},
            {"</tool_response>", &response_end},
            {"<tool_call>", &calls.call_begin},
            {"</tool_call>", &calls.call_end},
            {"<arg_key>", &calls.key_begin},
            {"</arg_key>", &calls.key_end},
            {"<arg_value>", &calls.value_begin},
            {"</arg_value>", &calls.value_end}};
  }
};

constexpr std::string_view kSpace = " \t\n\r\f\v";

std::string_view strip(std::string_view text) {
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

// The function object, without what is for the server alone. False: the tool is loaded later and is not described.
bool described(const io::JsonValue& tool, io::JsonObject* out) {
  const io::JsonObject* object = tool.as_object();
  if (object == nullptr) return false;
  const io::JsonValue* deferred = object->find("defer_loading");
  if (deferred != nullptr && *deferred == io::JsonValue(true)) return false;
  for (const io::JsonMember& member : object->members()) {
    if (member.key != "strict" && member.key != "defer_loading") out->set(member.key, member.value);
  }
  return true;
}

class Renderer {
 public:
  Renderer(const ChatRequest& request, const Variant& variant, std::vector<SegmentBuilder::Mark> marks)
      : request_(request), messages_(request.messages), v_(variant), out_(std::move(marks)) {
    for (int i = 0; i < n_messages(); ++i) {
      if (at(i).role == Role::kUser) last_user_ = i;
    }
  }

  std::vector<Segment> render() {
    out_.format("[gMASK]<sop>");
    effort();
    tools();
    for (int i = 0; i < n_messages(); ++i) message(i);
    if (messages_.back().role != Role::kAssistant) {
      out_.format("<|assistant|>");
      out_.format(request_.thinking ? "<think>" : no_thought());
    }
    return out_.take();
  }

 private:
  int n_messages() const { return static_cast<int>(messages_.size()); }
  const Message& at(int i) const { return messages_[static_cast<size_t>(i)]; }
  std::string_view no_thought() const { return v_.empty_thought ? "<think></think>" : "</think>"; }

  void effort() {
    if (!v_.effort_line || !(request_.thinking || v_.effort_when_silent)) return;
    const Effort effort = request_.effort.value_or(Effort::kMax);
    out_.format("<|system|>Reasoning Effort: ");
    if (effort == Effort::kLow && v_.low_effort) return out_.format("Low");
    out_.format(effort == Effort::kHigh || v_.high_is_most ? "High" : "Max");
  }

  // Of all messages, before everything that was said.
  void tools() {
    std::vector<const io::JsonValue*> all;
    for (const Message& message : messages_) {
      for (const io::JsonValue& tool : message.tools) all.push_back(&tool);
    }
    if (all.empty()) return;
    out_.format(kToolsBegin);
    for (const io::JsonValue* tool : all) {
      io::JsonObject function;
      if (v_.whole_tools) {
        out_.user(python_json(io::JsonObject{{"type", "function"}, {"function", *tool}}));
      } else if (described(*tool, &function)) {
        out_.user(python_json(function));
      } else {
        continue;
      }
      out_.format("\n");
    }
    out_.format(kToolsEnd);
  }

  void message(int i) {
    switch (at(i).role) {
      case Role::kSystem:
      case Role::kReminder:
      case Role::kDeveloper:
        if (at(i).content.empty() && !at(i).tools.empty()) return;  // there for its tools alone
        out_.format("<|system|>");
        out_.user(at(i).content);
        return;
      case Role::kUser:
        out_.format("<|user|>");
        out_.user(at(i).content);
        return;
      case Role::kAssistant:
        return answer(i);
      case Role::kTool:
        if (i == 0 || at(i - 1).role != Role::kTool) results(i);
    }
  }

  void answer(int i) {
    const Message& message = at(i);
    const bool in_loop = i > last_user_;
    std::string_view reasoning = message.reasoning, content = message.content;
    if (const size_t end = content.find("</think>"); reasoning.empty() && end != std::string_view::npos) {
      reasoning = content.substr(0, end);  // a client that sends the thought as it was written
      if (const size_t begin = reasoning.rfind("<think>"); begin != std::string_view::npos)
        reasoning.remove_prefix(begin + std::string_view("<think>").size());
      content.remove_prefix(content.rfind("</think>") + std::string_view("</think>").size());
    }
    if (v_.strips_reasoning) reasoning = strip(reasoning);
    out_.format("<|assistant|>");
    if (!reasoning.empty() && (in_loop || request_.keep_reasoning.value_or(v_.keeps_reasoning))) {
      out_.format("<think>");
      out_.user(reasoning);
      out_.format("</think>");
    } else {
      out_.format(v_.loop_thought && in_loop && request_.thinking ? "<think></think>" : no_thought());
    }
    out_.user(strip(content));
    for (const ToolCall& call : message.tool_calls) tool_call(call);
  }

  void tool_call(const ToolCall& call) {
    out_.format("<tool_call>");
    out_.user(call.name);
    const io::JsonObject arguments = arguments_of(call);
    for (const io::JsonMember& argument : arguments.members()) {
      const std::string* text = argument.value.as_string();
      out_.format("<arg_key>");
      out_.user(argument.key);
      out_.format("</arg_key><arg_value>");
      out_.user(text != nullptr ? *text : python_json(argument.value));
      out_.format("</arg_value>");
    }
    out_.format("</tool_call>");
  }

  // All results from message i on.
  void results(int i) {
    std::vector<const Message*> run;
    for (int k = i; k < n_messages() && at(k).role == Role::kTool; ++k) run.push_back(&at(k));
    if (v_.sorts_results && i > 0) sort_by_calls(at(i - 1).tool_calls, run);
    out_.format("<|observation|>");
    for (const Message* result : run) {
      out_.format("<tool_response>");
      out_.user(result->content);
      out_.format("</tool_response>");
    }
  }

  // Into the order of the calls, when each result names another one of them; calls without a result are ignored.
  static void sort_by_calls(const std::vector<ToolCall>& calls, std::vector<const Message*>& run) {
    std::map<std::string_view, size_t> places;
    for (const ToolCall& call : calls) {
      if (call.id.empty() || !places.emplace(call.id, places.size()).second) return;
    }
    std::map<size_t, const Message*> by_place;
    for (const Message* result : run) {
      const auto found = places.find(result->call_id);
      if (found == places.end() || !by_place.emplace(found->second, result).second) return;
    }
    run.clear();
    for (const auto& [place, result] : by_place) run.push_back(result);
  }

  const ChatRequest& request_;
  const std::vector<Message>& messages_;
  const Variant& v_;
  SegmentBuilder out_;
  int last_user_ = -1;
};

class GlmChat : public ChatRenderer {
 public:
  static Result<std::shared_ptr<const ChatRenderer>> make(const Tokenizer& tokenizer, const ChatSource& source) {
    auto chat = std::make_shared<GlmChat>();
    chat->variant_ = variant_of(source.chat_template);
    if (!source.chat_template.empty() && source.chat_template.find("[gMASK]<sop>") == std::string::npos) {
      chat->variant_ = kNewestKnown;
      chat->warnings_.emplace_back("the chat template is not one of GLM-5's; prompts are written as for GLM-5.2");
    }
    chat->name_ = chat->variant_.name;
    Marks m{};
    const std::vector<MarkSlot> slots = m.slots();
    LEVIN_TRY(find_marks(tokenizer, slots, chat->name_));
    for (const auto& [name, id] : slots) chat->marks_.push_back({.name = name, .token = *id});
    chat->output_marks_ = {.think_begin = m.think_begin,
                           .think_end = m.think_end,
                           .silent = {m.prefix_mask, m.prefix_start, m.system, m.user, m.assistant, m.observation,
                                      m.end_of_text, m.response_begin, m.response_end},
                           .calls = m.calls};
    return std::shared_ptr<const ChatRenderer>(std::move(chat));
  }

  Result<std::vector<Segment>> render(const ChatRequest& request) const override {
    return Renderer(request, variant_, marks_).render();
  }

 private:
  Variant variant_;
  std::vector<SegmentBuilder::Mark> marks_;
};

}  // namespace

Result<std::shared_ptr<const ChatRenderer>> make_glm_chat(const Tokenizer& tokenizer, const ChatSource& source) {
  return GlmChat::make(tokenizer, source);
}

}  // namespace levin::text
