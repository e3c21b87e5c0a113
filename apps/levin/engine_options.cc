#include "apps/levin/engine_options.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>

#include "apps/levin/model_folder.h"
#include "base/cpu.h"
#include "tensor/cuda/probe.h"

namespace levin::app {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int64_t kMaxTokens = int64_t{1} << 30;  // as many positions as a config may have

// What is given on the command line and still has to be looked up.
struct Given {
  std::string model;
  std::string revision = "main";
  int n_threads = 0;
  std::optional<NumericsMode> numerics;
};

// A GPU has tuned kernels for `official`, a CPU for `fast`, which alone has a choice of caches.
NumericsMode default_numerics(const EngineOptions& options) {
  return options.device == Device::kCuda && options.kv_cache_dtype == "auto" ? NumericsMode::kOfficial
                                                                             : NumericsMode::kFast;
}

std::filesystem::path hub_cache(const Environment& environment) {
  if (const std::string* folder = environment.find("HF_HUB_CACHE")) return *folder;
  if (const std::string* folder = environment.find("HF_HOME")) return std::filesystem::path(*folder) / "hub";
  if (const std::string* folder = environment.find("HOME"))
    return std::filesystem::path(*folder) / ".cache/huggingface/hub";
  return ".cache/huggingface/hub";
}

constexpr std::array kIsas = {Isa::kPlain, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmxBf16};

std::vector<std::string> isa_names() {
  std::vector<std::string> names;
  for (const Isa isa : kIsas) names.emplace_back(isa_name(isa));
  return names;
}

Status check_device(const EngineOptions& options, const CpuInfo& cpu) {
  if (options.device == Device::kCuda) {
    LEVIN_TRY(cuda::find_device(0, cuda::KernelSet::kPlain));
  }
  if (options.isa && !cpu.supports(*options.isa)) {
    return usage_error(
        fmt::format("--isa {}: this processor ({}) has {} at most; omit --isa to use the fastest set that it has",
                    isa_name(*options.isa), cpu.model_name, isa_name(cpu.best_isa())));
  }
  if (options.isa && !is_usable(*options.isa)) {
    return usage_error(
        fmt::format("--isa {0}: this program was built without that kernel set; omit --isa to use {1}, or build "
                    "with {0} in the CMake list LEVIN_ISAS",
                    isa_name(*options.isa), isa_name(cpu.preferred_isa())));
  }
  return {};
}

// Threads without a processor of their own make every step wait.
void warn_of_threads(int n_threads, const CpuInfo& cpu) {
  if (n_threads <= cpu.n_usable_cores()) return;
  const std::string usable =
      cpu.n_usable_cores() < cpu.n_cores
          ? fmt::format("its control group grants {:.3g} of {} processors", cpu.quota, cpu.n_cores)
          : fmt::format("this process may use {} processors", cpu.n_cores);
  fmt::print(stderr, "warning: --threads {} is more than can run at once: {}; use --threads {}\n", n_threads, usable,
             cpu.n_usable_cores());
}

Status complete(EngineOptions& options, const Given& given, const Environment& environment) {
  const CpuInfo cpu = cpu_info();
  LEVIN_TRY(check_device(options, cpu));
  options.n_threads = given.n_threads > 0 ? given.n_threads : cpu.n_usable_cores();
  warn_of_threads(options.n_threads, cpu);
  options.numerics = given.numerics.value_or(default_numerics(options));
  LEVIN_TRY(make_numerics(options.numerics, options.kv_cache_dtype));
  const ModelSearch search{
      .hub_cache = hub_cache(environment), .revision = given.revision, .demo_folder = find_demo_folder()};
  LEVIN_ASSIGN(options.model_folder, find_model_folder(given.model, search));
  return {};
}

Setter add_override(std::vector<ConfigOverride>* overrides) {
  return [overrides](std::string_view text) -> std::optional<std::string> {
    Result<ConfigOverride> parsed = parse_config_override(text);
    if (!parsed.ok()) return "KEY=VALUE, a key of config.json and its value as JSON, such as index_topk_freq=4";
    const bool repeated = std::any_of(overrides->begin(), overrides->end(),
                                      [&](const ConfigOverride& o) { return o.key == parsed->key; });
    if (repeated) return fmt::format("each key only once; {} was given before", parsed->key);
    overrides->push_back(std::move(*parsed));
    return std::nullopt;
  };
}

void add_model_options(Command& command, EngineOptions& options, Given& given, ModelArgument model) {
  command.positional(
      {.name = "MODEL",
       .aliases = "--model,--model-path",
       .purpose =
           model == ModelArgument::kRequired
               ? "Folder of the checkpoint, or ORG/NAME in the Hugging Face cache"
               : "Folder of the checkpoint, or ORG/NAME in the Hugging Face cache; without it the demonstration model",
       .required = model == ModelArgument::kRequired},
      set_text(&given.model));
  command.option({.names = "--revision",
                  .value = "NAME",
                  .purpose = "Branch, tag or snapshot of a model in the Hugging Face cache",
                  .default_text = "main",
                  .group = "Model"},
                 set_text(&given.revision));
  command.option(
      {.names = "--load-format",
       .value = "FORMAT",
       .purpose = "auto reads the checkpoint; dummy makes random weights from a fixed seed, config.json is enough",
       .default_text = "auto",
       .group = "Model"},
      set_choice({"auto", "dummy"},
                 [&options](size_t place) { options.load_format = static_cast<LoadFormat>(place); }));
  command.option({.names = "--override",
                  .value = "KEY=VALUE",
                  .purpose = "Replace the value of a key of config.json; VALUE is JSON; may be repeated",
                  .default_text = "what the file says",
                  .group = "Model",
                  .repeatable = true},
                 add_override(&options.overrides));
  command.option({.names = "--max-model-len,--context-length",
                  .value = "TOKENS",
                  .purpose = "Maximum length of prompt and answer together, in tokens",
                  .default_text = "as long as model and memory allow",
                  .group = "Model"},
                 set_tokens(&options.max_model_len_tokens, {1, kMaxTokens}));
}

void add_device_options(Command& command, EngineOptions& options) {
  command.option(
      {.names = "--device",
       .value = "DEVICE",
       .purpose = "Where to run: cpu or cuda",
       .default_text = "cpu",
       .group = "Engine"},
      set_choice({"cpu", "cuda"}, [&options](size_t place) { options.device = static_cast<Device>(place); }));
  command.option(
      {.names = "--kernels",
       .value = "SET",
       .purpose = "On a GPU: auto: tuned kernels for what they can do, with official numerics; or plain",
       .default_text = "auto",
       .group = "Engine"},
      set_choice({"auto", "plain"}, [&options](size_t place) { options.kernels = static_cast<DeviceKernels>(place); }));
  command.option({.names = "--graphs",
                  .value = "SWITCH",
                  .purpose = "On a GPU: start small steps as recorded graphs, on or off; never changes the answer",
                  .default_text = "on",
                  .group = "Engine"},
                 set_choice({"on", "off"}, [&options](size_t place) { options.graphs = place == 0; }));
  command.option(
      {.names = "--overlap",
       .value = "SWITCH",
       .purpose =
           "On a GPU: start the next step before the results of one are read, on or off; never changes the answer",
       .default_text = "on",
       .group = "Engine"},
      set_choice({"on", "off"}, [&options](size_t place) { options.overlap = place == 0; }));
}

// How the model is computed, on whatever device.
void add_compute_options(Command& command, EngineOptions& options, Given& given) {
  command.option({.names = "--threads",
                  .value = "N",
                  .purpose = "Maximum number of threads that compute",
                  .default_text = "one per processor that this process may use, within its CPU quota",
                  .group = "Engine"},
                 set_int(&given.n_threads, {1, kMaxThreads}));
  command.option({.names = "--isa",
                  .value = "SET",
                  .purpose = "CPU kernel set: plain, avx2, avx512, avx512-bf16 or amx-bf16",
                  .default_text = "the fastest of this processor",
                  .group = "Engine"},
                 set_choice(isa_names(), [&options](size_t place) { options.isa = kIsas.at(place); }));
  command.option(
      {.names = "--numerics",
       .value = "MODE",
       .purpose = "reference (f32 throughout), official (as DeepSeek's code rounds) or fast (bf16 products, f32 sums)",
       .default_text = "fast; on a GPU official, or with --kv-cache-dtype fast",
       .group = "Engine"},
      set_choice({"reference", "official", "fast"},
                 [&given](size_t place) { given.numerics = static_cast<NumericsMode>(place); }));
  command.option({.names = "--kv-cache-dtype",
                  .value = "DTYPE",
                  .purpose = "Type of KV cache rows with --numerics fast: auto, bf16 or fp8",
                  .default_text = "auto",
                  .group = "Engine"},
                 set_choice({"auto", "bf16", "fp8"}, [&options](size_t place) {
                   options.kv_cache_dtype = std::vector<std::string>{"auto", "bf16", "fp8"}[place];
                 }));
  command.option(
      {.names = "--chunk",
       .value = "TOKENS",
       .purpose = "Prompt tokens of a request per step (chunked prefill); changes speed and memory, never the answer",
       .default_text = std::to_string(options.chunk_tokens),
       .group = "Engine"},
      set_tokens(&options.chunk_tokens, {1, 65536}));
}

}  // namespace

std::shared_ptr<EngineOptions> add_engine_options(Command& command, ModelArgument model) {
  auto options = std::make_shared<EngineOptions>();
  auto given = std::make_shared<Given>();
  add_model_options(command, *options, *given, model);
  add_device_options(command, *options);
  add_compute_options(command, *options, *given);
  // The check keeps both alive: the setters hold plain pointers.
  command.check([options, given](const Environment& environment) { return complete(*options, *given, environment); });
  return options;
}

}  // namespace levin::app
