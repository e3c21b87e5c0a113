#include "serve/openai_completions.h"

#include <fmt/core.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "serve/answer.h"
#include "serve/openai_json.h"
#include "serve/request_body.h"

namespace levin::serve {
namespace {

constexpr int64_t kDefaultMaxTokens = 16;  // OpenAI's
constexpr size_t kMaxPrompts = 1024;

struct CompletionAsk {
  AnswerPlan plan;
  bool echo = false;
  bool drop_answer = false;  // max_tokens 0: only the prompt is wanted
  bool token_ids_as_text = false;
  std::vector<std::string> prompt_texts;  // with echo
};

// ---- log probabilities, the old shape: parallel arrays -------------------------------------------------------------

class LogprobArrays {
 public:
  // shows_special: special tokens of the answer stand in its text; those of a prompt never do.
  LogprobArrays(const text::Tokenizer& tokenizer, bool as_ids, bool shows_special)
      : tokenizer_(tokenizer), as_ids_(as_ids), shows_special_(shows_special) {}

  // logprobs nullptr: the first token of a prompt has none.
  void add(int32_t token, const RowLogprobs* logprobs, bool of_prompt = false) {
    const std::string name = name_of(token);
    text_offset_.emplace_back(n_characters_);
    if (!tokenizer_.is_special(token) || (shows_special_ && !of_prompt)) {
      const std::string text = token_text(tokenizer_, token);
      n_characters_ += std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; });
    }
    tokens_.emplace_back(name);
    if (logprobs == nullptr) {
      token_logprobs_.emplace_back(nullptr);
      top_logprobs_.emplace_back(nullptr);
      return;
    }
    token_logprobs_.emplace_back(finite_logprob(logprobs->chosen.logprob));
    io::JsonObject top;
    for (const TokenLogprob& entry : logprobs->top) {
      const std::string key = name_of(entry.token);
      if (!top.contains(key)) top.set(key, finite_logprob(entry.logprob));  // of two that read alike the likelier
    }
    if (!top.contains(name)) top.set(name, finite_logprob(logprobs->chosen.logprob));
    top_logprobs_.emplace_back(std::move(top));
  }
  void start_at(int64_t n_characters) { n_characters_ = n_characters; }
  int64_t n_characters() const { return n_characters_; }
  io::JsonObject take() {
    return {{"tokens", std::move(tokens_)},
            {"token_logprobs", std::move(token_logprobs_)},
            {"top_logprobs", std::move(top_logprobs_)},
            {"text_offset", std::move(text_offset_)}};
  }

 private:
  std::string name_of(int32_t token) const {
    return as_ids_ ? fmt::format("token_id:{}", token) : token_text(tokenizer_, token);
  }

  const text::Tokenizer& tokenizer_;
  bool as_ids_, shows_special_;
  int64_t n_characters_ = 0;
  io::JsonArray tokens_, token_logprobs_, top_logprobs_, text_offset_;
};

// ---- writers -----------------------------------------------------------------------------------------------------

class CompletionWriter : public AnswerWriter {
 public:
  CompletionWriter(const ServedModel& model, std::shared_ptr<Exchange> exchange, CompletionAsk ask)
      : model_(model), exchange_(std::move(exchange)), ask_(std::move(ask)) {}

 protected:
  io::JsonObject frame() const {
    return {{"id", id_}, {"object", "text_completion"}, {"created", created_s_}, {"model", model_.name()}};
  }
  LogprobArrays arrays() const { return {*model_.tokenizer, ask_.token_ids_as_text, !ask_.plan.ask.text.skip_special}; }
  void add_prompt(LogprobArrays& arrays, const Choice& choice) const {
    const std::vector<int32_t>& prompt = ask_.plan.prompts[choice.prompt];
    for (size_t i = 0; i < prompt.size(); ++i) {
      const bool known = i > 0 && i <= choice.prompt_logprobs.size();  // a cancelled answer may have none
      arrays.add(prompt[i], known ? &choice.prompt_logprobs[i - 1] : nullptr, true);
    }
  }
  io::JsonObject choice_json(const Choice& choice, std::string text, io::JsonValue logprobs, bool over) const {
    io::JsonObject out = {{"index", choice.index},
                          {"text", std::move(text)},
                          {"logprobs", std::move(logprobs)},
                          {"finish_reason", over ? io::JsonValue(openai_finish_reason(choice)) : io::JsonValue()}};
    if (over) out.set("stop_reason", stop_reason_json(choice));
    return out;
  }
  bool logprobs() const { return ask_.plan.ask.logprobs; }
  // The token that is generated where only the prompt is wanted is nobody's.
  io::JsonObject usage_of(Usage usage) const {
    if (ask_.drop_answer) usage.n_answer = 0;
    return usage_json(usage);
  }

