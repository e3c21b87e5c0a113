// A request in the making: its choices as they grow, and whoever writes them in a dialect's form.
//
// run_answer() submits every choice to the engine and hands each batch to an AnswerWriter, on the answer thread alone,
// so that neither needs a lock. A client that leaves cancels all choices.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "serve/api_error.h"
#include "serve/chat_messages.h"
#include "serve/generation_fields.h"
#include "serve/http_server.h"
#include "serve/served_model.h"

namespace levin::serve {

struct AnswerCall {
  std::string id;
  std::string name;
  std::string arguments;  // JSON text; unfinished if not complete
  bool complete = false;
};

struct Choice {
  int index = 0;
  size_t prompt = 0;  // of AnswerPlan::prompts
  std::string content;
  std::string reasoning;
  std::vector<AnswerCall> calls;
  std::vector<TokenEvent> tokens;  // of a stream without their log probabilities
  // once it is over
  bool over = false;
  FinishReason finish_reason = FinishReason::kLength;
  std::optional<std::string> matched_stop;  // of the request's stop strings
  std::optional<int32_t> stop_token;        // of the request's stop_token_ids
  int64_t n_reasoning_tokens = 0;
  int64_t n_found_tokens = 0;  // of the prompt, in the prefix cache
  SpeculationStats speculation;
  std::vector<RowLogprobs> prompt_logprobs;

  bool called() const;  // at least one call is complete
};

// What to run: every prompt is answered ask.n_choices times.
struct AnswerPlan {
  std::vector<std::vector<int32_t>> prompts;
  GenerationAsk ask;
  bool chat = false;
  bool in_reasoning = false;         // chat: the prompt ends inside the reasoning
  std::vector<io::JsonValue> tools;  // chat: that the prompt describes
  std::optional<grammar::Structure> structure;
  bool prompt_logprobs = false;
};

struct Usage {
  int64_t n_prompt = 0;  // each prompt once
  int64_t n_found = 0;   // of those, in the prefix cache
  int64_t n_answer = 0;
  int64_t n_reasoning = 0;       // of those
  SpeculationStats speculation;  // of all choices that are over; without places
};

class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;
  virtual void begin() {}  // before anything is submitted, on another thread
  // A batch, already part of the choice. The last one of a choice has choice.over set.
  virtual void add(const Choice& choice, const Batch& batch) = 0;
  virtual void end(std::span<const Choice> choices, const Usage& usage) = 0;
  virtual void fail(const ApiError& error) = 0;  // instead of end()
};

// Refuses what cannot be run; afterwards the writer answers.
std::optional<ApiError> run_answer(const ServedModel& model, std::shared_ptr<Exchange> exchange, AnswerPlan plan,
                                   std::unique_ptr<AnswerWriter> writer);

// The prompt and all that a conversation asks of its answer. Errors (kUsage) are about the field the body read last.
Status set_conversation(const ServedModel& model, const Body& body, const ChatAsk& chat, AnswerPlan* plan);
// What a form alone asks of the answer.
Status set_form(const ServedModel& model, const Body& body, const TextForm& form, AnswerPlan* plan);

Usage usage_of(std::span<const Choice> choices, std::span<const std::vector<int32_t>> prompts);

}  // namespace levin::serve
