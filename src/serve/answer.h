// An answer in progress: its choices, and the writer that formats them for an API.
//
// run_answer() submits every choice to the engine and passes each batch to an AnswerWriter. Both run only on the answer
// thread, so neither needs a lock. If the client disconnects, or one choice fails, all choices are cancelled.
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
  std::vector<TokenEvent> tokens;  // in a stream without log probabilities
  bool over = false;               // finished; the members below are valid
  FinishReason finish_reason = FinishReason::kLength;
  std::optional<std::string> matched_stop;  // of the request's stop strings
  std::optional<int32_t> stop_token;        // of the request's stop_token_ids
  int64_t n_reasoning_tokens = 0;
  int64_t n_hit_tokens = 0;  // of the prompt, in the prefix cache
  SpeculationStats speculation;
  std::vector<RowLogprobs> prompt_logprobs;

  bool called() const;  // at least one call is complete
};

// The requests to submit: every prompt is answered ask.n_choices times.
struct AnswerPlan {
  std::vector<std::vector<int32_t>> prompts;
  GenerationAsk ask;
  bool chat = false;
  bool in_reasoning = false;         // chat: the prompt ends inside the reasoning
  std::vector<io::JsonValue> tools;  // chat: the tools that the prompt describes
  std::optional<grammar::Structure> structure;
  bool prompt_logprobs = false;
};

struct Usage {
  int64_t n_prompt = 0;  // each prompt once
  int64_t n_found = 0;   // of these, prefix-cache hits
  int64_t n_answer = 0;
  int64_t n_reasoning = 0;       // of these
  SpeculationStats speculation;  // of all finished choices
};

class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;
  virtual void begin() {}  // called on a handler thread, before anything is submitted
  // Called after a batch was added to the choice; for the last batch of a choice, choice.over is set.
  virtual void add(const Choice& choice, const Batch& batch) = 0;
  virtual void end(std::span<const Choice> choices, const Usage& usage) = 0;
  virtual void fail(const ApiError& error) = 0;  // instead of end()
};

// Why no request is taken at present: 503 while the engine is stuck, or its device lost.
std::optional<ApiError> engine_refusal(const ServedModel& model);

// Starts the answer. Returns an error if it cannot be run; otherwise the writer answers the exchange.
std::optional<ApiError> run_answer(const ServedModel& model, std::shared_ptr<Exchange> exchange, AnswerPlan plan,
                                   std::unique_ptr<AnswerWriter> writer);

// Sets the prompt and everything else that a conversation determines. Errors (kUsage) are about the field that `body`
// read last.
Status set_conversation(const ServedModel& model, const Body& body, const ChatAsk& chat, AnswerPlan* plan);
// Where the limit of the answers is not the request's own word: no more than the context has room for, if it has any.
void fit_limit(const ServedModel& model, AnswerPlan* plan);
// Sets the structure of an answer without a conversation.
Status set_form(const ServedModel& model, const Body& body, const TextForm& form, AnswerPlan* plan);

Usage usage_of(std::span<const Choice> choices, std::span<const std::vector<int32_t>> prompts);

}  // namespace levin::serve
