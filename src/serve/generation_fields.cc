#include "serve/generation_fields.h"

#include <fmt/core.h>

#include <charconv>
#include <random>
#include <utility>

namespace levin::serve {
namespace {

constexpr int64_t kMaxChoices = 64;
constexpr size_t kMaxStops = 64;
constexpr size_t kMaxStopBytes = 4096;  // the time to look for one grows with the square

// Fields of this and other servers that would change the answer and are not built: better refused than ignored. Clients
// send some of them with the value that changes nothing.
struct Unsupported {
  std::string_view name;
  std::string_view instead = "leave it out";
  double neutral = 0;
};
constexpr Unsupported kUnsupported[] = {
    {"guided_grammar", "give a schema or a regular expression"},
    {"ebnf", "give a schema or a regular expression"},
    {"grammar", "give a schema or a regular expression"},
    {"json_schema", "send it as response_format"},
    {"structural_tag"},
    {"bad_words"},
    {"use_beam_search"},
    {"early_stopping"},
    {"length_penalty", "leave it out", 1},
    {"suffix"},
    {"logits_processors"},
    {"custom_logit_processor"},
    {"prompt_logprobs"},
    {"truncate_prompt_tokens"},
    {"chat_template"},
    {"documents"},
    {"cache_salt"},
    {"lora_path"},
    {"n_predict", "send max_tokens"},
    {"num_predict", "send max_tokens"},
    {"max_new_tokens", "send max_tokens"},
    {"thinking_token_budget"},
    {"stop_regex"},
    {"repeat_penalty", "send repetition_penalty", 1},
    {"mirostat"},
    {"typical_p", "leave it out", 1},
    {"tfs_z", "leave it out", 1},
    {"dry_multiplier"},
    {"xtc_probability"},
    {"dynatemp_range"},
    {"top_n_sigma", "leave it out", -1},
    {"top_a"},
    {"functions", "send tools"},
    {"function_call", "send tool_choice"},
    {"web_search_options"},
    {"audio"},
    {"container"},
    {"mcp_servers"},
};

bool asks_for_nothing(const io::JsonValue& value, double neutral) {
  if (const bool* flag = value.as_bool()) return !*flag;
  if (const std::string* text = value.as_string()) return text->empty();
  if (const io::JsonArray* list = value.as_array()) return list->empty();
  return value.to_double() == neutral;
}

Status refuse_unsupported(const Body& body) {
  for (const Unsupported& field : kUnsupported) {
    const io::JsonValue* value = body.find(field.name);
    if (value != nullptr && !asks_for_nothing(*value, field.neutral)) {
      return body.refuse(field.name, fmt::format("is not supported; {}", field.instead));
    }
  }
  LEVIN_ASSIGN(const auto modalities, body.get_optional<std::vector<std::string>>("modalities"));
  for (const std::string& kind : modalities.value_or(std::vector<std::string>())) {
    if (kind != "text") return body.refuse("modalities", fmt::format("has {}; this model writes text only", kind));
  }
  return {};
}

// {"token id": bias}
Status read_logit_bias(const Body& body, SamplingParams* sampling) {
  const io::JsonValue* value = body.find("logit_bias");
  if (value == nullptr) return {};
  const io::JsonObject* object = value->as_object();
  if (object == nullptr) return body.unexpected("logit_bias", "an object of token ids and numbers");
  sampling->logit_bias.clear();  // the server's own are for requests without
  for (const io::JsonMember& member : object->members()) {
    int32_t token = 0;
    const char* end = member.key.data() + member.key.size();
    const auto [parsed_to, wrong] = std::from_chars(member.key.data(), end, token);
    const bool is_id = parsed_to == end && wrong == std::errc() && token >= 0;
    const std::optional<double> bias = member.value.to_double();
    if (!is_id || !bias) {
      return body.refuse("logit_bias", fmt::format("has the member \"{}\": {}, expected token ids and numbers",
                                                   member.key, io::describe_json(member.value)));
    }
    sampling->logit_bias.emplace_back(token, *bias);
  }
  return {};
}

Result<std::vector<int32_t>> read_tokens(const Body& body, std::string_view key) {
  LEVIN_ASSIGN(const std::optional<std::vector<int64_t>> ids, body.get_optional<std::vector<int64_t>>(key));
  std::vector<int32_t> out;
  if (!ids) return out;
  for (const int64_t id : *ids) {
    if (id < 0 || id > INT32_MAX) return body.refuse(key, fmt::format("has {}, which is not a token id", id));
    out.push_back(static_cast<int32_t>(id));
  }
  return out;
}

Status read_sampling(const Body& body, std::optional<uint64_t> default_seed, GenerationAsk* ask) {
  SamplingParams& s = ask->sampling;
  LEVIN_ASSIGN(s.temperature, body.get_or("temperature", s.temperature));
  LEVIN_ASSIGN(s.top_p, body.get_or("top_p", s.top_p));
  LEVIN_ASSIGN(s.top_k, body.get_or("top_k", s.top_k));
  if (s.top_k == -1) s.top_k = 0;  // both mean off
  LEVIN_ASSIGN(s.min_p, body.get_or("min_p", s.min_p));
  LEVIN_ASSIGN(s.repetition_penalty, body.get_or("repetition_penalty", s.repetition_penalty));
  LEVIN_ASSIGN(s.presence_penalty, body.get_or("presence_penalty", s.presence_penalty));
  LEVIN_ASSIGN(s.frequency_penalty, body.get_or("frequency_penalty", s.frequency_penalty));
  LEVIN_TRY(read_logit_bias(body, &s));
  LEVIN_ASSIGN(s.allowed_tokens, read_tokens(body, "allowed_token_ids"));
  if (body.has("allowed_token_ids") && s.allowed_tokens.empty())
    return body.refuse("allowed_token_ids", "is an empty list, which leaves no token; leave it out to allow all");
  LEVIN_ASSIGN(s.min_tokens, body.get_or("min_tokens", s.min_tokens));
  if (s.min_tokens < 0) return body.refuse("min_tokens", fmt::format("is {}, expected 0 or more", s.min_tokens));
  // any integer of 64 bits, signed or not, is a seed
  const io::JsonValue* seed = body.find("seed");
  if (seed == nullptr) {
    s.seed = default_seed ? *default_seed : fresh_seed();
  } else if (const std::optional<uint64_t> positive = seed->to_uint64()) {
    s.seed = *positive;
  } else {
    LEVIN_ASSIGN(const int64_t negative, body.get<int64_t>("seed"));
    s.seed = static_cast<uint64_t>(negative);
  }
  return {};
}

Status read_ends(const Body& body, bool ignores_eos, GenerationAsk* ask) {
  LEVIN_ASSIGN(const bool ignore_eos, body.get_or("ignore_eos", ignores_eos));
  if (ignore_eos) ask->sampling.stop_tokens.clear();
  LEVIN_ASSIGN(ask->own_stop_tokens, read_tokens(body, "stop_token_ids"));
  std::vector<int32_t>& all = ask->sampling.stop_tokens;
  all.insert(all.end(), ask->own_stop_tokens.begin(), ask->own_stop_tokens.end());
  if (body.has("stop")) {
    LEVIN_ASSIGN(ask->text.stop, read_strings(body, "stop"));
  }
  LEVIN_ASSIGN(ask->text.include_stop, body.get_or("include_stop_str_in_output", false));
  LEVIN_ASSIGN(ask->text.skip_special, body.get_or("skip_special_tokens", true));
  return {};
}

}  // namespace

Result<std::vector<std::string>> read_strings(const Body& body, std::string_view key) {
  const io::JsonValue* value = body.find(key);
  std::vector<std::string> strings;
  if (value == nullptr) return strings;
  if (const std::string* one = value->as_string()) {
    strings.push_back(*one);
  } else if (value->as_array() == nullptr) {
    return body.unexpected(key, "a string or a list of strings");
  } else {
    LEVIN_ASSIGN(strings, body.get<std::vector<std::string>>(key));
  }
  if (strings.size() > kMaxStops)
    return body.refuse(key, fmt::format("has {} entries, at most {} are allowed", strings.size(), kMaxStops));
  for (const std::string& each : strings) {
    if (each.size() <= kMaxStopBytes) continue;
    return body.refuse(key,
                       fmt::format("has an entry of {} bytes, at most {} are allowed", each.size(), kMaxStopBytes));
  }
  std::erase(strings, std::string());  // an empty string would end every answer at once
  return strings;
}

Result<GenerationAsk> read_generation(const Body& body, const GenerationDefaults& defaults) {
  GenerationAsk ask{.sampling = defaults.sampling, .max_tokens = defaults.max_tokens};
  ask.text.stop = defaults.stop_strings;
  LEVIN_TRY(refuse_unsupported(body));
  LEVIN_TRY(read_sampling(body, defaults.seed, &ask));
  LEVIN_TRY(read_ends(body, defaults.ignore_eos, &ask));
  LEVIN_ASSIGN(ask.n_choices, body.get_or("n", int64_t{1}));
  if (ask.n_choices < 1 || ask.n_choices > kMaxChoices) {
    return body.refuse("n", fmt::format("is {}, expected 1 to {}", ask.n_choices, kMaxChoices));
  }
  LEVIN_ASSIGN(const int64_t best_of, body.get_or("best_of", ask.n_choices));
  if (best_of != ask.n_choices) return body.refuse("best_of", "other than n is not supported; leave it out");
  LEVIN_ASSIGN(const int64_t priority, body.get_or("priority", int64_t{0}));
  if (priority < -1000 || priority > 1000)
    return body.refuse("priority", fmt::format("is {}, expected -1000 to 1000", priority));
  ask.priority = static_cast<int32_t>(priority);
  LEVIN_ASSIGN(ask.stream, body.get_or("stream", false));
  if (!body.has("stream_options")) return ask;
  LEVIN_ASSIGN(const Body options, body.get_body("stream_options"));
  LEVIN_ASSIGN(ask.include_usage, options.get_or("include_usage", false));
  LEVIN_ASSIGN(ask.continuous_usage, options.get_or("continuous_usage_stats", false));
  return ask;
}

std::vector<std::string_view> refused_fields() {
  std::vector<std::string_view> names;
  for (const Unsupported& field : kUnsupported) names.push_back(field.name);
  return names;
}

FieldList generation_fields() {
  static constexpr Field kFields[] = {
      {"temperature", "number", "Sampling temperature, 0 to 100; 0: always the most likely token"},
      {"top_p", "number", "Sample from the most likely tokens whose probabilities add up to this"},
      {"top_k", "integer", "Sample from this many of the most likely tokens; 0 and -1: all"},
      {"min_p", "number", "Drop tokens less than this many times as likely as the most likely one"},
      {"repetition_penalty", "number", "Above 1: tokens of the prompt and the answer become less likely"},
      {"presence_penalty", "number", "Subtracted from the logit of every token that the answer contains"},
      {"frequency_penalty", "number", "Subtracted from the logit once for each occurrence in the answer"},
      {"logit_bias", "object", "An object of token ids and the numbers to add to their logits"},
      {"allowed_token_ids", "array", "The only token ids that may be generated"},
      {"min_tokens", "integer", "Minimum number of tokens to generate"},
      {"seed", "integer", "The same request with the same seed gives the same text"},
      {"ignore_eos", "boolean", "Continue after an end-of-sequence token"},
      {"stop_token_ids", "array", "Additional token ids that end the answer"},
      {"stop", "string|array", "Texts that end the answer"},
      {"include_stop_str_in_output", "boolean", "Include the stop string in the answer"},
      {"skip_special_tokens", "boolean", "Omit special tokens from the text"},
      {"n", "integer", "Number of answers to each prompt"},
      {"best_of", "integer", "As many as n"},
      {"priority", "integer", "Lower goes first"},
      {"stream", "boolean", "Stream the answer as server-sent events"},
      {"stream_options", "object", "include_usage and continuous_usage_stats"},
      {"modalities", "array", "Only text is accepted"},
  };
  return kFields;
}

std::string field_of(const std::string& message) {
  static constexpr std::pair<std::string_view, std::string_view> kWords[] = {
      {"temperature", "temperature"},
      {"top_k", "top_k"},
      {"top_p", "top_p"},
      {"min_p", "min_p"},
      {"min_tokens", "min_tokens"},
      {"repetition_penalty", "repetition_penalty"},
      {"presence_penalty", "presence_penalty"},
      {"frequency_penalty", "frequency_penalty"},
      {"logit_bias", "logit_bias"},
      {"allowed_token_ids", "allowed_token_ids"},
      {"list of stop tokens", "stop_token_ids"},
      {"the prompt", "prompt"},
      {"token id", "prompt"},
  };
  size_t first = std::string::npos;
  std::string field;
  for (const auto& [word, name] : kWords) {
    const size_t at = message.find(word);
    if (at >= first) continue;
    first = at;
    field = name;
  }
  return field;
}

uint64_t fresh_seed() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

std::string random_id(std::string_view prefix) {
  static constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
  static thread_local std::mt19937_64 random(fresh_seed());
  std::string id(prefix);
  for (int i = 0; i < 24; ++i) id += kLetters[random() % kLetters.size()];
  return id;
}

}  // namespace levin::serve
