#include "serve/responses_chat.h"

#include <fmt/core.h>

#include <utility>

namespace levin::serve {
namespace {

std::string text_of(const io::JsonObject& object, std::string_view key) {
  const io::JsonValue* value = object.find(key);
  const std::string* text = value != nullptr ? value->as_string() : nullptr;
  return text != nullptr ? *text : std::string();
}

class InputReader {
 public:
  explicit InputReader(std::vector<text::Message>* messages) : messages_(*messages) {}

  Status add(const io::JsonValue& value, const std::string& where) {
    const io::JsonObject* item = value.as_object();
    if (item == nullptr)
      return wrong_message(where, fmt::format("is {}, expected an object", io::describe_json(value)));
    LEVIN_ASSIGN(const std::string type, text_member(*item, "type", where));
    if (type.empty() || type == "message") return add_message(*item, where);
    if (type == "reasoning") return add_reasoning(*item, where);
    if (type == "function_call" || type == "custom_tool_call") return add_call(*item, where);
    if (type == "function_call_output" || type == "custom_tool_call_output") return add_result(*item, where);
    if (type == "item_reference")
      return wrong_message(where, "refers to an item that this server has not stored; send the item itself");
    return {};  // items of other servers: clients send whole histories
  }

 private:
  text::Message& assistant() {
    if (messages_.empty() || messages_.back().role != text::Role::kAssistant) {
      messages_.push_back({.role = text::Role::kAssistant});
    }
    return messages_.back();
  }

  Status add_message(const io::JsonObject& item, const std::string& where) {
    LEVIN_ASSIGN(const std::string role, text_member(item, "role", where));
    LEVIN_ASSIGN(std::string content, content_text(item.find("content"), fmt::format("{}.content", where)));
    if (role == "assistant") {
      assistant().content += content;
    } else if (role == "user") {
      messages_.push_back({.role = text::Role::kUser, .content = std::move(content)});
    } else if (role == "system" || role == "developer") {
      messages_.push_back({.role = text::Role::kSystem, .content = std::move(content)});
    } else {
      return wrong_message(where,
                           fmt::format("has the role \"{}\", expected system, developer, user or assistant", role));
    }
    return {};
  }

  // Either list may hold it: the whole text, or a summary.
  Status add_reasoning(const io::JsonObject& item, const std::string& where) {
    for (const std::string_view key : {"content", "summary"}) {
      const io::JsonValue* parts = item.find(key);
      const io::JsonArray* list = parts != nullptr ? parts->as_array() : nullptr;
      if (list == nullptr || list->empty()) continue;
      for (const io::JsonValue& part : *list) {
        if (part.as_object() == nullptr)
          return wrong_message(where, fmt::format("has a {} that is not a list of parts", key));
        LEVIN_ASSIGN(const std::string text, text_member(*part.as_object(), "text", where));
        assistant().reasoning += text;
      }
      return {};
    }
    return {};
  }

  Status add_call(const io::JsonObject& item, const std::string& where) {
    text::ToolCall call;
    LEVIN_ASSIGN(call.name, text_member(item, "name", where));
    LEVIN_ASSIGN(call.arguments, text_member(item, "arguments", where));
    LEVIN_ASSIGN(call.id, text_member(item, "call_id", where));
    if (call.name.empty()) return wrong_message(where, "is a call without a name");
    if (call.arguments.empty() && item.contains("input")) {
      LEVIN_ASSIGN(std::string input, text_member(item, "input", where));
      call.arguments = io::dump_json(io::JsonObject{{"input", std::move(input)}});
    }
    if (call.arguments.empty()) call.arguments = "{}";
    assistant().tool_calls.push_back(std::move(call));
    return {};
  }

  Status add_result(const io::JsonObject& item, const std::string& where) {
    text::Message result{.role = text::Role::kTool};
    LEVIN_ASSIGN(result.content, content_text(item.find("output"), fmt::format("{}.output", where)));
    LEVIN_ASSIGN(result.call_id, text_member(item, "call_id", where));
    messages_.push_back(std::move(result));
    return {};
  }

