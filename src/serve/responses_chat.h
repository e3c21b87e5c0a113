// The input of a /v1/responses request as the messages that a chat format renders.
//
//   instructions   the first system message
//   input          a string (the user's), or items:
//     message                  roles and contents as in chat; type may be missing
//     reasoning                its text belongs to the answer or call that follows
//     function_call            and custom_tool_call: a call of the assistant's
//     function_call_output     and custom_tool_call_output: its result
//     other types              things that only OpenAI's servers make; ignored
//   Neighbouring items of the assistant's are one message: that is how one answer comes back
//   tools          {"type": "function", "name", "description", "parameters"}; a namespace stands for its functions;
//                  other types are ignored, since clients offer them with every request to every server; a
//                  tool_choice that needs one of them is refused
//   text.format    the form of the answer
#pragma once

#include "serve/chat_messages.h"

namespace levin::serve {

Result<ChatAsk> read_responses_chat(const Body& body, bool thinking);

}  // namespace levin::serve
