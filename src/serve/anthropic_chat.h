// Conversations as Anthropic's clients send them, as the messages that a chat format renders.
//
//   system       a string or text blocks, in front; a block that begins with x-anthropic-billing-header: is left out, for
//                it is another in each request and would undo the prefix cache
//   content      a string or blocks: text, thinking, tool_use, tool_result; redacted_thinking is ignored, images
//                are refused. The results in a user's turn become messages of their own, before its text
//   tools        {"name", "description", "input_schema"} becomes {"name", "description", "parameters"}; tools that only
//                Anthropic's servers could run (those with a type of their own) are left out
//   tool_choice  {"type": "auto" | "any" | "tool" | "none", "name", "disable_parallel_tool_use"}
//   thinking     {"type": "enabled" | "adaptive" | "disabled"}; output_config.effort where it is given;
//                chat_template_kwargs as in chat; context_management.edits of type clear_thinking_...: "keep": "all" keeps
//                the reasoning of earlier turns in the prompt, any other value does not
//   the form     output_config.format, or output_format
//   prefill      a last message of the assistant's is the beginning of the answer, which continues it
//   cache_control and unknown fields are ignored
#pragma once

#include "serve/chat_messages.h"

namespace levin::serve {

FieldList anthropic_chat_fields();  // without those of the form

Result<ChatAsk> read_anthropic_chat(const Body& body, bool thinking);

}  // namespace levin::serve
