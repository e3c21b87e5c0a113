// Pieces of JSON that several of OpenAI's answers share.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "serve/answer.h"

namespace levin::serve {

std::string_view openai_finish_reason(const Choice& choice);  // stop, length, tool_calls, abort
io::JsonValue stop_reason_json(const Choice& choice);         // the stop string or token id of the request; null
io::JsonObject usage_json(const Usage& usage);

// What is known of the usage while a stream runs, for "continuous_usage_stats".
class RunningUsage {
 public:
  explicit RunningUsage(const AnswerPlan& plan);
  void count(const Choice& choice);  // its tokens so far
  const Usage& so_far() const { return so_far_; }

 private:
  Usage so_far_;
  std::vector<int64_t> counted_;  // tokens of each choice that are in so_far_
};

inline constexpr int64_t kMaxTopLogprobs = 20;  // that a request may ask for
// Log probabilities that JSON can hold: minus infinity becomes -9999.
double finite_logprob(double logprob);
// What a token shows as: its text, or "token_id:N" or "bytes:\x.." where its bytes are no text by themselves.
std::string token_text(const text::Tokenizer& tokenizer, int32_t token);
// Chat: [{"token", "logprob", "bytes", "top_logprobs"}, ...]
io::JsonArray chat_logprobs(const text::Tokenizer& tokenizer, std::span<const TokenEvent> tokens);

// A server-sent event: "data: {...}\n\n", with an "event: " line in front if it has a name.
std::string sse(const io::JsonValue& data, std::string_view event = "");
inline constexpr char kSseDone[] = "data: [DONE]\n\n";
// What every stream's head says.
HttpResponse sse_head();

}  // namespace levin::serve
