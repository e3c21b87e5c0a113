#include "serve/anthropic_messages.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "serve/answer.h"
#include "serve/anthropic_chat.h"
#include "serve/openai_json.h"
#include "serve/request_body.h"

namespace levin::serve {
namespace {

std::string_view stop_reason(const Choice& choice) {
  if (choice.matched_stop) return "stop_sequence";
  if (choice.finish_reason == FinishReason::kLength) return "max_tokens";
  return choice.called() ? "tool_use" : "end_turn";
}

io::JsonValue matched_stop_json(const Choice& choice) {
  return choice.matched_stop ? io::JsonValue(*choice.matched_stop) : io::JsonValue();
}

// Tokens that were found are counted apart from those that had to be computed.
io::JsonObject messages_usage(const Usage& usage) {
  return {{"input_tokens", usage.n_prompt - usage.n_found},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", usage.n_found},
          {"output_tokens", usage.n_answer}};
}

// The arguments of a complete call are an object; what a model wrote instead is shown as it is.
io::JsonValue input_of(const AnswerCall& call) {
  Result<io::JsonValue> value =
      io::parse_json(call.arguments, "arguments", {.duplicates = io::DuplicateKeys::kLastWins});
  return value.ok() ? std::move(*value) : io::JsonValue(io::JsonObject());
}

std::string tool_use_id(const AnswerCall& call) { return "toolu_" + call.id.substr(call.id.find('_') + 1); }

// What a message carries from its beginning.
struct MessageFrame {
  std::string id = random_id("msg_");
  const ServedModel* model = nullptr;
  uint64_t seed = 0;
};

io::JsonObject message_json(const MessageFrame& frame, io::JsonArray content, const Choice* over, const Usage& usage) {
  return {{"id", frame.id},
          {"type", "message"},
          {"role", "assistant"},
          {"model", frame.model->name()},
          {"content", std::move(content)},
          {"stop_reason", over != nullptr ? io::JsonValue(stop_reason(*over)) : io::JsonValue()},
          {"stop_sequence", over != nullptr ? matched_stop_json(*over) : io::JsonValue()},
          {"usage", messages_usage(usage)},
          {"seed", frame.seed}};
}

constexpr std::string_view kSignature = "levin";  // clients send it back; nothing is checked

class WholeMessage final : public AnswerWriter {
 public:
  WholeMessage(MessageFrame frame, std::shared_ptr<Exchange> exchange)
      : frame_(std::move(frame)), exchange_(std::move(exchange)) {}

  void add(const Choice&, const Batch&) override {}
  void end(std::span<const Choice> choices, const Usage& usage) override {
    const Choice& choice = choices.front();
    io::JsonArray content;
    if (!choice.reasoning.empty()) {
      content.emplace_back(
          io::JsonObject{{"type", "thinking"}, {"thinking", choice.reasoning}, {"signature", kSignature}});
    }
    if (!choice.content.empty()) content.emplace_back(io::JsonObject{{"type", "text"}, {"text", choice.content}});
    for (const AnswerCall& call : choice.calls) {
      if (!call.complete) continue;
      content.emplace_back(io::JsonObject{
          {"type", "tool_use"}, {"id", tool_use_id(call)}, {"name", call.name}, {"input", input_of(call)}});
    }
    exchange_->respond({.body = io::dump_json(message_json(frame_, std::move(content), &choice, usage))});
  }
  void fail(const ApiError& error) override { exchange_->respond(error_response(error, ApiDialect::kAnthropic)); }

 private:
  MessageFrame frame_;
  std::shared_ptr<Exchange> exchange_;
};

// Blocks one after the other: each is begun, grows, and is closed before the next.
class MessageStream final : public AnswerWriter {
 public:
  MessageStream(MessageFrame frame, std::shared_ptr<Exchange> exchange, int64_t n_prompt)
      : frame_(std::move(frame)), exchange_(std::move(exchange)), n_prompt_(n_prompt) {}

  void begin() override {
    exchange_->begin_stream(sse_head());
    send("message_start", {{"message", message_json(frame_, {}, nullptr, {.n_prompt = n_prompt_})}});
    send("ping", {});
  }

  void add(const Choice& choice, const Batch& batch) override {
    using Kind = text::OutputEvent::Kind;
    for (const text::OutputEvent& event : batch.events) {
      switch (event.kind) {
        case Kind::kReasoning:
          open(Block::kThinking, {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}});
          delta({{"type", "thinking_delta"}, {"thinking", event.text}});
          break;
        case Kind::kContent:
          open(Block::kText, {{"type", "text"}, {"text", ""}});
          delta({{"type", "text_delta"}, {"text", event.text}});
          break;
        case Kind::kCallBegin: {
          const AnswerCall& call = choice.calls[static_cast<size_t>(event.call)];
          close();
          open(Block::kCall,
               {{"type", "tool_use"}, {"id", tool_use_id(call)}, {"name", call.name}, {"input", io::JsonObject()}});
          break;
        }
        case Kind::kArguments:
          delta({{"type", "input_json_delta"}, {"partial_json", event.text}});
          break;
        case Kind::kCallEnd:
        case Kind::kCallBroken:
          close();
          break;
      }
    }
  }

