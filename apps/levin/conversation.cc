#include "apps/levin/conversation.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "apps/levin/progress.h"
#include "arch/load_config.h"
#include "text/stop_strings.h"

namespace levin::app {

Result<ChatModel> ChatModel::load(const EngineOptions& options) {
  return load(options, [](const std::string& warning) { fmt::print(stderr, "warning: {}\n", warning); });
}

Result<ChatModel> ChatModel::load(const EngineOptions& options, const std::function<void(const std::string&)>& warn) {
  ChatModel model;
  LEVIN_ASSIGN(text::Tokenizer tokenizer, text::Tokenizer::load(options.model_folder));
  model.tokenizer = std::make_unique<text::Tokenizer>(std::move(tokenizer));
  LEVIN_ASSIGN(const ParsedConfig parsed,
               load_model_config(options.model_folder, *options.registry, options.overrides));
  LEVIN_ASSIGN(text::ChatFormat format,
               load_chat_format(*parsed.config.family, options.model_folder, *model.tokenizer));
  model.format = std::make_unique<text::ChatFormat>(std::move(format));
  LoadBar bar;
  LEVIN_ASSIGN(model.engine, Engine::load(options, bar.progress()));
  bar.finish();
  for (const std::vector<std::string>& warnings : {model.format->warnings(), model.engine->warnings()}) {
    for (const std::string& warning : warnings) warn(warning);
  }
  return model;
}

namespace {

// Hands the parts of an answer on as they form, up to a stop string in its content, and keeps them.
class AnswerBuilder {
 public:
  AnswerBuilder(Answer& answer, const AnswerStream& stream, const std::vector<std::string>& stop_strings)
      : answer_(answer), stream_(stream), stop_(stop_strings) {}

  void take(const std::vector<text::OutputEvent>& events) {
    for (text::OutputEvent event : events) {
      if (event.kind == text::OutputEvent::Kind::kContent) {
        n_content_bytes_ += event.text.size();
        event.text = stop_.push(event.text);
      } else {
        finish();  // a stop string does not apply after a call
        if (stopped()) return;
      }
      hand_on(event);
      if (stopped()) return;
    }
  }
  void finish() {
    if (!stopped()) hand_on_content(stop_.finish());
  }

  bool stopped() const { return stop_.found(); }
  size_t n_bytes_cut() const { return n_content_bytes_ - answer_.content.size(); }

 private:
  void hand_on_content(const std::string& text) { hand_on({.kind = text::OutputEvent::Kind::kContent, .text = text}); }
  void hand_on(const text::OutputEvent& event) {
    using Kind = text::OutputEvent::Kind;
    if (event.text.empty() && (event.kind == Kind::kContent || event.kind == Kind::kReasoning)) return;
    if (event.kind == Kind::kContent) answer_.content += event.text;
    if (event.kind == Kind::kReasoning) answer_.reasoning += event.text;
    if (event.kind == Kind::kCallBegin) call_ = {.name = event.text, .arguments = {}};
    if (event.kind == Kind::kArguments) call_.arguments += event.text;
    if (event.kind == Kind::kCallEnd) answer_.calls.push_back(call_);
    if (stream_.on_event) stream_.on_event(event);
  }

  Answer& answer_;
  const AnswerStream& stream_;
  text::StopStrings stop_;
  text::ToolCall call_;  // the one being written
  size_t n_content_bytes_ = 0;
};

}  // namespace

Result<Answer> answer_prompt(const ChatModel& model, PromptIds prompt, const GenerationOptions& options,
                             const AnswerStream& stream) {
  Answer answer{.n_prompt_tokens = static_cast<int64_t>(prompt.ids.size())};
  text::ChatOutputParser parser(*model.format, *model.tokenizer, prompt.in_reasoning, prompt.tools);
  AnswerBuilder builder(answer, stream, options.stop_strings);
  GenerateRequest request{
      .prompt = std::move(prompt.ids), .max_tokens = options.max_tokens, .sampling = options.sampling};
  request.logprobs = options.n_top_logprobs.has_value();
  request.n_top_logprobs = static_cast<int>(options.n_top_logprobs.value_or(0));
  if (options.random_seed) request.sampling.seed = fresh_seed();
  answer.seed = request.sampling.seed;
  request.on_token = [&](const TokenEvent& event) {
    builder.take(parser.push(event.token));
    if (builder.stopped()) return Verdict::kStop;
    return stream.interrupted && stream.interrupted() ? Verdict::kCancel : Verdict::kGoOn;
  };
  LEVIN_ASSIGN(answer.generation, model.engine->generate(std::move(request)));
  builder.take(parser.finish());
  builder.finish();
  std::vector<int32_t> ids;
  for (const TokenEvent& event : answer.generation.tokens) ids.push_back(event.token);
  answer.text = model.tokenizer->decode(ids);
  if (builder.stopped()) answer.text.resize(answer.text.size() - std::min(builder.n_bytes_cut(), answer.text.size()));
  return answer;
}

std::vector<text::Message> opening_messages(const ChatSetup& setup) {
  if (setup.system.empty() && setup.tools.empty()) return {};
  return {{.role = text::Role::kSystem, .content = setup.system, .tools = setup.tools}};
}

Conversation::Conversation(const ChatModel& model, const GenerationOptions& options, ChatSetup setup)
    : model_(model), options_(options), setup_(std::move(setup)) {
  clear();
}

void Conversation::clear() {
  messages_ = opening_messages(setup_);
  n_open_calls_ = 0;
}

Result<Answer> Conversation::ask(const std::string& question, const AnswerStream& stream) {
  if (n_open_calls_ > 0) {
    return Error{ErrorKind::kUsage,
                 fmt::format("{} call{} of the last answer wait{} for a result; supply it with /result TEXT, or /clear",
                             n_open_calls_, n_open_calls_ == 1 ? "" : "s", n_open_calls_ == 1 ? "s" : "")};
  }
  messages_.push_back({.role = text::Role::kUser, .content = question});
  return answer_last(stream);
}

Result<Answer> Conversation::give_result(const std::string& result, const AnswerStream& stream) {
  if (n_open_calls_ == 0) return Error{ErrorKind::kUsage, "/result: no call of the last answer waits for a result"};
  messages_.push_back({.role = text::Role::kTool, .content = result});
  if (--n_open_calls_ > 0) return Answer();
  return answer_last(stream);
}

Result<Answer> Conversation::answer_last(const AnswerStream& stream) {
  Result<Answer> answer = [&]() -> Result<Answer> {
    LEVIN_ASSIGN(const std::vector<text::Segment> segments,
                 model_.format->render({.messages = messages_, .thinking = setup_.thinking}));
    LEVIN_ASSIGN(std::vector<int32_t> ids, model_.tokenizer->encode(segments));
    return answer_prompt(model_, {.ids = std::move(ids), .in_reasoning = setup_.thinking, .tools = setup_.tools},
                         options_, stream);
  }();
  if (!answer.ok()) {
    if (messages_.back().role == text::Role::kTool) ++n_open_calls_;
    messages_.pop_back();
    return answer;
  }
  messages_.push_back({.role = text::Role::kAssistant,
                       .content = answer->content,
                       .reasoning = answer->reasoning,
                       .tool_calls = answer->calls});
  n_open_calls_ = answer->calls.size();
  return answer;
}

}  // namespace levin::app
