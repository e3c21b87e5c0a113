// Conversations as prompts: the chat format of a model family, rendered to segments that a Tokenizer encodes.
//
//   LEVIN_ASSIGN(ChatFormat format, ChatFormat::make(ChatFamily::kDeepSeekV32, tokenizer));
//   ChatRequest request{.messages = {{.role = Role::kUser, .content = "Hello"}}};
//   LEVIN_ASSIGN(std::vector<Segment> prompt, format.render(request));
//   std::vector<TokenId> ids = tokenizer.encode(prompt);
//
// What the caller sent (contents, reasoning, arguments, tool descriptions) is always text; only the format's own marks
// are tokens. So no message can end a turn or open another.
//
// Source  the reference encoder and its test vectors that ship with the official checkpoint (folder encoding/)
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "io/json.h"
#include "text/tokenizer.h"

namespace levin::text {

enum class ChatFamily { kDeepSeekV32 };

enum class Role { kSystem, kDeveloper, kUser, kAssistant, kTool };

struct ToolCall {
  std::string name;
  std::string arguments;  // a JSON object as text; anything else is rendered as one parameter "arguments"
};

struct Message {
  Role role = Role::kUser;
  std::string content = {};
  std::string reasoning = {};  // assistant: its thoughts; kept in the prompt only where the format keeps them
  std::vector<ToolCall> tool_calls = {};  // assistant
  std::vector<io::JsonValue> tools = {};  // system, developer: the function objects, {"name": ..., "parameters": ...}
  io::JsonValue response_format = {};     // system, developer: the schema to answer in; null for none
};

struct ChatRequest {
  std::vector<Message> messages = {};
  bool thinking = false;  // the answer begins with reasoning
};

// Ids of the format's marks.
struct ChatTokens {
  TokenId bos = kNoToken;
  TokenId eos = kNoToken;  // ends an answer
  TokenId user = kNoToken;
  TokenId assistant = kNoToken;
  TokenId think_begin = kNoToken;
  TokenId think_end = kNoToken;
  TokenId dsml = kNoToken;  // inside the tags of tool calls
};

class ChatFormat {
 public:
  // An error (kModelInvalid) when the tokenizer lacks one of the format's tokens; it names the token.
  static Result<ChatFormat> make(ChatFamily family, const Tokenizer& tokenizer);

  // The prompt up to where the answer begins, which in thinking mode is inside the reasoning. A list that ends with an
  // assistant message gives the finished conversation. Errors (kUsage) name the message by its place, counted from 0: a
  // tool result without a call, an answer that has neither reasoning nor calls where the format needs one, an empty
  // list.
  Result<std::vector<Segment>> render(const ChatRequest& request) const;

  ChatFamily family() const { return family_; }
  const ChatTokens& tokens() const { return tokens_; }

 private:
  ChatFormat(ChatFamily family, const ChatTokens& tokens) : family_(family), tokens_(tokens) {}

  ChatFamily family_;
  ChatTokens tokens_;
};

}  // namespace levin::text