  const ServedModel& model_;
  std::shared_ptr<Exchange> exchange_;
  const CompletionAsk ask_;

 private:
  std::string id_ = random_id("cmpl-");
  int64_t created_s_ = std::time(nullptr);
};

class WholeCompletion final : public CompletionWriter {
 public:
  using CompletionWriter::CompletionWriter;

  void add(const Choice&, const Batch&) override {}
  void end(std::span<const Choice> choices, const Usage& usage) override {
    io::JsonArray list;
    for (const Choice& choice : choices) {
      std::string text = ask_.echo ? ask_.prompt_texts[choice.prompt] : "";
      if (!ask_.drop_answer) text += choice.content;
      list.emplace_back(choice_json(choice, std::move(text), logprobs_json(choice), true));
    }
    io::JsonObject answer = frame();
    answer.set("choices", std::move(list));
    answer.set("usage", usage_of(usage));
    answer.set("seed", ask_.plan.ask.sampling.seed);
    exchange_->respond({.body = io::dump_json(answer)});
  }
  void fail(const ApiError& error) override { exchange_->respond(error_response(error, ApiDialect::kOpenAi)); }

 private:
  io::JsonValue logprobs_json(const Choice& choice) const {
    if (!logprobs()) return nullptr;
    LogprobArrays out = arrays();
    if (ask_.echo) add_prompt(out, choice);
    for (const TokenEvent& event : choice.tokens) {
      if (!ask_.drop_answer) out.add(event.token, &*event.logprobs);
    }
    return out.take();
  }
};

class CompletionStream final : public CompletionWriter {
 public:
  using CompletionWriter::CompletionWriter;

