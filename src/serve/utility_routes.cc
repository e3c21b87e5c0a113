#include "serve/utility_routes.h"

#include <fmt/core.h>

#include <ctime>
#include <utility>

#include "serve/answer.h"
#include "serve/chat_messages.h"
#include "serve/request_body.h"
#include "serve/routes.h"

namespace levin::serve {
namespace {

constexpr std::string_view kModelsPath = "/v1/models/";

io::JsonObject openai_model_json(const ServedModel& model, const std::string& name) {
  return {{"id", name},           {"object", "model"}, {"created", model.created_s},        {"owned_by", "levin"},
          {"root", model.name()}, {"parent", nullptr}, {"max_model_len", model.n_context()}};
}

// Anthropic's clients ask for the same list and read other members.
io::JsonObject anthropic_model_json(const ServedModel& model, const std::string& name) {
  std::tm utc{};
  const std::time_t created = model.created_s;
  gmtime_r(&created, &utc);
  const std::string time = fmt::format("{}-{:02}-{:02}T{:02}:{:02}:{:02}Z", 1900 + utc.tm_year, 1 + utc.tm_mon,
                                       utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec);
  return {{"type", "model"},
          {"id", name},
          {"display_name", name},
          {"created_at", time},
          {"max_input_tokens", model.n_context()},
          {"max_tokens", model.n_context()}};
}

io::JsonObject model_json(const ServedModel& model, const std::string& name, ApiDialect dialect) {
  return dialect == ApiDialect::kAnthropic ? anthropic_model_json(model, name) : openai_model_json(model, name);
}

io::JsonArray ids_json(const std::vector<int32_t>& ids) { return {ids.begin(), ids.end()}; }

Result<std::vector<int32_t>> render_chat(const ServedModel& model, const Body& body) {
  LEVIN_ASSIGN(const ChatAsk ask, read_chat(body, model.thinking));
  LEVIN_ASSIGN(const std::vector<text::Segment> segments, model.format->render(ask.request));
  return model.tokenizer->encode(segments);
}

// A text, or a conversation.
Result<std::vector<int32_t>> encode_body(const ServedModel& model, const Body& body) {
  if (body.has("messages")) return render_chat(model, body);
  LEVIN_ASSIGN(const std::string prompt, body.get<std::string>("prompt"));
  LEVIN_ASSIGN(const bool add_special, body.get_or("add_special_tokens", true));
  return add_special ? model.tokenizer->encode_raw(prompt) : model.tokenizer->encode(prompt);
}

Result<io::JsonObject> tokenize(const ServedModel& model, const Body& body) {
  LEVIN_ASSIGN(const std::vector<int32_t> ids, encode_body(model, body));
  LEVIN_ASSIGN(const bool strings, body.get_or("return_token_strs", false));
  io::JsonObject out = {{"count", ids.size()}, {"max_model_len", model.n_context()}, {"tokens", ids_json(ids)}};
  if (!strings) return out;
  io::JsonArray names;
  for (const int32_t id : ids) names.emplace_back(model.tokenizer->decode(std::span(&id, 1), false));
  out.set("token_strs", std::move(names));
  return out;
}

Result<io::JsonObject> detokenize(const ServedModel& model, const Body& body) {
  LEVIN_ASSIGN(const std::vector<int64_t> wide, body.get<std::vector<int64_t>>("tokens"));
  std::vector<int32_t> ids;
  for (const int64_t id : wide) {
    if (id < 0 || id >= model.tokenizer->n_ids() || !model.tokenizer->is_token(static_cast<int32_t>(id))) {
      return body.refuse("tokens",
                         fmt::format("has {}, which is not a token; ids are below {}", id, model.tokenizer->n_ids()));
    }
    ids.push_back(static_cast<int32_t>(id));
  }
  return io::JsonObject{{"prompt", model.tokenizer->decode(ids, false)}};
}

Result<io::JsonObject> render(const ServedModel& model, const Body& body) {
  LEVIN_ASSIGN(const std::vector<int32_t> ids, render_chat(model, body));
  return io::JsonObject{
      {"prompt", model.tokenizer->decode(ids, false)}, {"count", ids.size()}, {"tokens", ids_json(ids)}};
}

template <class Make>
void answer_with(const ServedModel& model, Exchange& exchange, const Make& make) {
  with_body(model, exchange, ApiDialect::kOpenAi, [&](const RequestBody& body) -> std::optional<ApiError> {
    const Result<io::JsonObject> answer = make(model, body.fields());
    if (!answer.ok()) return bad_request(answer.error().message, body.param());
    exchange.respond({.body = io::dump_json(*answer)});
    return std::nullopt;
  });
}

}  // namespace

void handle_health(const ServedModel& model, const std::shared_ptr<Exchange>& exchange) {
  const std::optional<ApiError> refusal = engine_refusal(model);
  exchange->respond(refusal ? error_response(*refusal, ApiDialect::kOpenAi) : HttpResponse{.body = "{}"});
}

void handle_version(const ServedModel& model, const std::shared_ptr<Exchange>& exchange) {
  exchange->respond({.body = io::dump_json(io::JsonObject{{"version", model.version}, {"model", model.name()}})});
}

void handle_metrics(const ServedModel& model, const std::shared_ptr<Exchange>& exchange) {
  exchange->respond({.content_type = "text/plain; version=0.0.4; charset=utf-8", .body = model.metrics->text()});
}

void handle_openapi(const ServedModel& model, const std::shared_ptr<Exchange>& exchange) {
  exchange->respond({.body = io::dump_json(openapi_document(model.routes, model.version))});
}

void handle_props(const ServedModel& model, const std::shared_ptr<Exchange>& exchange) {
  const Engine& engine = model.service->engine();
  const EngineOptions& options = engine.options();
  const SamplingParams& sampling = model.defaults.sampling;
  const io::JsonObject params = {{"temperature", sampling.temperature},
                                 {"top_k", sampling.top_k},
                                 {"top_p", sampling.top_p},
                                 {"min_p", sampling.min_p},
                                 {"repetition_penalty", sampling.repetition_penalty},
                                 {"presence_penalty", sampling.presence_penalty},
                                 {"frequency_penalty", sampling.frequency_penalty}};
  io::JsonArray names;
  for (const std::string& name : model.names) names.emplace_back(name);
  exchange->respond(
      {.body = io::dump_json(io::JsonObject{
           {"build_info", "levin " + model.version},
           {"model_alias", model.name()},
           {"model_names", std::move(names)},
           {"architecture", engine.config().architecture},
           {"chat_format", model.format->name()},
           {"numerics", numerics_mode_name(options.numerics)},
           {"device", options.device == Device::kCpu ? "cpu" : "cuda"},
           {"threads", options.n_threads},
           {"total_slots", options.max_running},
           {"max_queued_requests", model.max_queued},
           {"chunk_tokens", options.chunk_tokens},
           {"speculation_steps", options.n_spec_steps},
           {"thinking", model.thinking},
           {"modalities", io::JsonObject{{"vision", false}, {"audio", false}}},
           {"default_generation_settings", io::JsonObject{{"n_ctx", model.n_context()}, {"params", params}}}})});
}

FieldList tokenize_fields() {
  static constexpr Field kFields[] = {
      {"prompt", "string", "A text"},
      {"messages", "array", "A conversation instead of a text"},
      {"add_special_tokens", "boolean", "Prepend the tokens with which the model's texts begin"},
      {"return_token_strs", "boolean", "Also return the tokens as texts"},
  };
  return kFields;
}

FieldList detokenize_fields() {
  static constexpr Field kFields[] = {
      {"tokens", "array", "Token ids", true},
  };
  return kFields;
}

void handle_models(const ServedModel& model, const std::shared_ptr<Exchange>& exchange) {
  const ApiDialect dialect = dialect_of(exchange->request());
  io::JsonArray data;
  for (const std::string& name : model.names) data.emplace_back(model_json(model, name, dialect));
  io::JsonObject list;
  if (dialect == ApiDialect::kOpenAi) list.set("object", "list");
  list.set("data", std::move(data));
  if (dialect == ApiDialect::kAnthropic) {
    list.set("has_more", false);
    list.set("first_id", model.names.front());
    list.set("last_id", model.names.back());
  }
  exchange->respond({.body = io::dump_json(list)});
}

void handle_one_model(const ServedModel& model, const std::shared_ptr<Exchange>& exchange) {
  const ApiDialect dialect = dialect_of(exchange->request());
  const std::string name = exchange->request().path.substr(kModelsPath.size());
  if (!model.has(name)) {
    exchange->respond(error_response(unknown_model(name, model.name()), dialect));
  } else {
    exchange->respond({.body = io::dump_json(model_json(model, name, dialect))});
  }
}

void handle_tokenize(const ServedModel& model, const std::shared_ptr<Exchange>& exchange) {
  answer_with(model, *exchange, tokenize);
}

void handle_detokenize(const ServedModel& model, const std::shared_ptr<Exchange>& exchange) {
  answer_with(model, *exchange, detokenize);
}

void handle_render(const ServedModel& model, const std::shared_ptr<Exchange>& exchange) {
  answer_with(model, *exchange, render);
}

void handle_tokenizer_info(const ServedModel& model, const std::shared_ptr<Exchange>& exchange) {
  const auto name = [&](std::optional<text::TokenId> id) {
    return id ? io::JsonValue(model.tokenizer->decode(std::span(&*id, 1), false)) : io::JsonValue();
  };
  exchange->respond({.body = io::dump_json(io::JsonObject{{"bos_token", name(model.tokenizer->bos())},
                                                          {"eos_token", name(model.tokenizer->eos())},
                                                          {"pad_token", name(model.tokenizer->pad())},
                                                          {"model_max_length", model.n_context()},
                                                          {"chat_template", nullptr}})});
}

}  // namespace levin::serve
