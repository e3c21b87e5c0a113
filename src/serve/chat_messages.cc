#include "serve/chat_messages.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <utility>

namespace levin::serve {

Error wrong_message(const std::string& where, std::string_view what) {
  return {ErrorKind::kUsage, fmt::format("{} {}", where, what)};
}

const std::string* string_member(const io::JsonObject& object, std::string_view key) {
  const io::JsonValue* value = object.find(key);
  return value != nullptr ? value->as_string() : nullptr;
}

Result<std::string> text_member(const io::JsonObject& object, std::string_view key, const std::string& where) {
  const io::JsonValue* value = object.find(key);
  if (value == nullptr || value->is_null()) return std::string();
  if (const std::string* text = value->as_string()) return *text;
  return wrong_message(where, fmt::format("has the {} {}, expected a string", key, io::describe_json(*value)));
}

void set_effort(std::string_view effort, text::ChatRequest* request) {
  request->thinking = effort != "none" && effort != "minimal";
  if (effort == "low") request->effort = text::Effort::kLow;
  if (effort == "medium" || effort == "high") request->effort = text::Effort::kHigh;
  if (effort == "xhigh") request->effort = text::Effort::kExtraHigh;
  if (effort == "max") request->effort = text::Effort::kMax;
}

namespace {

Result<text::Role> read_role(const io::JsonObject& message, const std::string& where) {
  const std::string* role = string_member(message, "role");
  if (role == nullptr)
    return wrong_message(where, "has no role; it is one of system, developer, user, assistant, tool");
  if (*role == "system" || *role == "developer") return text::Role::kSystem;
  if (*role == "user") return text::Role::kUser;
  if (*role == "assistant") return text::Role::kAssistant;
  if (*role == "tool" || *role == "function") return text::Role::kTool;
  if (*role == "latest_reminder") return text::Role::kReminder;
  return wrong_message(where,
                       fmt::format("has the role \"{}\", expected system, developer, user, assistant or tool", *role));
}

Result<std::vector<text::ToolCall>> read_calls(const io::JsonValue& value, const std::string& where) {
  std::vector<text::ToolCall> calls;
  if (value.is_null()) return calls;
  const io::JsonArray* list = value.as_array();
  if (list == nullptr) return wrong_message(where, "has tool_calls that are not a list");
  for (const io::JsonValue& entry : *list) {
    const io::JsonObject* call = entry.as_object();
    const io::JsonValue* function = call != nullptr ? call->find("function") : nullptr;
    const io::JsonObject* fields = function != nullptr ? function->as_object() : nullptr;
    const std::string* name = fields != nullptr ? string_member(*fields, "name") : nullptr;
    if (name == nullptr)
      return wrong_message(where, fmt::format("has a call (number {}) without a function name", calls.size()));
    const io::JsonValue* arguments = fields->find("arguments");
    text::ToolCall out{.name = *name};
    LEVIN_ASSIGN(out.id, text_member(*call, "id", fmt::format("{}.tool_calls[{}]", where, calls.size())));
    if (arguments != nullptr && arguments->as_string() != nullptr) {
      out.arguments = *arguments->as_string();
    } else if (arguments != nullptr && !arguments->is_null()) {
      out.arguments = io::dump_json(*arguments);
    }
    if (out.arguments.empty()) out.arguments = "{}";
    calls.push_back(std::move(out));
  }
  return calls;
}

// Clients that know no field for it send reasoning back inside the content.
void split_reasoning(text::Message* message) {
  static constexpr std::string_view kBegin = "<think>", kEnd = "</think>";
  const size_t end = message->content.find(kEnd);
  if (!message->reasoning.empty() || !message->content.starts_with(kBegin) || end == std::string::npos) return;
  message->reasoning = message->content.substr(kBegin.size(), end - kBegin.size());
  message->content.erase(0, end + kEnd.size());
}

Result<text::Message> read_message(const io::JsonValue& value, const std::string& where) {
  const io::JsonObject* fields = value.as_object();
  if (fields == nullptr)
    return wrong_message(where, fmt::format("is {}, expected an object", io::describe_json(value)));
  text::Message message;
  LEVIN_ASSIGN(message.role, read_role(*fields, where));
  LEVIN_ASSIGN(message.content, content_text(fields->find("content"), fmt::format("{}.content", where)));
  if (message.role == text::Role::kTool) {
    LEVIN_ASSIGN(message.call_id, text_member(*fields, "tool_call_id", where));
  }
  if (message.role != text::Role::kAssistant) return message;
  for (const std::string_view key : {"reasoning_content", "reasoning"}) {
    LEVIN_ASSIGN(std::string reasoning, text_member(*fields, key, where));
    if (message.reasoning.empty()) message.reasoning = std::move(reasoning);
  }
  split_reasoning(&message);
  if (const io::JsonValue* calls = fields->find("tool_calls")) {
    LEVIN_ASSIGN(message.tool_calls, read_calls(*calls, where));
  }
  return message;
}

// The request's own word on thinking; what is more particular comes later and counts.
Status read_thinking(const Body& body, text::ChatRequest* request) {
  bool& thinking = request->thinking;
  LEVIN_ASSIGN(const std::optional<std::string> effort, body.get_optional<std::string>("reasoning_effort"));
  if (effort) set_effort(*effort, request);
  if (const io::JsonValue* value = body.find("thinking")) {
    if (const bool* flag = value->as_bool()) {
      thinking = *flag;
    } else {
      LEVIN_ASSIGN(const Body fields, body.get_body("thinking"));
      const Result<std::string> type = fields.get<std::string>("type");
      if (!type.ok()) return type.error();
      thinking = *type != "disabled";
    }
  }
  LEVIN_ASSIGN(thinking, body.get_or("think", thinking));
  return read_template_kwargs(body, request);
}

// The name in {"type": "function", "function": {"name"}} or {"type": "function", "name"}; nullptr: it is neither.
const std::string* chosen_function(const io::JsonObject& choice) {
  const std::string* type = string_member(choice, "type");
  if (type == nullptr || *type != "function") return nullptr;
  const io::JsonValue* inner = choice.find("function");
  if (inner == nullptr) return string_member(choice, "name");
  return inner->as_object() != nullptr ? string_member(*inner->as_object(), "name") : nullptr;
}

bool has_name(const io::JsonValue& tool, const std::string& name) {
  return *string_member(*tool.as_object(), "name") == name;
}

Status set_choice_word(const Body& body, const std::string& word, CallForm* calls) {
  if (word != "none" && word != "auto" && word != "required") {
    return body.unexpected("tool_choice", "none, auto, required or a function");
  }
  calls->allowed = word != "none";
  calls->required = word == "required";
  return {};
}

// {"type": "allowed_tools", "mode": "auto" | "required", "tools": [{"type": "function", "name"}]}, the last two perhaps in
// a member "allowed_tools" and the names in "function". The prompt then describes only these.
Status keep_allowed_tools(const Body& body, const io::JsonObject& choice, CallForm* calls,
                          std::vector<io::JsonValue>* tools) {
  const io::JsonValue* inner = choice.find("allowed_tools");
  const io::JsonObject& allowed = inner != nullptr && inner->as_object() != nullptr ? *inner->as_object() : choice;
  const std::string* mode = string_member(allowed, "mode");
  LEVIN_TRY(set_choice_word(body, mode != nullptr ? *mode : "auto", calls));
  const io::JsonValue* list = allowed.find("tools");
  if (list == nullptr || list->as_array() == nullptr) {
    return body.refuse("tool_choice", "of type allowed_tools has no list of tools");
  }
  std::map<std::string, io::JsonValue*> by_name;  // the first of each name
  for (io::JsonValue& tool : *tools) by_name.emplace(*string_member(*tool.as_object(), "name"), &tool);
  std::vector<io::JsonValue> kept;
  for (const io::JsonValue& entry : *list->as_array()) {
    const std::string* name = entry.as_object() != nullptr ? chosen_function(*entry.as_object()) : nullptr;
    if (name == nullptr) return body.refuse("tool_choice", "allows tools that are not functions with a name");
    const auto found = by_name.find(*name);
    if (found == by_name.end())
      return body.refuse("tool_choice", fmt::format("allows {}, which is not one of the tools", *name));
    if (found->second == nullptr) continue;  // named before
    kept.push_back(std::move(*std::exchange(found->second, nullptr)));
  }
  *tools = std::move(kept);
  return {};
}

}  // namespace

Result<std::string> content_text(const io::JsonValue* content, const std::string& where) {
  if (content == nullptr || content->is_null()) return std::string();
  if (const std::string* text = content->as_string()) return *text;
  const io::JsonArray* parts = content->as_array();
  if (parts == nullptr)
    return wrong_message(where,
                         fmt::format("is {}, expected a string or a list of parts", io::describe_json(*content)));
  std::string out;
  for (const io::JsonValue& part : *parts) {
    if (const std::string* text = part.as_string()) {
      out += *text;
      continue;
    }
    const io::JsonObject* fields = part.as_object();
    const std::string* type = fields != nullptr ? string_member(*fields, "type") : nullptr;
    if (type == nullptr || (*type != "text" && *type != "input_text" && *type != "output_text")) {
      return wrong_message(
          where, fmt::format("has a part of type {}; this model reads text only", type != nullptr ? *type : "unknown"));
    }
    if (!fields->contains("text"))
      return wrong_message(where, fmt::format("has a part of type {} without text", *type));
    LEVIN_ASSIGN(const std::string text, text_member(*fields, "text", where));
    out += text;
  }
  return out;
}

Status check_function(const Body& body, std::string_view key, const io::JsonObject& function, size_t i) {
  const auto check = [&](std::string_view member, std::string_view expected, auto&& is_right, bool required) -> Status {
    const io::JsonValue* value = function.find(member);
    const bool missing = value == nullptr || value->is_null();
    if (missing ? !required : is_right(*value)) return {};
    return body.refuse(key, fmt::format("has the function number {} with the {} {}, expected {}", i, member,
                                        missing ? "null" : io::describe_json(*value), expected));
  };
  const auto is_string = [](const io::JsonValue& value) { return value.as_string() != nullptr; };
  const auto is_bool = [](const io::JsonValue& value) { return value.as_bool() != nullptr; };
  const auto is_object = [](const io::JsonValue& value) { return value.as_object() != nullptr; };
  LEVIN_TRY(check("name", "a string", is_string, true));
  LEVIN_TRY(check("description", "a string", is_string, false));
  LEVIN_TRY(check("strict", "true or false", is_bool, false));
  return check("parameters", "a JSON schema", is_object, false);
}

Result<std::vector<io::JsonValue>> read_tools(const Body& body, std::string_view key) {
  std::vector<io::JsonValue> tools;
  const io::JsonValue* value = body.find(key);
  if (value == nullptr) return tools;
  const io::JsonArray* list = value->as_array();
  if (list == nullptr) return body.unexpected(key, "a list");
  for (const io::JsonValue& entry : *list) {
    const io::JsonObject* tool = entry.as_object();
    const io::JsonValue* type = tool != nullptr ? tool->find("type") : nullptr;
    const io::JsonValue* function = tool != nullptr ? tool->find("function") : nullptr;
    const io::JsonObject* fields = function != nullptr ? function->as_object() : nullptr;
    const bool has_type = type == nullptr || type->is_null() || *type == io::JsonValue("function");
    if (!has_type || fields == nullptr || string_member(*fields, "name") == nullptr) {
      return body.refuse(key, fmt::format("number {} is no {{\"type\": \"function\", \"function\": {{\"name\", ...}}}}",
                                          tools.size()));
    }
    LEVIN_TRY(check_function(body, key, *fields, tools.size()));
    tools.push_back(*function);
  }
  return tools;
}

Result<CallForm> read_tool_choice(const Body& body, std::vector<io::JsonValue>* tools) {
  CallForm out;
  LEVIN_ASSIGN(out.several, body.get_or("parallel_tool_calls", true));
  const io::JsonValue* choice = body.find("tool_choice");
  if (choice == nullptr) return out;
  const io::JsonObject* object = choice->as_object();
  const std::string* type = object != nullptr ? string_member(*object, "type") : nullptr;
  const std::string* name = object != nullptr ? chosen_function(*object) : nullptr;
  if (const std::string* word = choice->as_string()) {
    LEVIN_TRY(set_choice_word(body, *word, &out));
  } else if (type != nullptr && *type == "allowed_tools") {
    LEVIN_TRY(keep_allowed_tools(body, *object, &out, tools));
  } else if (name != nullptr) {
    out.required = true;
    out.name = *name;
    out.several = false;
  } else {
    return body.unexpected("tool_choice", "none, auto, required, allowed_tools, or a function by its name");
  }
  LEVIN_TRY(check_tool_choice(body, out, *tools));
  return out;
}

Status check_tool_choice(const Body& body, const CallForm& calls, const std::vector<io::JsonValue>& tools) {
  if (!calls.required) return {};
  if (tools.empty()) return body.refuse("tool_choice", "requires a call and there are no tools");
  const auto is_chosen = [&](const io::JsonValue& tool) { return has_name(tool, calls.name); };
  if (calls.name.empty() || std::any_of(tools.begin(), tools.end(), is_chosen)) return {};
  return body.refuse("tool_choice", fmt::format("names {}, which is not one of the tools", calls.name));
}

void describe_in_prompt(ChatAsk* ask) {
  std::vector<text::Message>& messages = ask->request.messages;
  if (!ask->calls.allowed) ask->tools.clear();
  const bool has_schema = ask->form.in_prompt;
  if (ask->tools.empty() && !has_schema) return;
  // tools stand in a message of their own, as the formats' encoders put them
  if (!ask->tools.empty() || messages.empty() || messages.front().role != text::Role::kSystem) {
    messages.insert(messages.begin(), {.role = text::Role::kSystem, .tools = ask->tools});
  }
  if (has_schema) messages.front().response_format = ask->form.schema;
}

Status read_template_kwargs(const Body& body, text::ChatRequest* request) {
  bool& thinking = request->thinking;
  if (!body.has("chat_template_kwargs")) return {};
  LEVIN_ASSIGN(const Body kwargs, body.get_body("chat_template_kwargs"));
  LEVIN_ASSIGN(const std::optional<std::string> own_effort, kwargs.get_optional<std::string>("reasoning_effort"));
  if (own_effort) set_effort(*own_effort, request);
  LEVIN_ASSIGN(thinking, kwargs.get_or("thinking", thinking));
  LEVIN_ASSIGN(thinking, kwargs.get_or("enable_thinking", thinking));
  LEVIN_ASSIGN(const std::optional<bool> clear, kwargs.get_optional<bool>("clear_thinking"));
  if (clear) request->keep_reasoning = !*clear;
  return {};
}

Status continue_last_message(const Body& body, std::string_view field, ChatAsk* ask) {
  if (ask->form.kind != TextForm::Kind::kFree || ask->calls.required) {
    return body.refuse(field, "and a form for the answer or a required call exclude each other; leave one out");
  }
  ask->request.continue_last = true;
  return {};
}

namespace {

// "continue_final_message" and "add_generation_prompt", as vLLM has them, but that the second need not be said.
Status read_continuing(const Body& body, ChatAsk* ask) {
  LEVIN_ASSIGN(const bool goes_on, body.get_or("continue_final_message", false));
  LEVIN_ASSIGN(const bool new_answer, body.get_or("add_generation_prompt", !goes_on));
  if (goes_on && new_answer) {
    return body.refuse("add_generation_prompt", "and continue_final_message exclude each other; set one to false");
  }
  if (!goes_on && !new_answer) {
    return body.refuse("add_generation_prompt", "may be false only where continue_final_message is true");
  }
  return goes_on ? continue_last_message(body, "continue_final_message", ask) : Status();
}

}  // namespace

FieldList chat_fields() {
  static constexpr Field kFields[] = {
      {"messages", "array", "The conversation", true},
      {"tools", "array", "Functions that the model may call"},
      {"tool_choice", "string|object", "none, auto, required, a function, or allowed_tools"},
      {"parallel_tool_calls", "boolean", "Allow several calls in one answer"},
      {"reasoning_effort", "string", "none and minimal switch reasoning off, others on"},
      {"thinking", "boolean|object", "Reason before the answer"},
      {"think", "boolean", "The same"},
      {"chat_template_kwargs", "object", "thinking, enable_thinking, clear_thinking, reasoning_effort"},
      {"continue_final_message", "boolean", "The answer continues the last message"},
      {"add_generation_prompt", "boolean", "False only together with continue_final_message"},
  };
  return kFields;
}

Result<ChatAsk> read_chat(const Body& body, bool thinking) {
  ChatAsk ask;
  const io::JsonValue* messages = body.find("messages");
  const io::JsonArray* list = messages != nullptr ? messages->as_array() : nullptr;
  if (list == nullptr || list->empty()) return body.unexpected("messages", "a list with at least one message");
  LEVIN_ASSIGN(ask.tools, read_tools(body, "tools"));
  LEVIN_ASSIGN(ask.calls, read_tool_choice(body, &ask.tools));
  LEVIN_ASSIGN(ask.form, read_form(body));
  ask.request.thinking = thinking;
  LEVIN_TRY(read_thinking(body, &ask.request));
  LEVIN_TRY(read_continuing(body, &ask));
  (void)body.find("messages");  // what is wrong from here on is wrong with them
  for (size_t i = 0; i < list->size(); ++i) {
    LEVIN_ASSIGN(text::Message message, read_message((*list)[i], fmt::format("messages[{}]", i)));
    ask.request.messages.push_back(std::move(message));
  }
  if (!ask.request.continue_last && ask.request.messages.back().role == text::Role::kAssistant) {
    return wrong_message(
        fmt::format("messages[{}]", list->size() - 1),
        "is the assistant's; end with a user's or a tool's, or send \"continue_final_message\": true to have it "
        "continued");
  }
  describe_in_prompt(&ask);
  return ask;
}

}  // namespace levin::serve
