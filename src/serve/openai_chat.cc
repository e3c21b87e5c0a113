#include "serve/openai_chat.h"

#include <fmt/core.h>

#include <ctime>
#include <utility>

#include "serve/answer.h"
#include "serve/chat_messages.h"
#include "serve/openai_json.h"
#include "serve/request_body.h"

namespace levin::serve {
namespace {

// What all chunks and the whole answer carry.
struct ChatFrame {
  std::string id = random_id("chatcmpl-");
  int64_t created_s = std::time(nullptr);
  const ServedModel* model = nullptr;
  uint64_t seed = 0;
  bool logprobs = false;

  io::JsonObject object(std::string_view type) const {
    return {{"id", id}, {"object", type}, {"created", created_s}, {"model", model->name()}};
  }
  void set_reasoning(io::JsonObject* message, io::JsonValue reasoning) const {
    if (model->reasoning_field != ReasoningField::kReasoning) message->set("reasoning_content", reasoning);
    if (model->reasoning_field != ReasoningField::kReasoningContent) message->set("reasoning", std::move(reasoning));
  }
};

io::JsonObject call_json(const AnswerCall& call) {
  return {{"id", call.id},
          {"type", "function"},
          {"function", io::JsonObject{{"name", call.name}, {"arguments", call.arguments}}}};
}

// ---- the whole answer at once ------------------------------------------------------------------------------------

class WholeChat final : public AnswerWriter {
 public:
  WholeChat(ChatFrame frame, std::shared_ptr<Exchange> exchange)
      : frame_(std::move(frame)), exchange_(std::move(exchange)) {}

  void add(const Choice&, const Batch&) override {}
  void end(std::span<const Choice> choices, const Usage& usage) override {
    io::JsonArray list;
    for (const Choice& choice : choices) list.emplace_back(choice_json(choice));
    io::JsonObject answer = frame_.object("chat.completion");
    answer.set("choices", std::move(list));
    answer.set("usage", usage_json(usage));
    answer.set("seed", frame_.seed);
    answer.set("system_fingerprint", nullptr);
    exchange_->respond({.body = io::dump_json(answer)});
  }
  void fail(const ApiError& error) override { exchange_->respond(error_response(error, ApiDialect::kOpenAi)); }

 private:
  io::JsonObject choice_json(const Choice& choice) const {
    io::JsonArray calls;
    for (const AnswerCall& call : choice.calls) {
      if (call.complete) calls.emplace_back(call_json(call));
    }
    const bool only_calls = choice.content.empty() && !calls.empty();
    io::JsonObject message = {{"role", "assistant"},
                              {"content", only_calls ? io::JsonValue() : io::JsonValue(choice.content)},
                              {"refusal", nullptr}};
    frame_.set_reasoning(&message, choice.reasoning.empty() ? io::JsonValue() : io::JsonValue(choice.reasoning));
    if (!calls.empty()) message.set("tool_calls", std::move(calls));
    io::JsonValue logprobs;
    if (frame_.logprobs) {
      logprobs =
          io::JsonObject{{"content", chat_logprobs(*frame_.model->tokenizer, choice.tokens)}, {"refusal", nullptr}};
    }
    return {{"index", choice.index},
            {"message", std::move(message)},
            {"logprobs", std::move(logprobs)},
            {"finish_reason", openai_finish_reason(choice)},
            {"stop_reason", stop_reason_json(choice)}};
  }

  ChatFrame frame_;
  std::shared_ptr<Exchange> exchange_;
};

// ---- chunk by chunk ----------------------------------------------------------------------------------------------

class ChatStream final : public AnswerWriter {
 public:
  ChatStream(ChatFrame frame, std::shared_ptr<Exchange> exchange, const AnswerPlan& plan)
      : frame_(std::move(frame)),
        exchange_(std::move(exchange)),
        n_choices_(static_cast<int>(plan.ask.n_choices)),
        include_usage_(plan.ask.include_usage),
        continuous_usage_(plan.ask.continuous_usage),
        running_usage_(plan) {}

