#include "apps/levin/generation_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <random>

#include "io/json.h"
#include "io/mapped_file.h"
#include "model/config.h"

namespace levin::app {
namespace {

constexpr int kDefaultSpecSteps = 3;
constexpr int kMaxSpecSteps = 16;
constexpr size_t kMaxConfigBytes = size_t{1} << 20;

// What was given on the command line; the rest comes from the model.
struct Given {
  std::optional<double> temperature, top_p, min_p;
  std::optional<int64_t> top_k;
  std::optional<uint64_t> seed;
};

Setter set_optional_number(std::optional<double>* target, NumberRange range) {
  return [target, range](std::string_view value) {
    double number = 0;
    std::optional<std::string> expected = set_number(&number, range)(value);
    if (!expected) *target = number;
    return expected;
  };
}

Setter set_optional_int(std::optional<int64_t>* target, IntRange range) {
  return [target, range](std::string_view value) {
    int64_t number = 0;
    std::optional<std::string> expected = set_int(&number, range)(value);
    if (!expected) *target = number;
    return expected;
  };
}

Setter set_seed(std::optional<uint64_t>* target) {
  return [target](std::string_view value) -> std::optional<std::string> {
    const std::optional<io::JsonNumber> number = io::JsonNumber::from_text(value);
    const std::optional<uint64_t> seed = number ? number->to_uint64() : std::nullopt;
    if (!seed) return "a whole number from 0 to 18446744073709551615";
    *target = *seed;
    return std::nullopt;
  };
}

// generation_config.json: the model maker's sampling defaults and ends of an answer (eos_token_id, a number or a list).
Status apply_generation_config(const std::string& folder, SamplingParams* sampling) {
  const std::filesystem::path path = std::filesystem::path(folder) / "generation_config.json";
  if (!std::filesystem::exists(path)) return {};
  LEVIN_ASSIGN(const std::string text, io::read_file(path, {.max_bytes = kMaxConfigBytes}));
  LEVIN_ASSIGN(const io::JsonValue document, io::parse_json(text, path.string()));
  LEVIN_ASSIGN(const io::JsonFields fields, io::JsonFields::of(document, path.string()));
  LEVIN_ASSIGN(const bool do_sample, fields.get_or("do_sample", true));
  LEVIN_ASSIGN(sampling->temperature, fields.get_or("temperature", sampling->temperature));
  if (!do_sample) sampling->temperature = 0;
  LEVIN_ASSIGN(sampling->top_p, fields.get_or("top_p", sampling->top_p));
  LEVIN_ASSIGN(sampling->top_k, fields.get_or("top_k", sampling->top_k));
  LEVIN_ASSIGN(sampling->min_p, fields.get_or("min_p", sampling->min_p));
  LEVIN_ASSIGN(sampling->repetition_penalty, fields.get_or("repetition_penalty", sampling->repetition_penalty));
  if (!fields.has("eos_token_id")) return {};
  const io::JsonValue* eos = fields.find("eos_token_id");
  const io::JsonArray one = {*eos};
  const io::JsonArray& list = eos->as_array() != nullptr ? *eos->as_array() : one;
  sampling->stop_tokens.clear();
  for (const io::JsonValue& entry : list) {
    const std::optional<int64_t> id = entry.to_int64();
    if (!id || *id < 0 || *id > INT32_MAX) return fields.unexpected("eos_token_id", "a token id or a list of them");
    sampling->stop_tokens.push_back(static_cast<int32_t>(*id));
  }
  return {};
}

Status complete(GenerationOptions& options, const Given& given, const EngineOptions& engine) {
  LEVIN_ASSIGN(const ParsedConfig parsed, load_model_config(engine.model_folder));
  SamplingParams& sampling = options.sampling;
  const SamplingParams asked = sampling;  // penalties, set directly
  sampling.stop_tokens = parsed.config.eos_tokens;
  LEVIN_TRY(apply_generation_config(engine.model_folder, &sampling));
  if (asked.repetition_penalty != 1) sampling.repetition_penalty = asked.repetition_penalty;
  if (given.temperature) sampling.temperature = *given.temperature;
  if (given.top_p) sampling.top_p = *given.top_p;
  if (given.min_p) sampling.min_p = *given.min_p;
  if (given.top_k) sampling.top_k = *given.top_k;
  if (given.seed) sampling.seed = *given.seed;
  options.random_seed = !given.seed;
  return check_sampling(sampling, parsed.config.n_vocab);
}

}  // namespace

uint64_t fresh_seed() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

std::shared_ptr<GenerationOptions> add_generation_options(Command& command, std::shared_ptr<EngineOptions> engine) {
  const auto options = std::make_shared<GenerationOptions>();
  const auto given = std::make_shared<Given>();
  const std::string group = "Sampling";
  const auto add = [&](std::string names, std::string value, std::string purpose, std::string default_text,
                       Setter set) {
    command.option({.names = std::move(names),
                    .value = std::move(value),
                    .purpose = std::move(purpose),
                    .default_text = std::move(default_text),
                    .group = group},
                   std::move(set));
  };
  const std::string models = "as generation_config.json says";
  add("-n,--max-tokens", "N", "Most tokens of an answer", "as the context holds",
      set_tokens(&options->max_tokens, {.min = 1}));
  add("--temperature", "T", "0: always the likeliest token; larger: more varied", models,
      set_optional_number(&given->temperature, {.min = 0, .max = 100}));
  add("--top-k", "N", "Choose among the N likeliest tokens; 0: off", models,
      set_optional_int(&given->top_k, {.min = 0}));
  add("--top-p", "P", "Choose among the likeliest tokens that hold this share of the probability", models,
      set_optional_number(&given->top_p, {.min = 0, .max = 1}));
  add("--min-p", "P", "Leave out tokens less likely than this share of the likeliest", models,
      set_optional_number(&given->min_p, {.min = 0, .max = 1}));
  add("--repetition-penalty", "X", "Above 1: tokens of prompt and answer become less likely", "1",
      set_number(&options->sampling.repetition_penalty, {.min = 1e-3, .max = 1e3}));
  add("--presence-penalty", "X", "Taken from the logits of tokens that the answer has", "0",
      set_number(&options->sampling.presence_penalty, {.min = -100, .max = 100}));
  add("--frequency-penalty", "X", "Taken from them for every time the answer has them", "0",
      set_number(&options->sampling.frequency_penalty, {.min = -100, .max = 100}));
  add("--seed", "N", "Seed of the sampling noise: the same seed, the same answer", "a fresh one",
      set_seed(&given->seed));
  // Keeps `given` alive for its setters; runs after the engine's own check, which finds the model's folder.
  command.check([options, given, engine](const Environment&) { return complete(*options, *given, *engine); });
  return options;
}

void add_speculation_options(Command& command, std::shared_ptr<EngineOptions> engine) {
  struct Speculation {
    bool off = false;
    int n_steps = kDefaultSpecSteps;
    int width = 1;
  };
  const auto spec = std::make_shared<Speculation>();
  const std::string group = "Speculation";
  command.option({.names = "--spec",
                  .value = "MODE",
                  .purpose = "auto or mtp: draft with the model's MTP layer where it has one; off",
                  .default_text = "auto",
                  .group = group},
                 set_choice({"auto", "mtp", "off"}, [spec](size_t place) { spec->off = place == 2; }));
  command.option({.names = "--spec-steps,--spec-tokens",
                  .value = "N",
                  .purpose = "Tokens drafted before each check; changes speed, never the answer; 0: off",
                  .default_text = std::to_string(kDefaultSpecSteps),
                  .group = group},
                 set_int(&spec->n_steps, {.min = 0, .max = kMaxSpecSteps}));
  command.option({.names = "--spec-width",
                  .value = "N",
                  .purpose = "Drafts side by side; only chains (1) so far",
                  .default_text = "1",
                  .group = group},
                 set_int(&spec->width, {.min = 1, .max = 1}));
  command.check([spec, engine](const Environment&) -> Status {
    engine->n_spec_steps = spec->off ? 0 : spec->n_steps;
    return {};
  });
}

}  // namespace levin::app
