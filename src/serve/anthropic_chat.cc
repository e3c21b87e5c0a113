#include "serve/anthropic_chat.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace levin::serve {
namespace {

std::string string_or_empty(const io::JsonObject& object, std::string_view key) {
  const std::string* text = string_member(object, key);
  return text != nullptr ? *text : std::string();
}

// One turn: blocks gathered into a message, and the results that come before it.
struct Turn {
  text::Message message;
  std::vector<text::Message> results;
};

Status add_block(const io::JsonValue& value, const std::string& where, Turn* turn) {
  const io::JsonObject* block = value.as_object();
  const std::string* type = block != nullptr ? string_member(*block, "type") : nullptr;
  if (type == nullptr)
    return wrong_message(where, fmt::format("is {}, expected a block with a type", io::describe_json(value)));
  const bool of_assistant = turn->message.role == text::Role::kAssistant;
  if (*type == "text") {
    if (!block->contains("text")) return wrong_message(where, "has no text");
    LEVIN_ASSIGN(const std::string text, text_member(*block, "text", where));
    turn->message.content += text;
  } else if (*type == "thinking" && of_assistant) {
    LEVIN_ASSIGN(const std::string thinking, text_member(*block, "thinking", where));
    turn->message.reasoning += thinking;
  } else if (*type == "redacted_thinking") {
    return {};
  } else if (*type == "tool_use" && of_assistant) {
    const io::JsonValue* input = block->find("input");
    if (string_member(*block, "name") == nullptr) return wrong_message(where, "has no name");
    LEVIN_ASSIGN(std::string id, text_member(*block, "id", where));
    turn->message.tool_calls.push_back({.name = string_or_empty(*block, "name"),
                                        .arguments = input != nullptr ? io::dump_json(*input) : "{}",
                                        .id = std::move(id)});
  } else if (*type == "tool_result" && !of_assistant) {
    text::Message result{.role = text::Role::kTool};
    LEVIN_ASSIGN(result.content, content_text(block->find("content"), fmt::format("{}.content", where)));
    LEVIN_ASSIGN(result.call_id, text_member(*block, "tool_use_id", where));
    turn->results.push_back(std::move(result));
  } else {
    return wrong_message(
        where, fmt::format("is a block of type {}, which is not supported here; this model reads text, tool_use and "
                           "tool_result",
                           *type));
  }
  return {};
}

Status add_message(const io::JsonValue& value, const std::string& where, std::vector<text::Message>* out) {
  const io::JsonObject* fields = value.as_object();
  const std::string* role = fields != nullptr ? string_member(*fields, "role") : nullptr;
  if (role == nullptr) return wrong_message(where, "has no role; it is user or assistant");
  Turn turn;
  if (*role == "assistant") {
    turn.message.role = text::Role::kAssistant;
  } else if (*role == "system") {
    turn.message.role = text::Role::kSystem;
  } else if (*role != "user") {
    return wrong_message(where, fmt::format("has the role {}, expected user or assistant", *role));
  }
  const io::JsonValue* content = fields->find("content");
  if (content == nullptr || content->is_null()) return wrong_message(where, "has no content");
  if (const io::JsonArray* blocks = content->as_array()) {
    for (size_t i = 0; i < blocks->size(); ++i) {
      LEVIN_TRY(add_block((*blocks)[i], fmt::format("{}.content[{}]", where, i), &turn));
    }
  } else {
    LEVIN_ASSIGN(turn.message.content, content_text(content, fmt::format("{}.content", where)));
  }
  const bool only_results = !turn.results.empty() && turn.message.content.empty();
  for (text::Message& result : turn.results) out->push_back(std::move(result));
  if (!only_results) out->push_back(std::move(turn.message));
  return {};
}

Result<std::vector<io::JsonValue>> read_anthropic_tools(const Body& body) {
  std::vector<io::JsonValue> tools;
  const io::JsonValue* value = body.find("tools");
  if (value == nullptr) return tools;
  const io::JsonArray* list = value->as_array();
  if (list == nullptr) return body.unexpected("tools", "a list");
  for (size_t i = 0; i < list->size(); ++i) {
    const io::JsonObject* tool = (*list)[i].as_object();
    const std::string* type = tool != nullptr ? string_member(*tool, "type") : nullptr;
    if (type != nullptr && *type != "custom") continue;
    const std::string* name = tool != nullptr ? string_member(*tool, "name") : nullptr;
    if (name == nullptr) return body.refuse("tools", fmt::format("number {} has no name", i));
    LEVIN_TRY(check_function(body, "tools", *tool, i));
    io::JsonObject function = {{"name", *name}};
    if (const std::string* description = string_member(*tool, "description")) function.set("description", *description);
    const io::JsonValue* schema = tool->find("input_schema");
    if (schema != nullptr && schema->as_object() == nullptr) {
      return body.refuse("tools", fmt::format("has number {} with the input_schema {}, expected a JSON schema", i,
                                              io::describe_json(*schema)));
    }
    function.set("parameters", schema != nullptr ? *schema : io::JsonValue(io::JsonObject{{"type", "object"}}));
    if (const io::JsonValue* strict = tool->find("strict"); strict != nullptr && *strict == io::JsonValue(true)) {
      function.set("strict", true);
    }
    tools.emplace_back(std::move(function));
  }
  return tools;
}

Result<CallForm> read_choice(const Body& body, const std::vector<io::JsonValue>& tools) {
  CallForm out;
  if (!body.has("tool_choice")) return out;
  LEVIN_ASSIGN(const Body choice, body.get_body("tool_choice"));
  LEVIN_ASSIGN(const std::string type, choice.get<std::string>("type"));
  LEVIN_ASSIGN(const bool single, choice.get_or("disable_parallel_tool_use", false));
  out.several = !single;
  out.allowed = type != "none";
  out.required = type == "any" || type == "tool";
  if (type == "tool") {
    LEVIN_ASSIGN(out.name, choice.get<std::string>("name"));
    out.several = false;
  } else if (type != "auto" && type != "any" && type != "none") {
    return body.refuse("tool_choice", fmt::format("is of type {}, expected auto, any, tool or none", type));
  }
  LEVIN_TRY(check_tool_choice(body, out, tools));
  return out;
}

Status read_thinking_config(const Body& body, text::ChatRequest* request) {
  if (body.has("thinking")) {
    LEVIN_ASSIGN(const Body thinking, body.get_body("thinking"));
    const Result<std::string> type = thinking.get<std::string>("type");
    if (!type.ok()) return type.error();
    request->thinking = *type != "disabled";
  }
  if (request->thinking && body.has("output_config")) {
    LEVIN_ASSIGN(const Body config, body.get_body("output_config"));
    LEVIN_ASSIGN(const std::optional<std::string> effort, config.get_optional<std::string>("effort"));
    if (effort) set_effort(*effort, request);
  }
  return read_template_kwargs(body, request);
}

// "context_management": an edit that keeps all thinking asks for it in the prompt.
Status read_context_management(const Body& body, text::ChatRequest* request) {
  if (!body.has("context_management")) return {};
  LEVIN_ASSIGN(const Body management, body.get_body("context_management"));
  const io::JsonValue* edits = management.find("edits");
  const io::JsonArray* list = edits != nullptr ? edits->as_array() : nullptr;
  if (list == nullptr) return {};
  for (const io::JsonValue& edit : *list) {
    const io::JsonObject* fields = edit.as_object();
    if (fields == nullptr || !string_or_empty(*fields, "type").starts_with("clear_thinking")) continue;
    request->keep_reasoning = string_or_empty(*fields, "keep") == "all";
  }
  return {};
}

// A client of Anthropic's begins its system prompt with a block about billing that is new in every request.
bool is_stamp(const io::JsonValue& block) {
  const io::JsonObject* fields = block.as_object();
  return fields != nullptr && string_or_empty(*fields, "text").starts_with("x-anthropic-billing-header:");
}

Result<std::string> read_system(const Body& body) {
  const io::JsonValue* system = body.find("system");
  const io::JsonArray* blocks = system != nullptr ? system->as_array() : nullptr;
  if (blocks == nullptr) return content_text(system, "system");
  io::JsonArray kept;
  std::copy_if(blocks->begin(), blocks->end(), std::back_inserter(kept),
               [](const auto& block) { return !is_stamp(block); });
  const io::JsonValue value(std::move(kept));
  return content_text(&value, "system");
}

}  // namespace