  void begin() override {
    exchange_->begin_stream(sse_head());
    for (int i = 0; i < n_choices_; ++i) send(i, {{"role", "assistant"}, {"content", ""}}, nullptr, {});
  }

  void add(const Choice& choice, const Batch& batch) override {
    io::JsonValue logprobs;
    if (frame_.logprobs && !batch.tokens.empty()) {
      logprobs =
          io::JsonObject{{"content", chat_logprobs(*frame_.model->tokenizer, batch.tokens)}, {"refusal", nullptr}};
    }
    running_usage_.count(choice);
    for (io::JsonObject& delta : deltas(choice, batch.events)) {
      send(choice.index, std::move(delta), std::exchange(logprobs, nullptr), {});
    }
    if (!logprobs.is_null()) send(choice.index, {}, std::move(logprobs), {});  // tokens that show nothing yet
    if (choice.over) send(choice.index, {}, nullptr, &choice);
  }

  void end(std::span<const Choice>, const Usage& usage) override {
    if (include_usage_) {
      io::JsonObject chunk = frame_.object("chat.completion.chunk");
      chunk.set("choices", io::JsonArray());
      chunk.set("usage", usage_json(usage));
      exchange_->send(sse(chunk));
    }
    exchange_->send(kSseDone);
    exchange_->end();
  }
  void fail(const ApiError& error) override {
    exchange_->send(sse(error_body(error, ApiDialect::kOpenAi)));
    exchange_->end();
  }

 private:
  // Neighbouring events of a kind together; each call's pieces by themselves, as clients expect them.
  std::vector<io::JsonObject> deltas(const Choice& choice, std::span<const text::OutputEvent> events) {
    using Kind = text::OutputEvent::Kind;
    std::vector<io::JsonObject> out;
    for (size_t i = 0; i < events.size();) {
      std::string text = events[i].text;
      size_t next = i + 1;
      const bool joins = events[i].kind != Kind::kCallBegin;
      while (joins && next < events.size() && events[next].kind == events[i].kind &&
             events[next].call == events[i].call) {
        text += events[next++].text;
      }
      switch (events[i].kind) {
        case Kind::kReasoning:
          frame_.set_reasoning(&out.emplace_back(), std::move(text));
          break;
        case Kind::kContent:
          out.push_back({{"content", std::move(text)}});
          break;
        case Kind::kCallBegin:
          out.push_back(call_delta(events[i].call, &choice.calls[static_cast<size_t>(events[i].call)], ""));
          break;
        case Kind::kArguments:
          out.push_back(call_delta(events[i].call, nullptr, text));
          break;
        case Kind::kCallEnd:
        case Kind::kCallBroken:
          break;
      }
      i = next;
    }
    return out;
  }

  // The first piece names the call, the others only its place.
  static io::JsonObject call_delta(int index, const AnswerCall* begun, const std::string& arguments) {
    io::JsonObject entry = {{"index", index}};
    io::JsonObject function;
    if (begun != nullptr) {
      entry.set("id", begun->id);
      entry.set("type", "function");
      function.set("name", begun->name);
    }
    function.set("arguments", arguments);
    entry.set("function", std::move(function));
    return {{"tool_calls", io::JsonArray{std::move(entry)}}};
  }

  void send(int index, io::JsonObject delta, io::JsonValue logprobs, const Choice* over) {
    io::JsonObject choice = {
        {"index", index},
        {"delta", std::move(delta)},
        {"logprobs", std::move(logprobs)},
        {"finish_reason", over != nullptr ? io::JsonValue(openai_finish_reason(*over)) : io::JsonValue()}};
    if (over != nullptr) choice.set("stop_reason", stop_reason_json(*over));
    io::JsonObject chunk = frame_.object("chat.completion.chunk");
    chunk.set("choices", io::JsonArray{std::move(choice)});
    if (over != nullptr) chunk.set("seed", frame_.seed);
    if (continuous_usage_) {
      chunk.set("usage", usage_json(running_usage_.so_far()));
    } else if (include_usage_) {
      chunk.set("usage", nullptr);
    }
    exchange_->send(sse(chunk));
  }