  std::vector<text::Message>& messages_;
};

// Functions, those in namespaces too. Tools of other types are left out: clients offer them with every request.
Status add_tools(const Body& body, const io::JsonArray& list, std::vector<io::JsonValue>* tools) {
  for (size_t i = 0; i < list.size(); ++i) {
    const io::JsonObject* tool = list[i].as_object();
    if (tool == nullptr)
      return body.refuse("tools", fmt::format("has {} as number {}, expected objects", io::describe_json(list[i]), i));
    const std::string type = text_of(*tool, "type");
    const io::JsonValue* inner = tool->find("tools");
    if (type == "namespace" && inner != nullptr && inner->as_array() != nullptr) {
      LEVIN_TRY(add_tools(body, *inner->as_array(), tools));
    } else if (type == "function") {
      LEVIN_TRY(check_function(body, "tools", *tool, i));
      io::JsonObject function;
      for (const char* key : {"name", "description", "parameters"}) {
        if (const io::JsonValue* value = tool->find(key)) function.set(key, *value);
      }
      const io::JsonValue* strict = tool->find("strict");  // false, as clients send it with every tool, says nothing
      if (strict != nullptr && *strict == io::JsonValue(true)) function.set("strict", true);
      tools->emplace_back(std::move(function));
    }
  }
  return {};
}

// What only a server could know or do that stores answers; and what answers here do not carry.
Status refuse_stored(const Body& body) {
  for (const std::string_view key : {"previous_response_id", "conversation", "prompt"}) {
    if (body.has(key)) {
      return body.refuse(key, "cannot be known: this server stores nothing; send the whole input and instructions");
    }
  }
  LEVIN_ASSIGN(const bool background, body.get_or("background", false));
  if (background) return body.refuse("background", "is not supported: this server stores no answers; leave it out");
  LEVIN_ASSIGN(const int64_t n_top, body.get_or("top_logprobs", int64_t{0}));
  if (n_top != 0) return body.refuse("top_logprobs", "is not supported on this route; use /v1/chat/completions");
  LEVIN_ASSIGN(const auto include, body.get_optional<std::vector<std::string>>("include"));
  for (const std::string& what : include.value_or(std::vector<std::string>())) {
    if (what == "message.output_text.logprobs") {
      return body.refuse("include", "of log probabilities is not supported on this route; use /v1/chat/completions");
    }
  }
  return {};
}

}  // namespace

Result<ChatAsk> read_responses_chat(const Body& body, bool thinking) {
  ChatAsk ask;
  ask.request.thinking = thinking;
  std::vector<text::Message>& messages = ask.request.messages;
  LEVIN_TRY(refuse_stored(body));
  if (body.has("reasoning")) {
    LEVIN_ASSIGN(const Body reasoning, body.get_body("reasoning"));
    LEVIN_ASSIGN(const std::optional<std::string> effort, reasoning.get_optional<std::string>("effort"));
    if (effort) set_effort(*effort, &ask.request);
  }
  LEVIN_TRY(read_template_kwargs(body, &ask.request));
  const io::JsonValue* offered = body.find("tools");
  if (offered != nullptr && offered->as_array() == nullptr) return body.unexpected("tools", "a list");
  if (offered != nullptr) LEVIN_TRY(add_tools(body, *offered->as_array(), &ask.tools));
  LEVIN_ASSIGN(ask.calls, read_tool_choice(body, &ask.tools));
  LEVIN_ASSIGN(ask.form, read_form(body, "text"));
  LEVIN_ASSIGN(const std::string instructions, body.get_or("instructions", ""));
  if (!instructions.empty()) messages.push_back({.role = text::Role::kSystem, .content = instructions});
  const io::JsonValue* input = body.find("input");
  if (input == nullptr) return body.unexpected("input", "a text or a list of items");
  if (const std::string* text = input->as_string()) {
    messages.push_back({.role = text::Role::kUser, .content = *text});
    describe_in_prompt(&ask);
    return ask;
  }
  if (input->as_array() == nullptr) return body.unexpected("input", "a text or a list of items");
  InputReader reader(&messages);
  for (size_t i = 0; i < input->as_array()->size(); ++i) {
    LEVIN_TRY(reader.add((*input->as_array())[i], fmt::format("input[{}]", i)));
  }
  // a probe with nothing in it is answered like an empty question
  if (messages.empty() || messages.back().role == text::Role::kSystem) messages.push_back({.role = text::Role::kUser});
  if (messages.back().role == text::Role::kAssistant) {
    return body.refuse("input", "ends with the assistant's; the last item is to be the user's or a call's output");
  }
  describe_in_prompt(&ask);
  return ask;
}

}  // namespace levin::serve