  void begin() override { exchange_->begin_stream(sse_head()); }
  void add(const Choice& choice, const Batch& batch) override {
    n_characters_.resize(std::max(n_characters_.size(), static_cast<size_t>(choice.index) + 1));
    int64_t& n_characters = n_characters_[static_cast<size_t>(choice.index)];
    std::string text;
    LogprobArrays now = arrays();
    now.start_at(n_characters);
    if (ask_.echo && choice.tokens.size() == batch.tokens.size()) {  // the first batch
      text = ask_.prompt_texts[choice.prompt];
      if (logprobs()) add_prompt(now, choice);
    }
    if (!ask_.drop_answer) {
      for (const text::OutputEvent& event : batch.events) text += event.text;
      for (const TokenEvent& event : batch.tokens) {
        if (logprobs()) now.add(event.token, &*event.logprobs);
      }
    }
    n_characters = now.n_characters();
    running_usage_.count(choice);
    if (text.empty() && batch.tokens.empty() && !choice.over) return;
    send(choice_json(choice, std::move(text), logprobs() ? io::JsonValue(now.take()) : io::JsonValue(), choice.over),
         choice.over);
  }
  void end(std::span<const Choice>, const Usage& usage) override {
    if (ask_.plan.ask.include_usage) {
      io::JsonObject chunk = frame();
      chunk.set("choices", io::JsonArray());
      chunk.set("usage", usage_of(usage));
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
  void send(io::JsonObject choice, bool over) {
    io::JsonObject chunk = frame();
    chunk.set("choices", io::JsonArray{std::move(choice)});
    if (over) chunk.set("seed", ask_.plan.ask.sampling.seed);
    if (ask_.plan.ask.continuous_usage) {
      chunk.set("usage", usage_of(running_usage_.so_far()));
    } else if (ask_.plan.ask.include_usage) {
      chunk.set("usage", nullptr);
    }
    exchange_->send(sse(chunk));
  }

  std::vector<int64_t> n_characters_;  // of the tokens so far, by choice
  RunningUsage running_usage_{ask_.plan};
};

// ---- the request -------------------------------------------------------------------------------------------------

// nullopt unless all entries are token ids.
std::optional<std::vector<int32_t>> token_list(const io::JsonArray& list) {
  std::vector<int32_t> ids;
  for (const io::JsonValue& entry : list) {
    const std::optional<int64_t> id = entry.as_number() != nullptr ? entry.to_int64() : std::nullopt;
    if (!id || *id < 0 || *id > INT32_MAX) return std::nullopt;
    ids.push_back(static_cast<int32_t>(*id));
  }
  return ids;
}

// "prompt": a text, token ids, or a list of either.
Status read_prompts(const ServedModel& model, const Body& body, CompletionAsk* ask) {
  constexpr std::string_view kExpected = "a text, token ids, or a list of texts or of lists of token ids";
  LEVIN_ASSIGN(const bool add_special, body.get_or("add_special_tokens", true));
  const io::JsonValue* prompt = body.find("prompt");
  const io::JsonArray* list = prompt != nullptr ? prompt->as_array() : nullptr;
  io::JsonArray one;
  if (prompt != nullptr &&
      (prompt->as_string() != nullptr || (list != nullptr && !list->empty() && token_list(*list)))) {
    one = {*prompt};
    list = &one;
  }
  if (list == nullptr || list->empty()) return body.unexpected("prompt", kExpected);
  if (list->size() > kMaxPrompts) {
    return body.refuse("prompt", fmt::format("has {} entries, at most {} are allowed", list->size(), kMaxPrompts));
  }
  for (const io::JsonValue& entry : *list) {
    if (const std::string* text = entry.as_string()) {
      LEVIN_ASSIGN(std::vector<int32_t> ids,
                   add_special ? model.tokenizer->encode_raw(*text) : model.tokenizer->encode(*text));
      ask->plan.prompts.push_back(std::move(ids));
      ask->prompt_texts.push_back(*text);
      continue;
    }
    const std::optional<std::vector<int32_t>> ids =
        entry.as_array() != nullptr ? token_list(*entry.as_array()) : std::nullopt;
    if (!ids)
      return body.refuse("prompt", fmt::format("has the entry {}, expected {}", io::describe_json(entry), kExpected));
    ask->plan.prompts.push_back(*ids);
    ask->prompt_texts.push_back(ask->echo ? model.tokenizer->decode(*ids) : "");
  }
  return {};
}

Result<CompletionAsk> read_ask(const ServedModel& model, const Body& body) {
  CompletionAsk ask;
  LEVIN_ASSIGN(ask.plan.ask, read_generation(body, model.defaults));
  GenerationAsk& generation = ask.plan.ask;
  LEVIN_ASSIGN(ask.echo, body.get_or("echo", false));
  const int64_t default_limit = generation.max_tokens > 0 ? generation.max_tokens : kDefaultMaxTokens;
  LEVIN_ASSIGN(const int64_t max_tokens, body.get_or("max_tokens", default_limit));
  if (max_tokens < 0 || (max_tokens == 0 && !ask.echo)) {
    return body.refuse("max_tokens", fmt::format("is {}, expected at least 1, or 0 with \"echo\"", max_tokens));
  }
  ask.drop_answer = max_tokens == 0;
  generation.max_tokens = std::max<int64_t>(max_tokens, 1);
  LEVIN_ASSIGN(const std::optional<int64_t> n_top, body.get_optional<int64_t>("logprobs"));
  if (n_top && (*n_top < 0 || *n_top > kMaxTopLogprobs)) {
    return body.refuse("logprobs", fmt::format("is {}, expected 0 to {}", *n_top, kMaxTopLogprobs));
  }
  generation.logprobs = n_top.has_value();
  generation.n_top_logprobs = static_cast<int>(n_top.value_or(0));
  ask.plan.prompt_logprobs = ask.echo && generation.logprobs;
  LEVIN_ASSIGN(ask.token_ids_as_text, body.get_or("return_tokens_as_token_ids", false));
  LEVIN_TRY(read_prompts(model, body, &ask));
  if (!body.has("max_tokens")) fit_limit(model, &ask.plan);
  LEVIN_ASSIGN(const TextForm form, read_form(body));
  LEVIN_TRY(set_form(model, body, form, &ask.plan));
  return ask;
}

}  // namespace

FieldList completion_fields() {
  static constexpr Field kFields[] = {
      {"prompt", "string|array", "A text, token ids, or a list of either", true},
      {"max_tokens", "integer",
       "Maximum number of tokens to generate, by default --max-tokens or 16; 0 is allowed with echo"},
      {"echo", "boolean", "Repeat the prompt before the answer"},
      {"logprobs", "integer",
       "Return the log probabilities of each token and of this many of the most likely ones, 0 to 20"},
      {"add_special_tokens", "boolean", "Prepend the tokens with which the model's texts begin"},
      {"return_tokens_as_token_ids", "boolean", "Name tokens token_id:N in log probabilities"},
  };
  return kFields;
}

void handle_completions(const ServedModel& model, const std::shared_ptr<Exchange>& exchange) {
  with_body(model, *exchange, ApiDialect::kOpenAi, [&](const RequestBody& body) -> std::optional<ApiError> {
    Result<CompletionAsk> ask = read_ask(model, body.fields());
    if (!ask.ok()) return bad_request(ask.error().message, body.param());
    AnswerPlan plan = ask->plan;
    std::unique_ptr<AnswerWriter> writer;
    if (plan.ask.stream) {
      writer = std::make_unique<CompletionStream>(model, exchange, std::move(*ask));
    } else {
      writer = std::make_unique<WholeCompletion>(model, exchange, std::move(*ask));
    }
    return run_answer(model, exchange, std::move(plan), std::move(writer));
  });
}

}  // namespace levin::serve