  ChatFrame frame_;
  std::shared_ptr<Exchange> exchange_;
  int n_choices_;
  bool include_usage_, continuous_usage_;
  RunningUsage running_usage_;
};

// ---- the request -------------------------------------------------------------------------------------------------

Result<AnswerPlan> read_chat_plan(const ServedModel& model, const Body& body) {
  AnswerPlan plan{.chat = true};
  LEVIN_ASSIGN(plan.ask, read_generation(body, model.defaults));
  LEVIN_ASSIGN(const bool echo, body.get_or("echo", false));
  if (echo) return body.refuse("echo", "is not supported on this route; leave it out");
  LEVIN_ASSIGN(const std::optional<int64_t> old_limit, body.get_optional<int64_t>("max_tokens"));
  LEVIN_ASSIGN(const std::optional<int64_t> limit, body.get_optional<int64_t>("max_completion_tokens"));
  const std::optional<int64_t> chosen = limit ? limit : old_limit;
  if (chosen && *chosen < 1) {
    return body.refuse(limit ? "max_completion_tokens" : "max_tokens",
                       fmt::format("is {}, expected at least 1", *chosen));
  }
  plan.ask.max_tokens = chosen.value_or(plan.ask.max_tokens);
  LEVIN_ASSIGN(plan.ask.logprobs, body.get_or("logprobs", false));
  LEVIN_ASSIGN(const int64_t n_top, body.get_or("top_logprobs", int64_t{0}));
  if (n_top < 0 || n_top > kMaxTopLogprobs) {
    return body.refuse("top_logprobs", fmt::format("is {}, expected 0 to {}", n_top, kMaxTopLogprobs));
  }
  if (n_top > 0 && !plan.ask.logprobs) return body.refuse("top_logprobs", "needs \"logprobs\": true");
  plan.ask.n_top_logprobs = static_cast<int>(n_top);
  LEVIN_ASSIGN(const ChatAsk chat, read_chat(body, model.thinking));
  LEVIN_TRY(set_conversation(model, body, chat, &plan));
  if (!chosen) fit_limit(model, &plan);
  return plan;
}

}  // namespace

FieldList chat_completion_fields() {
  static constexpr Field kFields[] = {
      {"max_tokens", "integer", "Maximum number of tokens to generate"},
      {"max_completion_tokens", "integer", "The same; overrides max_tokens"},
      {"logprobs", "boolean", "Return the log probability of each token"},
      {"top_logprobs", "integer", "And of this many of the most likely tokens, 0 to 20"},
      {"echo", "boolean", "Only false is accepted"},
  };
  return kFields;
}

void handle_chat_completions(const ServedModel& model, const std::shared_ptr<Exchange>& exchange) {
  const auto answer = [&](const RequestBody& body) -> std::optional<ApiError> {
    Result<AnswerPlan> plan = read_chat_plan(model, body.fields());
    if (!plan.ok()) return bad_request(plan.error().message, body.param());
    ChatFrame frame{.model = &model, .seed = plan->ask.sampling.seed, .logprobs = plan->ask.logprobs};
    std::unique_ptr<AnswerWriter> writer;
    if (plan->ask.stream) {
      writer = std::make_unique<ChatStream>(std::move(frame), exchange, *plan);
    } else {
      writer = std::make_unique<WholeChat>(std::move(frame), exchange);
    }
    return run_answer(model, exchange, std::move(*plan), std::move(writer));
  };
  with_body(model, *exchange, ApiDialect::kOpenAi, answer);
}

}  // namespace levin::serve