  void end(std::span<const Choice> choices, const Usage& usage) override {
    close();
    const Choice& choice = choices.front();
    send("message_delta",
         {{"delta", io::JsonObject{{"stop_reason", stop_reason(choice)}, {"stop_sequence", matched_stop_json(choice)}}},
          {"usage", messages_usage(usage)}});
    send("message_stop", {});
    exchange_->end();
  }
  void fail(const ApiError& error) override {
    exchange_->send(sse(error_body(error, ApiDialect::kAnthropic), "error"));
    exchange_->end();
  }

 private:
  enum class Block { kNone, kThinking, kText, kCall };

  void send(std::string_view type, io::JsonObject more) {
    io::JsonObject event = {{"type", type}};
    for (const io::JsonMember& member : more.members()) event.set(member.key, member.value);
    exchange_->send(sse(event, type));
  }
  void open(Block block, io::JsonObject first) {
    if (block_ == block) return;
    close();
    block_ = block;
    send("content_block_start", {{"index", index_}, {"content_block", std::move(first)}});
  }
  void delta(io::JsonObject what) { send("content_block_delta", {{"index", index_}, {"delta", std::move(what)}}); }
  void close() {
    if (block_ == Block::kNone) return;
    if (block_ == Block::kThinking) delta({{"type", "signature_delta"}, {"signature", kSignature}});
    send("content_block_stop", {{"index", index_}});
    ++index_;
    block_ = Block::kNone;
  }

  MessageFrame frame_;
  std::shared_ptr<Exchange> exchange_;
  int64_t n_prompt_;
  Block block_ = Block::kNone;
  int index_ = 0;
};

// ---- the request -------------------------------------------------------------------------------------------------

Status read_conversation(const ServedModel& model, const Body& body, AnswerPlan* plan) {
  LEVIN_ASSIGN(const ChatAsk chat, read_anthropic_chat(body, model.thinking));
  return set_conversation(model, body, chat, plan);
}

Result<AnswerPlan> read_message_plan(const ServedModel& model, const Body& body) {
  AnswerPlan plan{.chat = true};
  LEVIN_ASSIGN(plan.ask, read_generation(body, model.defaults));
  if (body.has("stop_sequences")) {
    LEVIN_ASSIGN(plan.ask.text.stop, read_strings(body, "stop_sequences"));
  }
  LEVIN_ASSIGN(plan.ask.max_tokens, body.get<int64_t>("max_tokens"));
  if (plan.ask.max_tokens < 1)
    return body.refuse("max_tokens", fmt::format("is {}, expected at least 1", plan.ask.max_tokens));
  if (plan.ask.n_choices != 1) return body.refuse("n", "other than 1 is not supported on this route; leave it out");
  LEVIN_TRY(read_conversation(model, body, &plan));
  // clients of this dialect ask for far more than they need, whatever the context
  fit_limit(model, &plan);
  return plan;
}

}  // namespace

FieldList messages_fields() {
  static constexpr Field kFields[] = {
      {"max_tokens", "integer", "Maximum number of tokens to generate", true},
      {"stop_sequences", "array", "Texts that end the answer"},
  };
  return kFields;
}

void handle_messages(const ServedModel& model, const std::shared_ptr<Exchange>& exchange) {
  with_body(model, *exchange, ApiDialect::kAnthropic, [&](const RequestBody& body) -> std::optional<ApiError> {
    Result<AnswerPlan> plan = read_message_plan(model, body.fields());
    if (!plan.ok()) return bad_request(plan.error().message, body.param());
    MessageFrame frame{.model = &model, .seed = plan->ask.sampling.seed};
    std::unique_ptr<AnswerWriter> writer;
    if (plan->ask.stream) {
      writer = std::make_unique<MessageStream>(std::move(frame), exchange, std::ssize(plan->prompts.front()));
    } else {
      writer = std::make_unique<WholeMessage>(std::move(frame), exchange);
    }
    return run_answer(model, exchange, std::move(*plan), std::move(writer));
  });
}

void handle_count_tokens(const ServedModel& model, const std::shared_ptr<Exchange>& exchange) {
  with_body(model, *exchange, ApiDialect::kAnthropic, [&](const RequestBody& body) -> std::optional<ApiError> {
    AnswerPlan plan;
    const Status status = read_conversation(model, body.fields(), &plan);
    if (!status.ok()) return bad_request(status.error().message, body.param());
    exchange->respond({.body = io::dump_json(io::JsonObject{{"input_tokens", plan.prompts.front().size()}})});
    return std::nullopt;
  });
}

}  // namespace levin::serve
