#include "serve/openai_json.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace levin::serve {
namespace {

io::JsonObject token_logprob(const text::Tokenizer& tokenizer, const TokenLogprob& entry) {
  io::JsonArray bytes;
  for (const char byte : tokenizer.token_bytes(entry.token)) bytes.emplace_back(static_cast<uint8_t>(byte));
  return {{"token", token_text(tokenizer, entry.token)},
          {"logprob", finite_logprob(entry.logprob)},
          {"bytes", std::move(bytes)}};
}

}  // namespace

std::string_view openai_finish_reason(const Choice& choice) {
  switch (choice.finish_reason) {
    case FinishReason::kStop:
      return choice.called() ? "tool_calls" : "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
    case FinishReason::kError:
      break;
  }
  return "abort";
}

io::JsonValue stop_reason_json(const Choice& choice) {
  if (choice.matched_stop) return *choice.matched_stop;
  if (choice.stop_token) return *choice.stop_token;
  return nullptr;
}

io::JsonObject usage_json(const Usage& usage) {
  io::JsonObject out = {{"prompt_tokens", usage.n_prompt},
                        {"completion_tokens", usage.n_answer},
                        {"total_tokens", usage.n_prompt + usage.n_answer},
                        {"prompt_tokens_details", io::JsonObject{{"cached_tokens", usage.n_found}}},
                        {"completion_tokens_details", io::JsonObject{{"reasoning_tokens", usage.n_reasoning}}}};
  const SpeculationStats& spec = usage.speculation;
  if (spec.n_verify_passes > 0) {
    io::JsonArray per_position(spec.accepted_per_position.begin(), spec.accepted_per_position.end());
    out.set("speculation", io::JsonObject{{"verify_passes", spec.n_verify_passes},
                                          {"drafted", spec.n_drafted},
                                          {"accepted", spec.n_accepted},
                                          {"accepted_per_position", std::move(per_position)},
                                          {"mean_accept_length", spec.mean_accept_length()}});
  }
  return out;
}

RunningUsage::RunningUsage(const AnswerPlan& plan)
    : so_far_(usage_of({}, plan.prompts)), counted_(plan.prompts.size() * static_cast<size_t>(plan.ask.n_choices)) {}

void RunningUsage::count(const Choice& choice) {
  int64_t& counted = counted_[static_cast<size_t>(choice.index)];
  so_far_.n_answer += std::ssize(choice.tokens) - counted;
  counted = std::ssize(choice.tokens);
}

double finite_logprob(double logprob) { return std::isfinite(logprob) ? logprob : -9999.0; }

std::string token_text(const text::Tokenizer& tokenizer, int32_t token) {
  const std::string text = tokenizer.decode(std::span(&token, 1), false);
  const std::string_view bytes = tokenizer.token_bytes(token);
  if (bytes.empty()) return fmt::format("token_id:{}", token);
  if (text == bytes) return text;
  std::string out = "bytes:";
  for (const char byte : bytes) out += fmt::format("\\x{:02x}", static_cast<uint8_t>(byte));
  return out;
}

io::JsonArray chat_logprobs(const text::Tokenizer& tokenizer, std::span<const TokenEvent> tokens) {
  io::JsonArray out;
  for (const TokenEvent& event : tokens) {
    if (!event.logprobs) continue;
    io::JsonObject entry = token_logprob(tokenizer, event.logprobs->chosen);
    io::JsonArray top;
    for (const TokenLogprob& other : event.logprobs->top) top.emplace_back(token_logprob(tokenizer, other));
    entry.set("top_logprobs", std::move(top));
    out.emplace_back(std::move(entry));
  }
  return out;
}

std::string sse(const io::JsonValue& data, std::string_view event) {
  std::string out;
  if (!event.empty()) out.append("event: ").append(event).append("\n");
  return out.append("data: ").append(io::dump_json(data, {.compact = true})).append("\n\n");
}

HttpResponse sse_head() {
  return {.content_type = "text/event-stream", .headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}}};
}

}  // namespace levin::serve
