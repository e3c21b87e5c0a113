// Conversations as prompts: the chat format of a model, rendered to segments that a Tokenizer encodes.
//
//   LEVIN_ASSIGN(ChatFormat format, ChatFormat::load(make_deepseek_v32_chat, "models/demo-v32", tokenizer));
//   ChatRequest request{.messages = {{.role = Role::kUser, .content = "Hello"}}};
//   LEVIN_ASSIGN(std::vector<Segment> prompt, format.render(request));
//   LEVIN_ASSIGN(std::vector<TokenId> ids, tokenizer.encode(prompt));
//
// What the caller sent (contents, reasoning, arguments, tool descriptions) is always text; only the format's own marks
// are tokens. So no message can end a turn or open another.
//
// Source  DeepSeek: the reference encoder and its test vectors that ship with the official checkpoint (folder
//         encoding/); GLM: chat_template.jinja of the official checkpoint
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "io/json.h"
#include "text/tokenizer.h"

namespace levin::text {

enum class Role {
  kSystem,
  kDeveloper,
  kUser,
  kAssistant,
  kTool,
  kReminder,  // facts of the day; DeepSeek-V4 has a mark for them, elsewhere they are a system message
};

struct ToolCall {
  std::string name;
  std::string arguments;  // a JSON object as text; anything else is rendered as one parameter "arguments"
  std::string id = {};    // by which results name the call; may be empty
};

struct Message {
  Role role = Role::kUser;
  std::string content = {};
  std::string reasoning = {};  // assistant: its thoughts; kept in the prompt only where the format keeps them
  std::vector<ToolCall> tool_calls = {};  // assistant
  std::string call_id = {};               // tool: of the call that this answers; may be empty
  std::vector<io::JsonValue> tools = {};  // system, developer: the function objects, {"name": ..., "parameters": ...}
  // system, developer: the schema to answer in; null for none. Formats without a place for it leave it out
  io::JsonValue response_format = {};
};

// How long to reason.
enum class Effort { kLow, kHigh, kExtraHigh, kMax };  // formats that know three take kExtraHigh for kMax

struct ChatRequest {
  std::vector<Message> messages = {};
  bool thinking = false;                    // the answer begins with reasoning
  std::optional<Effort> effort = {};        // when thinking; empty, or unknown to the format: the format's own default
  std::optional<bool> keep_reasoning = {};  // of answers before the last question; empty: as the format has it
  // The last message is the beginning of the answer, which continues it: inside the reasoning if it has nothing
  // else, otherwise inside the content. It decides on `thinking`.
  bool continue_last = false;

  bool begins_in_reasoning() const;  // what the answer's first token belongs to
};

// Tool calls as XML-like tags, each with a mark that is a token: <｜DSML｜invoke name="f">.
struct DsmlTags {
  std::string_view block;  // around the calls: "function_calls"
  std::string_view invoke = "invoke";
  std::string_view parameter = "parameter";
};
struct DsmlCalls {
  TokenId mark = kNoToken;
  DsmlTags tags;  // their names
};

// Tool calls whose tags are tokens themselves: <tool_call>f<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>.
struct TagCalls {
  TokenId call_begin = kNoToken, call_end = kNoToken;
  TokenId key_begin = kNoToken, key_end = kNoToken;
  TokenId value_begin = kNoToken, value_end = kNoToken;
};

// What answers are made of, for ChatOutputParser.
struct OutputMarks {
  TokenId think_begin = kNoToken;
  TokenId think_end = kNoToken;
  std::vector<TokenId> silent;  // ends of answers, beginnings of turns: never part of a text
  std::variant<DsmlCalls, TagCalls> calls;
};

class ChatRenderer;  // of one format (chat_renderer.h)

// What a checkpoint says about its format.
struct ChatSource {
  std::filesystem::path folder;  // empty when made from memory
  std::string chat_template;     // chat_template.jinja, or chat_template of tokenizer_config.json; empty for none
};

// Makes a renderer, whose marks say how answers are read. An error when the tokenizer lacks one of the format's tokens;
// it names the token.
using ChatMaker = Result<std::shared_ptr<const ChatRenderer>> (*)(const Tokenizer& tokenizer, const ChatSource& source);
Result<std::shared_ptr<const ChatRenderer>> make_deepseek_v32_chat(const Tokenizer& tokenizer,
                                                                   const ChatSource& source);
Result<std::shared_ptr<const ChatRenderer>> make_deepseek_v4_chat(const Tokenizer& tokenizer, const ChatSource& source);
Result<std::shared_ptr<const ChatRenderer>> make_deepseek_v41_chat(const Tokenizer& tokenizer,
                                                                   const ChatSource& source);
Result<std::shared_ptr<const ChatRenderer>> make_glm_chat(const Tokenizer& tokenizer, const ChatSource& source);

class ChatFormat {
 public:
  // The format of a checkpoint: the variant by the content of its chat template or encoder, never by the model's name.
  // Errors (kModelInvalid) name the file, or the token of the format that the tokenizer lacks.
  static Result<ChatFormat> load(ChatMaker maker, const std::filesystem::path& model_folder,
                                 const Tokenizer& tokenizer);

  // The same from memory, with the text of the chat template; an empty one is the same as none.
  static Result<ChatFormat> make(ChatMaker maker, const Tokenizer& tokenizer, std::string_view chat_template = {});

  // The prompt up to where the answer begins, which in thinking mode is inside the reasoning. A list that ends with an
  // assistant message gives the finished conversation, unless it is to be continued. Errors (kUsage) name the message by
  // its place, counted from 0: a tool result without a call, an answer that has neither reasoning nor calls where the
  // format needs one, a message to continue that is no answer to anything or has calls, an empty list.
  Result<std::vector<Segment>> render(const ChatRequest& request) const;

  std::string_view name() const;                     // "DeepSeek-V3.2", "GLM-5.2"
  const OutputMarks& output_marks() const;           // lives as long as the format
  const std::vector<std::string>& warnings() const;  // about the template; a sentence each

 private:
  explicit ChatFormat(std::shared_ptr<const ChatRenderer> renderer) : renderer_(std::move(renderer)) {}
  Result<std::vector<Segment>> render_continued(ChatRequest request) const;

  std::shared_ptr<const ChatRenderer> renderer_;
};

}  // namespace levin::text
