#include "serve/answer.h"

#include <algorithm>
#include <mutex>
#include <utility>

namespace levin::serve {
namespace {

void add_speculation(const SpeculationStats& of_choice, SpeculationStats* sum) {
  sum->n_verify_passes += of_choice.n_verify_passes;
  sum->n_drafted += of_choice.n_drafted;
  sum->n_accepted += of_choice.n_accepted;
  sum->n_kept += of_choice.n_kept;
  const std::vector<int64_t>& accepted = of_choice.accepted_per_position;
  sum->accepted_per_position.resize(std::max(sum->accepted_per_position.size(), accepted.size()));
  for (size_t i = 0; i < accepted.size(); ++i) sum->accepted_per_position[i] += accepted[i];
}

void add_events(Choice& choice, const std::vector<text::OutputEvent>& events) {
  using Kind = text::OutputEvent::Kind;
  for (const text::OutputEvent& event : events) {
    switch (event.kind) {
      case Kind::kReasoning:
        choice.reasoning += event.text;
        break;
      case Kind::kContent:
        choice.content += event.text;
        break;
      case Kind::kCallBegin:
        choice.calls.push_back({.id = random_id("call_"), .name = event.text});
        break;
      case Kind::kArguments:
        choice.calls.back().arguments += event.text;
        break;
      case Kind::kCallEnd:
        choice.calls.back().complete = true;
        break;
      case Kind::kCallBroken:
        break;
    }
  }
}

ApiError as_api_error(const Batch& failed) {
  const Error& error = *failed.error;
  if (failed.shutting_down) return shutting_down();
  if (error.kind == ErrorKind::kNoDevice) return device_lost();
  if (error.kind == ErrorKind::kUsage) return bad_request(error.message, field_of(error.message));
  return engine_failed(error);
}

class Answer : public std::enable_shared_from_this<Answer> {
 public:
  Answer(const ServedModel& model, std::shared_ptr<Exchange> exchange, AnswerPlan plan,
         std::unique_ptr<AnswerWriter> writer)
      : model_(model), exchange_(std::move(exchange)), plan_(std::move(plan)), writer_(std::move(writer)) {}

  void run() {
    for (size_t p = 0; p < plan_.prompts.size(); ++p) {
      for (int64_t n = 0; n < plan_.ask.n_choices; ++n) {
        choices_.push_back({.index = static_cast<int>(choices_.size()), .prompt = p});
      }
    }
    writer_->begin();
    for (size_t i = 0; i < choices_.size(); ++i) add_ticket(submit(i));
    exchange_->on_disconnect([service = model_.service, tickets = tickets_] {
      for (const Ticket ticket : tickets) service->cancel(ticket);
    });
  }

 private:
  // One choice may have failed before the others are submitted.
  void add_ticket(Ticket ticket) {
    const std::lock_guard lock(mutex_);
    tickets_.push_back(ticket);
    if (given_up_) model_.service->cancel(ticket);
  }
  // Nobody will read the choices that still run.
  void give_up() {
    const std::lock_guard lock(mutex_);
    given_up_ = true;
    for (const Ticket ticket : tickets_) model_.service->cancel(ticket);
  }

  Ticket submit(size_t i) {
    GenerateRequest request{.prompt = plan_.prompts[choices_[i].prompt],
                            .max_tokens = plan_.ask.max_tokens,
                            .sampling = plan_.ask.sampling,
                            .structure = plan_.structure,
                            .logprobs = plan_.ask.logprobs,
                            .n_top_logprobs = plan_.ask.n_top_logprobs,
                            .prompt_logprobs = plan_.prompt_logprobs};
    request.sampling.choice = static_cast<uint32_t>(static_cast<int64_t>(i) % plan_.ask.n_choices);
    request.priority = plan_.ask.priority;
    auto text = plan_.chat ? std::make_unique<text::AnswerText>(*model_.tokenizer, *model_.format, plan_.in_reasoning,
                                                                plan_.tools, plan_.ask.text)
                           : std::make_unique<text::AnswerText>(*model_.tokenizer, plan_.ask.text);
    return model_.service->submit(std::move(request), std::move(text),
                                  [self = shared_from_this(), i](Batch& batch) { self->take(i, batch); });
  }

  void take(size_t i, Batch& batch) {
    if (failed_ || n_over_ == choices_.size()) return;  // what was given up may end after all, and the other way round
    if (batch.error) {
      failed_ = true;
      give_up();
      model_.metrics->add_refusal();
      writer_->fail(as_api_error(batch));
      return;
    }
    Choice& choice = choices_[i];
    add_events(choice, batch.events);
    for (const TokenEvent& event : batch.tokens) {  // a stream is done with their log probabilities after this batch
      choice.tokens.push_back(plan_.ask.stream ? TokenEvent{.token = event.token} : event);
    }
    if (!batch.prompt_logprobs.empty()) choice.prompt_logprobs = std::move(batch.prompt_logprobs);
    if (batch.done) close(choice, batch);
    writer_->add(choice, batch);
    if (!choice.over || ++n_over_ < choices_.size()) return;
    writer_->end(choices_, usage_of(choices_, plan_.prompts));
  }

