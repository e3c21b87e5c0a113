#include "apps/levin/generation_options.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <random>

#include "arch/load_config.h"
#include "engine/draft_depth.h"
#include "io/json.h"
#include "io/mapped_file.h"

namespace levin::app {
namespace {

constexpr int kDefaultSpecSteps = 3;
constexpr size_t kMaxConfigBytes = size_t{1} << 20;

// What was given on the command line; the rest comes from the model.
struct Given {
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<int64_t> top_k;
  std::optional<uint64_t> seed;
  bool ignore_eos = false;
};

Setter set_seed(std::optional<uint64_t>* target) {
  return [target](std::string_view value) -> std::optional<std::string> {
    const std::optional<io::JsonNumber> number = io::JsonNumber::from_text(value);
    const std::optional<uint64_t> seed = number ? number->to_uint64() : std::nullopt;
    if (!seed) return "a whole number from 0 to 18446744073709551615";
    *target = *seed;
    return std::nullopt;
  };
}

// "17=-2.5": token id and what is added to its logit.
Setter add_logit_bias(SamplingParams* sampling) {
  return [sampling](std::string_view value) -> std::optional<std::string> {
    constexpr char kExpected[] = "ID=X, a token id and a number from -100 to 100";
    const size_t sign = std::min(value.find('='), value.size());
    int64_t id = 0;
    double bias = 0;
    if (sign == value.size() || set_int(&id, {.min = 0, .max = INT32_MAX})(value.substr(0, sign)) ||
        set_number(&bias, {.min = -100, .max = 100})(value.substr(sign + 1))) {
      return kExpected;
    }
    sampling->logit_bias.emplace_back(static_cast<int32_t>(id), bias);
    return std::nullopt;
  };
}

Setter add_text(std::vector<std::string>* target) {
  return [target](std::string_view value) -> std::optional<std::string> {
    std::string text;
    std::optional<std::string> expected = set_text(&text)(value);
    if (!expected) target->push_back(std::move(text));
    return expected;
  };
}

constexpr char kGenerationConfig[] = "generation_config.json";

// The model maker's sampling defaults and ends of an answer (eos_token_id, a number or a list).
Status apply_generation_config(const std::string& folder, SamplingParams* sampling) {
  const std::filesystem::path path = std::filesystem::path(folder) / kGenerationConfig;
  if (!std::filesystem::exists(path)) return {};
  LEVIN_ASSIGN(const std::string text, io::read_file(path, {.max_bytes = kMaxConfigBytes}));
  LEVIN_ASSIGN(const io::JsonValue document, io::parse_json(text, path.string()));
  LEVIN_ASSIGN(const io::JsonFields fields, io::JsonFields::of(document, path.string()));
  LEVIN_ASSIGN(const bool do_sample, fields.get_or("do_sample", true));
  LEVIN_ASSIGN(sampling->temperature, fields.get_or("temperature", sampling->temperature));
  if (!do_sample) sampling->temperature = 0;
  LEVIN_ASSIGN(sampling->top_p, fields.get_or("top_p", sampling->top_p));
  LEVIN_ASSIGN(sampling->top_k, fields.get_or("top_k", sampling->top_k));
  if (sampling->top_k == -1) sampling->top_k = 0;  // as in requests, both mean off
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

// What add_logit_bias() could not know: how many tokens there are.
Status check_logit_bias(const SamplingParams& sampling, int64_t n_vocab) {
  for (const auto& [token, bias] : sampling.logit_bias) {
    if (token < n_vocab) continue;
    return Error{ErrorKind::kUsage,
                 fmt::format("--logit-bias names token {}, outside the vocabulary of {} tokens", token, n_vocab)};
  }
  return {};
}

Status complete(GenerationOptions& options, const Given& given, const EngineOptions& engine) {
  LEVIN_ASSIGN(const ParsedConfig parsed, load_model_config(engine.model_folder, *engine.registry, engine.overrides));
  SamplingParams& sampling = options.sampling;
  sampling.stop_tokens = parsed.config.eos_tokens;
  LEVIN_TRY(apply_generation_config(engine.model_folder, &sampling));
  if (given.temperature) sampling.temperature = *given.temperature;
  if (given.top_p) sampling.top_p = *given.top_p;
  if (given.min_p) sampling.min_p = *given.min_p;
  if (given.repetition_penalty) sampling.repetition_penalty = *given.repetition_penalty;
  if (given.top_k) sampling.top_k = *given.top_k;
  if (given.seed) sampling.seed = *given.seed;
  options.eos_tokens = sampling.stop_tokens;
  if (given.ignore_eos) sampling.stop_tokens.clear();
  options.random_seed = !given.seed;
  LEVIN_TRY(check_logit_bias(sampling, parsed.config.n_vocab));
  const Result<SamplingPlan> sound = SamplingPlan::make(sampling, parsed.config.n_vocab);
  if (sound.ok()) return {};
  // Options were refused where they were set, so what is left comes from the file.
  return Error{ErrorKind::kModelInvalid,
               fmt::format("{}/{}: {}", engine.model_folder, kGenerationConfig, sound.error().message)};
}

// The setter of --spec-width, which sets nothing yet.
std::optional<std::string> refuse_trees(std::string_view value) {
  if (value == "1") return std::nullopt;
  return "1: only chains are supported; leave --spec-width out and set their length with --spec-steps";
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
  const OptionGroup add(command, group);
  const std::string models = "as generation_config.json says";
  add("-n,--max-tokens", "N", "Maximum number of tokens to generate", "what the context leaves",
      set_tokens(&options->max_tokens, {.min = 1}));
  add("--temperature", "T", "0: always the most likely token; higher: more varied", models,
      set_number(&given->temperature, {.min = 0, .max = 100}));
  add("--top-k", "N", "Sample from the N most likely tokens only; 0: off", models, set_int(&given->top_k, {.min = 0}));
  add("--top-p", "P", "Sample from the most likely tokens whose probabilities add up to P", models,
      set_number(&given->top_p, {.min = 0, .max = 1, .above_min = true}));
  add("--min-p", "P", "Drop tokens that are less than P times as likely as the most likely one", models,
      set_number(&given->min_p, {.min = 0, .max = 1}));
  add("--repetition-penalty", "X", "Above 1: tokens of the prompt and the answer become less likely", models,
      set_number(&given->repetition_penalty, {.min = 1e-3, .max = 1e3}));
  add("--presence-penalty", "X", "Subtracted from the logit of every token that the answer contains", "0",
      set_number(&options->sampling.presence_penalty, {.min = -100, .max = 100}));
  add("--frequency-penalty", "X", "Subtracted from the logit once for each occurrence of the token in the answer", "0",
      set_number(&options->sampling.frequency_penalty, {.min = -100, .max = 100}));
  add("--min-tokens", "N", "Minimum number of tokens to generate", "0",
      set_tokens(&options->sampling.min_tokens, {.min = 0}));
  add("--ignore-eos", "", "Continue after an end-of-sequence token", "", set_flag(&given->ignore_eos));
  command.option({.names = "--stop",
                  .value = "TEXT",
                  .purpose = "End the answer before this text; may be repeated",
                  .default_text = "none",
                  .group = group,
                  .repeatable = true},
                 add_text(&options->stop_strings));
  command.option({.names = "--logit-bias",
                  .value = "ID=X",
                  .purpose = "Add X to the logit of a token; may be repeated",
                  .default_text = "none",
                  .group = group,
                  .repeatable = true},
                 add_logit_bias(&options->sampling));
  add("--seed", "N", "Sampling seed: the same seed gives the same answer", "random", set_seed(&given->seed));
  // Keeps `given` alive for its setters; runs after the engine's own check, which finds the model's folder.
  command.check([options, given, engine](const Environment&) { return complete(*options, *given, *engine); });
  return options;
}

void add_speculation_options(Command& command, std::shared_ptr<EngineOptions> engine) {
  struct Speculation {
    bool automatic = true, off = false;
    std::optional<int64_t> n_steps;
  };
  const auto spec = std::make_shared<Speculation>();
  const std::string group = "Speculation";
  command.option({.names = "--spec",
                  .value = "MODE",
                  .purpose = "mtp: draft with the model's MTP layer or block drafter, if it has one; auto: the same, "
                             "with an adaptive number of drafts; off",
                  .default_text = "auto",
                  .group = group},
                 set_choice({"auto", "mtp", "off"}, [spec](size_t place) {
                   spec->automatic = place == 0;
                   spec->off = place == 2;
                 }));
  command.option({.names = "--spec-steps,--spec-tokens",
                  .value = "N",
                  .purpose = "Maximum draft tokens per verification; changes speed, never the answer; 0: off",
                  .default_text = fmt::format("{}; with --spec auto an adaptive number up to that", kDefaultSpecSteps),
                  .group = group},
                 set_int(&spec->n_steps, {.min = 0, .max = kMaxSpecSteps}));
  command.option(
      {.names = "--spec-p-min,--draft-p-min",
       .value = "P",
       .purpose = "Continue a chain of drafts while its estimated acceptance probability is at least P; 0: always",
       .default_text = fmt::format("{}", kDefaultMinConfidence),
       .group = group},
      set_number(&engine->min_confidence, {.min = 0, .max = 1}));
  command.option({.names = "--spec-width",
                  .value = "N",
                  .purpose = "Width of the draft tree; only 1, a chain, is supported",
                  .default_text = "1",
                  .group = group},
                 refuse_trees);
  command.check([spec, engine](const Environment&) -> Status {
    engine->n_spec_steps = spec->off ? 0 : static_cast<int>(spec->n_steps.value_or(kDefaultSpecSteps));
    engine->adapt_spec_depth = spec->automatic && !spec->n_steps;
    return {};
  });
}

}  // namespace levin::app
