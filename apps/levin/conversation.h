// A chat with a loaded model: messages in, an answer streamed to standard output, the history kept.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "apps/levin/generation_options.h"
#include "engine/engine.h"
#include "text/chat.h"
#include "text/chat_output.h"
#include "text/tokenizer.h"

namespace levin::app {

// A model with its tokenizer and chat format.
struct ChatModel {
  std::unique_ptr<Engine> engine;
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::unique_ptr<text::ChatFormat> format;

  // Tokenizer first: its faults show before the weights are read. Warnings go to stderr, or to `warn`.
  static Result<ChatModel> load(const EngineOptions& options);
  static Result<ChatModel> load(const EngineOptions& options, const std::function<void(const std::string&)>& warn);
};

struct Answer {
  std::string content;  // without reasoning and calls
  std::string reasoning;
  std::vector<text::ToolCall> calls;  // the complete ones
  std::string text;                   // all of it as it was written, special tokens left out
  Generation generation;
  int64_t n_prompt_tokens = 0;
  uint64_t seed = 0;  // that it was sampled with
};

struct AnswerStream {
  std::function<void(const text::OutputEvent&)> on_event;  // reasoning, content and calls as they form
  std::function<bool()> interrupted;                       // looked at before every token
};

struct PromptIds {
  std::vector<int32_t> ids;
  bool in_reasoning = false;                  // the prompt ends inside the reasoning
  std::span<const io::JsonValue> tools = {};  // that it describes
};

// Answers a prompt of token ids, taken apart by the chat format.
Result<Answer> answer_prompt(const ChatModel& model, PromptIds prompt, const GenerationOptions& options,
                             const AnswerStream& stream);

// How a conversation begins.
struct ChatSetup {
  std::string system;  // may be empty
  std::vector<io::JsonValue> tools;
  bool thinking = false;
};

std::vector<text::Message> opening_messages(const ChatSetup& setup);  // the system message, or none

class Conversation {
 public:
  Conversation(const ChatModel& model, const GenerationOptions& options, ChatSetup setup);

  // Asks, streams, and keeps both sides for the next turn.
  Result<Answer> ask(const std::string& question, const AnswerStream& stream);
  // The result of the oldest call that has none yet. Streams the answer after the last of them; before, an answer
  // without tokens. An error when nothing was called.
  Result<Answer> give_result(const std::string& result, const AnswerStream& stream);
  void clear();  // back to the system prompt
  void set_thinking(bool thinking) { setup_.thinking = thinking; }

 private:
  Result<Answer> answer_last(const AnswerStream& stream);

  const ChatModel& model_;
  const GenerationOptions& options_;
  ChatSetup setup_;
  std::vector<text::Message> messages_;
  size_t n_open_calls_ = 0;
};

}  // namespace levin::app
