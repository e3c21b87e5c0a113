// Conversations as OpenAI's clients send them, as the messages that a chat format renders.
//
//   content     a string, null, or a list of text parts (joined); other parts are refused
//   role        system, developer (taken as system: not every format has the other), user, assistant, tool, function
//   assistant   reasoning as "reasoning_content" or "reasoning", or between <think> marks at the content's beginning;
//               arguments of calls as a JSON text or as an object
//   continuing  "continue_final_message": true, with "add_generation_prompt": false or without: the answer continues the
//               last message, an assistant's. It then has no form, and no call is required
//   tools       function objects, in the prompt as a system message in front, as the formats' own encoders do
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "serve/answer_form.h"
#include "serve/body.h"
#include "text/chat.h"

namespace levin::serve {

// For readers of the dialects' messages. An error that names the place of what is wrong: "messages[3] has no role".
Error wrong_message(const std::string& where, std::string_view what);
// Null if it is absent or no string.
const std::string* string_member(const io::JsonObject& object, std::string_view key);

// The same as a string, empty where it is absent or null. Refused is anything else, which would be lost.
Result<std::string> text_member(const io::JsonObject& object, std::string_view key, const std::string& where);

// Text of a "content": a string, null (nothing), or parts of these types.
Result<std::string> content_text(const io::JsonValue* content, const std::string& where);

struct ChatAsk {
  text::ChatRequest request;
  std::vector<io::JsonValue> tools;  // function objects that the prompt describes; none: the answer holds no calls
  CallForm calls;
  TextForm form;
};

// "messages", "tools", "tool_choice", the answer's form, and whether to think: "reasoning_effort", "thinking",
// "chat_template_kwargs".
Result<ChatAsk> read_chat(const Body& body, bool thinking);

FieldList chat_fields();  // that read_chat() reads, without those of the form

// Refused is a function object without a name, or with a description, a strictness or parameters that are none; the list `key`
// has it as number i.
Status check_function(const Body& body, std::string_view key, const io::JsonObject& function, size_t i);

// The function objects of a list of tools, {"type": "function", "function": {...}}.
Result<std::vector<io::JsonValue>> read_tools(const Body& body, std::string_view key);

// "tool_choice" as OpenAI's clients write it, and "parallel_tool_calls". A choice of type allowed_tools leaves only those
// that it names. Refused is a choice that no tool can meet.
Result<CallForm> read_tool_choice(const Body& body, std::vector<io::JsonValue>* tools);
// The same, once the choice is known.
Status check_tool_choice(const Body& body, const CallForm& calls, const std::vector<io::JsonValue>& tools);

// Puts tools and, where the form wants it, the schema into the prompt: into the first system message or one in front.
void describe_in_prompt(ChatAsk* ask);

// "chat_template_kwargs": thinking or enable_thinking, clear_thinking, reasoning_effort.
Status read_template_kwargs(const Body& body, text::ChatRequest* request);

// Has the last message, an assistant's, continued; its form must be free then. `field`: what asks for it.
Status continue_last_message(const Body& body, std::string_view field, ChatAsk* ask);

// What a client's word for effort comes to: "none" and "minimal" switch thinking off, every other switches it on, and
// words that the formats know say how long.
void set_effort(std::string_view effort, text::ChatRequest* request);

}  // namespace levin::serve