FieldList anthropic_chat_fields() {
  static constexpr Field kFields[] = {
      {"messages", "array", "The conversation; a last message by the assistant is continued", true},
      {"system", "string|array", "The system prompt"},
      {"tools", "array", "Functions that the model may call"},
      {"tool_choice", "object", "auto, any, tool or none"},
      {"thinking", "object", "{type: enabled, adaptive or disabled}"},
      {"output_config", "object", "effort, and format: the format of the answer"},
      {"context_management", "object", "edits of type clear_thinking: whether earlier reasoning stays in the prompt"},
      {"chat_template_kwargs", "object", "thinking, enable_thinking, clear_thinking, reasoning_effort"},
  };
  return kFields;
}

Result<ChatAsk> read_anthropic_chat(const Body& body, bool thinking) {
  ChatAsk ask;
  ask.request.thinking = thinking;
  std::vector<text::Message>& messages = ask.request.messages;
  LEVIN_ASSIGN(ask.tools, read_anthropic_tools(body));
  LEVIN_ASSIGN(ask.calls, read_choice(body, ask.tools));
  LEVIN_ASSIGN(ask.form, read_form(body, "output_config"));
  LEVIN_TRY(read_thinking_config(body, &ask.request));
  LEVIN_TRY(read_context_management(body, &ask.request));
  LEVIN_ASSIGN(const std::string system, read_system(body));
  if (!system.empty()) messages.push_back({.role = text::Role::kSystem, .content = system});
  const io::JsonValue* value = body.find("messages");
  const io::JsonArray* list = value != nullptr ? value->as_array() : nullptr;
  if (list == nullptr || list->empty()) return body.unexpected("messages", "a list with at least one message");
  for (size_t i = 0; i < list->size(); ++i) {
    LEVIN_TRY(add_message((*list)[i], fmt::format("messages[{}]", i), &messages));
  }
  if (messages.back().role == text::Role::kAssistant) LEVIN_TRY(continue_last_message(body, "messages", &ask));
  describe_in_prompt(&ask);
  return ask;
}

}  // namespace levin::serve
