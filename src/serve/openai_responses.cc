#include "serve/openai_responses.h"

#include <fmt/core.h>

#include <ctime>
#include <utility>

#include "serve/answer.h"
#include "serve/openai_json.h"
#include "serve/request_body.h"
#include "serve/responses_chat.h"

namespace levin::serve {
namespace {

io::JsonObject responses_usage(const Usage& usage) {
  return {{"input_tokens", usage.n_prompt},
          {"input_tokens_details", io::JsonObject{{"cached_tokens", usage.n_found}}},
          {"output_tokens", usage.n_answer},
          {"output_tokens_details", io::JsonObject{{"reasoning_tokens", usage.n_reasoning}}},
          {"total_tokens", usage.n_prompt + usage.n_answer}};
}

// ---- items of the output, in progress or complete ------------------------------------------------------------------

io::JsonObject text_part(const std::string& text) {
  return {{"type", "output_text"}, {"text", text}, {"annotations", io::JsonArray()}};
}

io::JsonObject reasoning_item(const std::string& id, const std::string* text) {
  io::JsonArray content;
  if (text != nullptr) content.emplace_back(io::JsonObject{{"type", "reasoning_text"}, {"text", *text}});
  return {{"id", id}, {"type", "reasoning"}, {"summary", io::JsonArray()}, {"content", std::move(content)}};
}

io::JsonObject message_item(const std::string& id, const std::string* text) {
  io::JsonArray content;
  if (text != nullptr) content.emplace_back(text_part(*text));
  return {{"id", id},
          {"type", "message"},
          {"status", text != nullptr ? "completed" : "in_progress"},
          {"role", "assistant"},
          {"content", std::move(content)}};
}

io::JsonObject call_item(const std::string& id, const AnswerCall& call, bool complete) {
  return {{"id", id},           {"type", "function_call"}, {"status", complete ? "completed" : "in_progress"},
          {"call_id", call.id}, {"name", call.name},       {"arguments", complete ? call.arguments : std::string()}};
}

struct ResponseFrame {
  std::string id = random_id("resp_");
  int64_t created_s = std::time(nullptr);
  std::string model;
  io::JsonObject asked;  // members that say what the request asked for

  io::JsonObject response(std::string_view status, io::JsonArray output) const {
    io::JsonObject out = {{"id", id},         {"object", "response"},       {"created_at", created_s},
                          {"status", status}, {"error", nullptr},           {"incomplete_details", nullptr},
                          {"model", model},   {"output", std::move(output)}};
    for (const io::JsonMember& member : asked.members()) out.set(member.key, member.value);
    out.set("usage", nullptr);
    return out;
  }
  io::JsonObject finished(const Choice& choice, const Usage& usage, io::JsonArray output) const {
    const bool cut = choice.finish_reason == FinishReason::kLength;
    io::JsonObject out = response(cut ? "incomplete" : "completed", std::move(output));
    if (cut) out.set("incomplete_details", io::JsonObject{{"reason", "max_output_tokens"}});
    out.set("usage", responses_usage(usage));
    return out;
  }
};

// One that ends by itself without a call has a message, be it empty.
bool has_message(const Choice& choice) {
  return !choice.content.empty() || (!choice.called() && choice.finish_reason != FinishReason::kLength);
}

class WholeResponse final : public AnswerWriter {
 public:
  WholeResponse(ResponseFrame frame, std::shared_ptr<Exchange> exchange)
      : frame_(std::move(frame)), exchange_(std::move(exchange)) {}

  void add(const Choice&, const Batch&) override {}
  void end(std::span<const Choice> choices, const Usage& usage) override {
    const Choice& choice = choices.front();
    io::JsonArray output;
    if (!choice.reasoning.empty()) output.emplace_back(reasoning_item(random_id("rs_"), &choice.reasoning));
    if (has_message(choice)) output.emplace_back(message_item(random_id("msg_"), &choice.content));
    for (const AnswerCall& call : choice.calls) {
      if (call.complete) output.emplace_back(call_item(random_id("fc_"), call, true));
    }
    exchange_->respond({.body = io::dump_json(frame_.finished(choice, usage, std::move(output)))});
  }
  void fail(const ApiError& error) override { exchange_->respond(error_response(error, ApiDialect::kOpenAi)); }

 private:
  ResponseFrame frame_;
  std::shared_ptr<Exchange> exchange_;
};

// Item after item, each added, grown and done before the next; every event has a type and a rising number.
class ResponseStream final : public AnswerWriter {
 public:
  ResponseStream(ResponseFrame frame, std::shared_ptr<Exchange> exchange)
      : frame_(std::move(frame)), exchange_(std::move(exchange)) {}

  void begin() override {
    exchange_->begin_stream(sse_head());
    send("response.created", {{"response", frame_.response("in_progress", {})}});
    send("response.in_progress", {{"response", frame_.response("in_progress", {})}});
  }