  void close(Choice& choice, Batch& batch) {
    choice.over = true;
    choice.finish_reason = batch.done->finish_reason;
    choice.matched_stop = batch.matched_stop;
    // one that the limit decided: it had begun within a longer one, which can no longer come
    if (choice.matched_stop && choice.finish_reason == FinishReason::kLength) {
      choice.finish_reason = FinishReason::kStop;
    }
    choice.n_reasoning_tokens = batch.n_reasoning_tokens;
    choice.n_hit_tokens = batch.done->n_hit_tokens;
    choice.speculation = batch.done->speculation;
    const std::vector<int32_t>& own = plan_.ask.own_stop_tokens;
    if (choice.finish_reason == FinishReason::kStop && !choice.matched_stop && !choice.tokens.empty()) {
      const int32_t last = choice.tokens.back().token;
      if (std::find(own.begin(), own.end(), last) != own.end()) choice.stop_token = last;
    }
    if (batch.n_faults > 0) model_.metrics->add_parse_faults(batch.n_faults);
  }

  const ServedModel& model_;
  const std::shared_ptr<Exchange> exchange_;
  const AnswerPlan plan_;
  const std::unique_ptr<AnswerWriter> writer_;
  std::vector<Choice> choices_;
  size_t n_over_ = 0;
  bool failed_ = false;
  std::mutex mutex_;  // of what follows
  std::vector<Ticket> tickets_;
  bool given_up_ = false;
};

// Checks, and takes the places that the requests need.
std::optional<ApiError> admit_plan(const ServedModel& model, const AnswerPlan& plan) {
  const int64_t n_prompts = std::ssize(plan.prompts);
  const int64_t n_requests = n_prompts * plan.ask.n_choices;
  if (n_requests > model.max_queued) {  // even of an empty queue: to try again would be in vain
    return too_many_answers({.n_prompts = n_prompts, .n_choices = plan.ask.n_choices, .n_most = model.max_queued});
  }
  for (const std::vector<int32_t>& prompt : plan.prompts) {
    const int64_t n_prompt = std::ssize(prompt);
    // as a difference: a sum with what a client wrote can leave the range of the type
    if (std::max<int64_t>(plan.ask.max_tokens, 1) > model.n_context() - n_prompt) {
      return prompt_too_long({.n_prompt = n_prompt, .n_answer = plan.ask.max_tokens, .n_context = model.n_context()});
    }
    const Status status =
        model.service->engine().check({.prompt = prompt, .sampling = plan.ask.sampling, .structure = plan.structure});
    if (!status.ok()) return bad_request(status.error().message, field_of(status.error().message));
  }
  if (std::optional<ApiError> refusal = engine_refusal(model)) return refusal;
  if (!model.service->reserve(n_requests, model.max_queued)) return queue_full();
  return std::nullopt;
}

}  // namespace

std::optional<ApiError> engine_refusal(const ServedModel& model) {
  if (model.service->lost()) return device_lost();
  if (model.service->stuck()) return engine_stuck();
  return std::nullopt;
}

bool Choice::called() const {
  return std::any_of(calls.begin(), calls.end(), [](const AnswerCall& call) { return call.complete; });
}

std::optional<ApiError> run_answer(const ServedModel& model, std::shared_ptr<Exchange> exchange, AnswerPlan plan,
                                   std::unique_ptr<AnswerWriter> writer) {
  if (std::optional<ApiError> error = admit_plan(model, plan)) return error;
  std::make_shared<Answer>(model, std::move(exchange), std::move(plan), std::move(writer))->run();
  return std::nullopt;
}

void fit_limit(const ServedModel& model, AnswerPlan* plan) {
  for (const std::vector<int32_t>& prompt : plan->prompts) {
    const int64_t room = model.n_context() - std::ssize(prompt);
    if (room > 0) plan->ask.max_tokens = std::min(plan->ask.max_tokens, room);
  }
}

Status set_conversation(const ServedModel& model, const Body& body, const ChatAsk& chat, AnswerPlan* plan) {
  plan->in_reasoning = chat.request.begins_in_reasoning();
  plan->tools = chat.tools;
  LEVIN_ASSIGN(const std::vector<text::Segment> segments, model.format->render(chat.request));
  LEVIN_ASSIGN(std::vector<int32_t> prompt, model.tokenizer->encode(segments));
  plan->prompts.push_back(std::move(prompt));
  const bool free = chat.form.kind == TextForm::Kind::kFree || chat.calls.required;
  Result<std::optional<grammar::Structure>> structure = model.forms->make(
      {.text = chat.form, .calls = chat.calls, .tools = chat.tools, .in_reasoning = plan->in_reasoning});
  if (!structure.ok()) {
    return body.refuse(free ? "tools" : chat.form.field, "cannot be used: " + structure.error().message);
  }
  plan->structure = std::move(*structure);
  return {};
}

Status set_form(const ServedModel& model, const Body& body, const TextForm& form, AnswerPlan* plan) {
  Result<std::optional<grammar::Structure>> structure = model.forms->make({.text = form});
  if (!structure.ok()) return body.refuse(form.field, "cannot be used: " + structure.error().message);
  plan->structure = std::move(*structure);
  return {};
}

Usage usage_of(std::span<const Choice> choices, std::span<const std::vector<int32_t>> prompts) {
  Usage usage;
  for (const std::vector<int32_t>& prompt : prompts) usage.n_prompt += std::ssize(prompt);
  for (const Choice& choice : choices) {
    usage.n_answer += std::ssize(choice.tokens);
    usage.n_reasoning += choice.n_reasoning_tokens;
    add_speculation(choice.speculation, &usage.speculation);
    // the prompt of several choices counts once, as the first of them found it
    if (choice.index == 0 || choice.prompt != choices[choice.index - 1].prompt) usage.n_found += choice.n_hit_tokens;
  }
  return usage;
}

}  // namespace levin::serve
