// A chat with a loaded model: messages in, an answer streamed to whoever looks, the history kept.
#pragma once

#include <functional>
#include <memory>
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

  // Tokenizer first: its faults show before the weights are read. Warnings go to stderr.
  static Result<ChatModel> load(const EngineOptions& options);
};

struct Answer {
  std::string content;  // without reasoning
  std::string reasoning;
  std::string text;  // all of it as it was written, special tokens left out
  Generation generation;
  int64_t n_prompt_tokens = 0;
};

struct AnswerStream {
  std::function<void(const text::OutputEvent&)> on_event;  // reasoning, content and calls as they form
  std::function<bool()> interrupted;                       // looked at before every token
};

// Answers a prompt of token ids, taken apart by the chat format; `in_reasoning` if the prompt ends inside the
// reasoning.
Result<Answer> answer_prompt(const ChatModel& model, std::vector<int32_t> prompt, bool in_reasoning,
                             const GenerationOptions& options, const AnswerStream& stream);

class Conversation {
 public:
  Conversation(const ChatModel& model, const GenerationOptions& options, std::string system, bool thinking);

  // Asks, streams, and keeps both sides for the next turn.
  Result<Answer> ask(const std::string& question, const AnswerStream& stream);
  void clear();  // back to the system prompt
  void set_thinking(bool thinking) { thinking_ = thinking; }

 private:
  const ChatModel& model_;
  const GenerationOptions& options_;
  std::string system_;
  bool thinking_;
  std::vector<text::Message> messages_;
};

}  // namespace levin::app