  void add(const Choice& choice, const Batch& batch) override {
    using Kind = text::OutputEvent::Kind;
    for (const text::OutputEvent& event : batch.events) {
      switch (event.kind) {
        case Kind::kReasoning:
          open(Item::kReasoning, "rs_");
          grow("response.reasoning_text.delta", event.text);
          break;
        case Kind::kContent:
          open(Item::kMessage, "msg_");
          grow("response.output_text.delta", event.text);
          break;
        case Kind::kCallBegin:
          close();
          call_ = choice.calls[static_cast<size_t>(event.call)];
          call_.arguments.clear();  // the batch may bring all of them already
          open(Item::kCall, "fc_");
          break;
        case Kind::kArguments:
          grow("response.function_call_arguments.delta", event.text);
          break;
        case Kind::kCallEnd:
          close();
          break;
        case Kind::kCallBroken:
          item_ = Item::kNone;  // left in progress; it is not in the output
          ++index_;
          break;
      }
    }
  }

  void end(std::span<const Choice> choices, const Usage& usage) override {
    const Choice& choice = choices.front();
    if (choice.content.empty() && has_message(choice)) open(Item::kMessage, "msg_");
    close();
    const bool cut = choice.finish_reason == FinishReason::kLength;
    send(cut ? "response.incomplete" : "response.completed",
         {{"response", frame_.finished(choice, usage, std::move(output_))}});
    exchange_->end();
  }
  void fail(const ApiError& error) override {
    io::JsonObject response = frame_.response("failed", {});
    response.set("error",
                 io::JsonObject{{"code", error.code.empty() ? error.type : error.code}, {"message", error.message}});
    send("response.failed", {{"response", std::move(response)}});
    exchange_->end();
  }

 private:
  enum class Item { kNone, kReasoning, kMessage, kCall };

  void send(std::string_view type, io::JsonObject more) {
    io::JsonObject event = {{"type", type}, {"sequence_number", n_sent_++}};
    for (const io::JsonMember& member : more.members()) event.set(member.key, member.value);
    exchange_->send(sse(event, type));
  }
  io::JsonObject place() const { return {{"item_id", id_}, {"output_index", index_}}; }
  io::JsonObject place_in_content() const {
    io::JsonObject out = place();
    out.set("content_index", 0);
    return out;
  }

  void open(Item item, std::string_view prefix) {
    if (item_ == item) return;
    close();
    item_ = item;
    id_ = random_id(prefix);
    text_.clear();
    io::JsonObject begun = item == Item::kReasoning ? reasoning_item(id_, nullptr)
                           : item == Item::kMessage ? message_item(id_, nullptr)
                                                    : call_item(id_, call_, false);
    send("response.output_item.added", {{"output_index", index_}, {"item", std::move(begun)}});
    if (item != Item::kMessage) return;
    io::JsonObject part = place_in_content();
    part.set("part", text_part(""));
    send("response.content_part.added", std::move(part));
  }

  void grow(std::string_view type, const std::string& text) {
    text_ += text;
    io::JsonObject event = item_ == Item::kCall ? place() : place_in_content();
    event.set("delta", text);
    if (item_ == Item::kMessage) event.set("logprobs", io::JsonArray());
    send(type, std::move(event));
  }

  void close() {
    if (item_ == Item::kNone) return;
    io::JsonObject done;
    if (item_ == Item::kReasoning) {
      send_done("response.reasoning_text.done", place_in_content(), "text");
      done = reasoning_item(id_, &text_);
    } else if (item_ == Item::kMessage) {
      send_done("response.output_text.done", place_in_content(), "text");
      io::JsonObject part = place_in_content();
      part.set("part", text_part(text_));
      send("response.content_part.done", std::move(part));
      done = message_item(id_, &text_);
    } else {
      send_done("response.function_call_arguments.done", place(), "arguments");
      call_.arguments = text_;
      done = call_item(id_, call_, true);
    }
    output_.emplace_back(done);
    send("response.output_item.done", {{"output_index", index_}, {"item", std::move(done)}});
    ++index_;
    item_ = Item::kNone;
  }
  void send_done(std::string_view type, io::JsonObject event, std::string_view key) {
    event.set(key, text_);
    if (item_ == Item::kMessage) event.set("logprobs", io::JsonArray());
    if (item_ == Item::kCall) event.set("name", call_.name);
    send(type, std::move(event));
  }

  ResponseFrame frame_;
  std::shared_ptr<Exchange> exchange_;
  int64_t n_sent_ = 0;
  Item item_ = Item::kNone;
  int index_ = 0;
  std::string id_, text_;  // of the item that grows
  AnswerCall call_;
  io::JsonArray output_;
};

// As the request has it, or what holds where it says nothing. `store` is what is done, whatever was asked for.
io::JsonObject asked_by(const Body& body, const AnswerPlan& plan) {
  const io::JsonObject defaults = {{"background", false},
                                   {"instructions", nullptr},
                                   {"max_output_tokens", nullptr},
                                   {"max_tool_calls", nullptr},
                                   {"metadata", io::JsonObject()},
                                   {"parallel_tool_calls", true},
                                   {"prompt_cache_key", nullptr},
                                   {"reasoning", io::JsonObject{{"effort", nullptr}, {"summary", nullptr}}},
                                   {"safety_identifier", nullptr},
                                   {"service_tier", "default"},
                                   {"text", io::JsonObject{{"format", io::JsonObject{{"type", "text"}}}}},
                                   {"tool_choice", "auto"},
                                   {"tools", io::JsonArray()},
                                   {"truncation", "disabled"},
                                   {"user", nullptr}};
  io::JsonObject out = defaults;
  for (const io::JsonMember& member : defaults.members()) {
    if (body.has(member.key)) out.set(member.key, *body.find(member.key));
  }
  out.set("previous_response_id", nullptr);
  out.set("store", false);
  out.set("seed", plan.ask.sampling.seed);
  out.set("temperature", plan.ask.sampling.temperature);
  out.set("top_p", plan.ask.sampling.top_p);
  out.set("top_logprobs", 0);
  return out;
}

Result<AnswerPlan> read_response_plan(const ServedModel& model, const Body& body) {
  AnswerPlan plan{.chat = true};
  LEVIN_ASSIGN(plan.ask, read_generation(body, model.defaults));
  if (plan.ask.n_choices != 1) return body.refuse("n", "other than 1 is not supported on this route; leave it out");
  LEVIN_ASSIGN(const std::optional<int64_t> limit, body.get_optional<int64_t>("max_output_tokens"));
  if (limit && *limit < 1) return body.refuse("max_output_tokens", fmt::format("is {}, expected at least 1", *limit));
  plan.ask.max_tokens = limit.value_or(plan.ask.max_tokens);
  LEVIN_ASSIGN(const ChatAsk chat, read_responses_chat(body, model.thinking));
  LEVIN_TRY(set_conversation(model, body, chat, &plan));
  if (!limit) fit_limit(model, &plan);
  return plan;
}

}  // namespace

FieldList responses_fields() {
  static constexpr Field kFields[] = {
      {"input", "string|array", "A text, or the items of the conversation", true},
      {"instructions", "string", "The first system message"},
      {"max_output_tokens", "integer", "Maximum number of tokens to generate"},
      {"tools", "array", "Functions that the model may call; tools of other types are ignored"},
      {"tool_choice", "string|object", "none, auto, required, a function, or allowed_tools"},
      {"parallel_tool_calls", "boolean", "Allow several calls in one answer"},
      {"reasoning", "object", "effort: none and minimal switch reasoning off, others on"},
      {"text", "object", "format: the format of the answer"},
      {"chat_template_kwargs", "object", "thinking, enable_thinking, clear_thinking, reasoning_effort"},
      {"include", "array", "Accepted and ignored, except log probabilities, which are refused"},
      {"top_logprobs", "integer", "Only 0 is accepted"},
      {"background", "boolean", "Only false is accepted"},
      {"previous_response_id", "string", "Refused"},
      {"conversation", "string|object", "Refused"},
      {"prompt", "object", "Refused"},
      {"metadata", "object", "Returned in the answer"},
      {"max_tool_calls", "integer", "Returned in the answer"},
      {"prompt_cache_key", "string", "Returned in the answer"},
      {"safety_identifier", "string", "Returned in the answer"},
      {"service_tier", "string", "Returned in the answer"},
      {"truncation", "string", "Returned in the answer; the prompt is never truncated"},
      {"user", "string", "Returned in the answer"},
  };
  return kFields;
}

void handle_responses(const ServedModel& model, const std::shared_ptr<Exchange>& exchange) {
  with_body(model, *exchange, ApiDialect::kOpenAi, [&](const RequestBody& body) -> std::optional<ApiError> {
    Result<AnswerPlan> plan = read_response_plan(model, body.fields());
    if (!plan.ok()) return bad_request(plan.error().message, body.param());
    ResponseFrame frame;
    frame.model = model.name();
    frame.asked = asked_by(body.fields(), *plan);
    std::unique_ptr<AnswerWriter> writer;
    if (plan->ask.stream) {
      writer = std::make_unique<ResponseStream>(std::move(frame), exchange);
    } else {
      writer = std::make_unique<WholeResponse>(std::move(frame), exchange);
    }
    return run_answer(model, exchange, std::move(*plan), std::move(writer));
  });
}

}  // namespace levin::serve
