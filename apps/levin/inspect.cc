// levin inspect: what a checkpoint holds, what it needs, and what would run it. config.json is enough; the index adds
// the names of the tensors, the shards their dtypes and bytes.
#include <fmt/core.h>

#include <array>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>

#include "apps/levin/commands.h"
#include "apps/levin/engine_options.h"
#include "apps/levin/kernel_text.h"
#include "apps/levin/model_text.h"
#include "arch/load_config.h"
#include "base/memory.h"
#include "io/json.h"
#include "model/architecture.h"
#include "model/memory_plan.h"
#include "model/op_forms.h"
#include "model/weight_table.h"

namespace levin::app {
namespace {

constexpr std::array<NumericsMode, 3> kModes = {NumericsMode::kReference, NumericsMode::kOfficial, NumericsMode::kFast};

struct DtypeCount {
  int64_t n_tensors = 0;
  int64_t n_bytes = 0;
};

// Everything that is printed, as text or JSON.
struct Inspection {
  std::string folder;
  std::vector<ConfigOverride> overrides;
  ModelConfig config;
  std::vector<std::string> warnings;
  std::optional<io::Checkpoint> checkpoint;  // none: config.json alone
  bool has_mtp = false;                      // with a checkpoint; otherwise what the config says
  std::map<std::string, DtypeCount> dtypes;  // by dtype name; empty without the shards
  std::vector<std::pair<NumericsMode, MemoryPlan>> plans;
  int64_t n_tokens = 0;  // the context the plans are shown for
  int64_t available_bytes = 0;
  Isa isa = Isa::kPlain;
  NumericsMode mode = NumericsMode::kFast;  // that `kernels` is of
  std::vector<ChosenKernel> kernels;        // empty: a form has none, and a warning says so
  std::vector<ChosenKernel> gpu_kernels;    // of a Hopper device in official numerics; empty: the family has none
};

bool is_there(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

// The tensors, or their names alone when the shards are not there, or nothing when there is no index either.
Result<std::optional<io::Checkpoint>> open_checkpoint(const EngineOptions& options) {
  const std::filesystem::path folder = options.model_folder;
  const bool single = is_there(folder / "model.safetensors"), index = is_there(folder / "model.safetensors.index.json");
  if (options.load_format == LoadFormat::kDummy || (!single && !index)) return std::optional<io::Checkpoint>();
  LEVIN_ASSIGN(io::Checkpoint names, io::Checkpoint::open(folder, io::CheckpointMode::kNames));
  if (names.has_tensors()) return std::optional(std::move(names));
  bool any_shard = false;
  for (const std::string& shard : names.shard_names()) any_shard |= is_there(folder / shard);
  if (!any_shard) return std::optional(std::move(names));
  LEVIN_ASSIGN(io::Checkpoint tensors, io::Checkpoint::open(folder));
  return std::optional(std::move(tensors));
}

Status read_checkpoint(const EngineOptions& options, Inspection* out) {
  LEVIN_ASSIGN(out->checkpoint, open_checkpoint(options));
  out->has_mtp = out->config.n_mtp_layers > 0;
  if (!out->checkpoint) {
    out->warnings.emplace_back("no safetensors here: types and sizes are those that a release with this config has");
    return {};
  }
  const io::Checkpoint& checkpoint = *out->checkpoint;
  const WeightReport report = validate_weights(out->config, checkpoint);
  if (!report.errors.empty()) return weights_error(checkpoint, "the tensors do not fit config.json", report.errors);
  out->has_mtp = report.has_mtp;
  out->warnings.insert(out->warnings.end(), report.warnings.begin(), report.warnings.end());
  if (!checkpoint.has_tensors()) {
    out->warnings.emplace_back(
        "the shards are not here: types and sizes are those that a release with this config has");
  }
  for (const io::StoredTensor& tensor : checkpoint.tensors()) {
    DtypeCount& count = out->dtypes[std::string(io::dtype_name(tensor.dtype))];
    ++count.n_tensors;
    count.n_bytes += static_cast<int64_t>(tensor.bytes.size());
  }
  return {};
}

// What runs the model in a numerics mode, or a warning that something does not.
void choose_kernels_of(const Numerics& numerics, Inspection* out) {
  const io::Checkpoint* checkpoint = out->checkpoint ? &*out->checkpoint : nullptr;
  const std::vector<OpForm> forms = op_forms(out->config, numerics, checkpoint);
  Result<std::vector<ChosenKernel>> chosen = choose_kernels(cpu_kernel_set(out->isa), forms);
  if (!chosen.ok()) {
    out->warnings.push_back(fmt::format("not in {}: {}", numerics_mode_name(numerics.mode), chosen.error().message));
  } else if (numerics.mode == out->mode) {
    out->kernels = std::move(chosen).value();
  }
  if (numerics.mode != NumericsMode::kOfficial || !out->config.family->cuda_lacks.empty()) return;
  Result<std::vector<ChosenKernel>> on_gpu = choose_kernels(cuda_kernel_set(cuda::KernelSet::kSm90), forms);
  if (on_gpu.ok()) out->gpu_kernels = std::move(on_gpu).value();
}

Result<Inspection> inspect(const EngineOptions& options) {
  Inspection out{.folder = options.model_folder,
                 .overrides = options.overrides,
                 .isa = options.isa.value_or(cpu_info().preferred_isa()),
                 .mode = options.numerics};
  LEVIN_ASSIGN(ParsedConfig parsed, load_model_config(options.model_folder, *options.registry, options.overrides));
  out.config = std::move(parsed.config);
  out.warnings = std::move(parsed.warnings);
  LEVIN_TRY(read_checkpoint(options, &out));
  if (options.max_model_len_tokens > out.config.max_position) {
    return Error{ErrorKind::kUsage,
                 fmt::format("--max-model-len {} is more than the model's {} positions; give at most that",
                             options.max_model_len_tokens, out.config.max_position)};
  }
  out.n_tokens = options.max_model_len_tokens > 0 ? options.max_model_len_tokens : out.config.max_position;
  out.available_bytes = memory_info().available_bytes;
  for (const NumericsMode mode : kModes) {
    LEVIN_ASSIGN(const Numerics numerics,
                 make_numerics(mode, mode == NumericsMode::kFast ? options.kv_cache_dtype : "auto"));
    const Numerics own = numerics_of_family(numerics, *out.config.family);
    choose_kernels_of(own, &out);
    MemoryPlan plan = plan_memory(out.config, own, out.checkpoint ? &*out.checkpoint : nullptr,
                                  {.n_step_tokens = options.chunk_tokens, .n_undone = options.n_spec_steps});
    plan.prefix_bytes = choose_prefix_bytes(plan, {.asked_tokens = options.max_model_len_tokens,
                                                   .max_position = out.config.max_position,
                                                   .available_bytes = out.available_bytes});
    out.plans.emplace_back(mode, plan);
  }
  return out;
}

// ---- as text -----------------------------------------------------------------------------------------------------

std::string bytes_text(int64_t n_bytes) {
  const double bytes = static_cast<double>(n_bytes);
  if (bytes < 10 * 1024.0) return fmt::format("{} B", n_bytes);
  if (bytes < 10 * 1024.0 * 1024.0) return fmt::format("{:.1f} KiB", bytes / 1024.0);
  if (bytes < 10 * 1024.0 * 1024.0 * 1024.0) return fmt::format("{:.1f} MiB", bytes / (1024.0 * 1024.0));
  return fmt::format("{:.1f} GiB", bytes / (1024.0 * 1024.0 * 1024.0));
}

std::string count_text(int64_t count) {
  if (count < 10'000'000) return fmt::format("{:.3f} M", static_cast<double>(count) * 1e-6);
  return count < 10'000'000'000 ? fmt::format("{:.1f} M", static_cast<double>(count) * 1e-6)
                                : fmt::format("{:.1f} B", static_cast<double>(count) * 1e-9);
}

void print_model(const Inspection& i) {
  const ModelConfig& c = i.config;
  const MemoryPlan& plan = i.plans.front().second;
  fmt::print("{}\n\n", i.folder);
  fmt::print("model       {} ({})\n", c.family->name, c.architecture);
  fmt::print("family      {}\n", c.family->releases);
  if (!i.overrides.empty()) fmt::print("override    {}\n", overrides_text(i.overrides));
  const std::string_view drafter = c.n_draft_block > 0 ? "drafter" : "MTP";
  fmt::print("parameters  {}, of them {} {}\n", count_text(plan.n_parameters), drafter,
             count_text(plan.n_mtp_parameters));
  fmt::print("layers      {} ({} dense, {} with experts), {} {}\n", c.n_layers, c.n_dense_layers,
             c.n_layers - c.n_dense_layers, drafter, i.has_mtp ? "yes" : "no");
  fmt::print("{}", model_text(c));
}

void print_tensors(const Inspection& i) {
  if (i.dtypes.empty()) {
    if (i.checkpoint)
      fmt::print("\ntensors     {} names in {} shards\n", i.checkpoint->names().size(),
                 i.checkpoint->shard_names().size());
    return;
  }
  fmt::print("\ntensors     {} in {} file{}, {}\n", i.checkpoint->names().size(), i.checkpoint->files().size(),
             i.checkpoint->files().size() == 1 ? "" : "s", bytes_text(i.checkpoint->total_bytes()));
  for (const auto& [name, count] : i.dtypes)
    fmt::print("  {:<9} {:>7} tensors  {:>11}\n", name, count.n_tensors, bytes_text(count.n_bytes));
}

void print_plans(const Inspection& i) {
  fmt::print("\nmemory      {} available here; caches for {} tokens\n", bytes_text(i.available_bytes), i.n_tokens);
  if (const int64_t mapped = i.plans.front().second.mapped_bytes; mapped > 0) {
    fmt::print("            {} of tables stay in their files: of them the system keeps what it has room for\n",
               bytes_text(mapped));
  }
  if (i.plans.front().second.sequence_bytes > 0) {
    fmt::print("            a running request takes ");
    for (const auto& [mode, plan] : i.plans)
      fmt::print("{} in {}{}", bytes_text(plan.sequence_bytes), numerics_mode_name(mode),
                 mode == kModes.back() ? "" : ", ");
    fmt::print(", whatever its length; totals are for one\n");
  }
  if (const MemoryPlan& first = i.plans.front().second; first.block_bytes > 0) {
    fmt::print("            {} tokens of a cached prefix take ", first.block_tokens);
    for (const auto& [mode, plan] : i.plans)
      fmt::print("{} in {}{}", bytes_text(plan.block_bytes), numerics_mode_name(mode),
                 mode == kModes.back() ? "" : ", ");
    fmt::print("; totals include up to {} for cached prefixes\n", bytes_text(first.prefix_bytes));
  }
  fmt::print("  {:<10} {:>11} {:>14} {:>11} {:>11} {:>11}  {}\n", "numerics", "weights", "cache a token", "caches",
             "workspace", "total", "longest context here");
  for (const auto& [mode, plan] : i.plans) {
    const int64_t longest = std::min(longest_context(plan, i.available_bytes), i.config.max_position);
    fmt::print(
        "  {:<10} {:>11} {:>14} {:>11} {:>11} {:>11}  {}\n", numerics_mode_name(mode), bytes_text(plan.weights_bytes),
        bytes_text(plan.cache_bytes(1)), bytes_text(plan.cache_bytes(i.n_tokens)), bytes_text(plan.workspace_bytes),
        bytes_text(plan.total_bytes(i.n_tokens)), longest > 0 ? fmt::format("{} tokens", longest) : "does not fit");
  }
}

void print_text(const Inspection& i) {
  print_model(i);
  print_tensors(i);
  print_plans(i);
  fmt::print("\nkernels     {}\n", kernel_text(i.isa));
  for (const ChosenKernel& k : i.kernels) fmt::print("  {:<12} {}\n", k.kernel, k.form.describe());
  if (!i.gpu_kernels.empty()) {
    fmt::print(
        "\non a GPU    of compute capability 9.0 with --numerics official, the default there; elsewhere cuda-plain "
        "runs "
        "all\n");
    for (const ChosenKernel& k : i.gpu_kernels) {
      fmt::print("  {:<12} {}{}\n", k.kernel, k.form.describe(), k.refused.empty() ? "" : "; " + k.refused);
    }
  }
  for (const std::string& warning : i.warnings) fmt::print("warning     {}\n", warning);
}

// ---- as JSON -----------------------------------------------------------------------------------------------------

io::JsonObject plan_json(const MemoryPlan& plan, const Inspection& i) {
  return {{"weights_bytes", plan.weights_bytes},
          {"mtp_weights_bytes", plan.mtp_weights_bytes},
          {"mapped_bytes", plan.mapped_bytes},
          {"latent_bytes_per_token", plan.latent_bytes_per_token},
          {"index_bytes_per_token", plan.index_bytes_per_token},
          {"cache_bytes", plan.cache_bytes(i.n_tokens)},
          {"sequence_bytes", plan.sequence_bytes},
          {"prefix_block_bytes", plan.block_bytes},
          {"prefix_bytes", plan.prefix_bytes},
          {"workspace_bytes", plan.workspace_bytes},
          {"total_bytes", plan.total_bytes(i.n_tokens)},
          {"longest_context_here", std::min(longest_context(plan, i.available_bytes), i.config.max_position)}};
}

io::JsonArray kernels_json(const std::vector<ChosenKernel>& kernels) {
  io::JsonArray forms;
  for (const ChosenKernel& k : kernels) {
    io::JsonObject form{{"op", k.form.op}, {"form", k.form.describe()}, {"kernel", k.kernel}};
    if (!k.refused.empty()) form.set("refused", k.refused);
    forms.push_back(std::move(form));
  }
  return forms;
}

void print_json(const Inspection& i) {
  io::JsonObject dtypes, plans;
  for (const auto& [name, count] : i.dtypes)
    dtypes.set(name, io::JsonObject{{"tensors", count.n_tensors}, {"bytes", count.n_bytes}});
  for (const auto& [mode, plan] : i.plans) plans.set(numerics_mode_name(mode), plan_json(plan, i));
  io::JsonObject overrides;
  for (const ConfigOverride& o : i.overrides) overrides.set(o.key, o.value);
  const MemoryPlan& plan = i.plans.front().second;
  io::JsonObject out = {{"folder", i.folder},
                        {"model", i.config.family->name},
                        {"family", i.config.family->releases},
                        {"architecture", i.config.architecture},
                        {"overrides", std::move(overrides)},
                        {"parameters", plan.n_parameters},
                        {"mtp_parameters", plan.n_mtp_parameters},
                        {"has_mtp", i.has_mtp},
                        {"config", model_json(i.config)}};
  out.set("n_tensors", i.checkpoint ? static_cast<int64_t>(i.checkpoint->names().size()) : int64_t{0});
  out.set("tensors_by_dtype", std::move(dtypes));
  out.set("context_tokens", i.n_tokens);
  out.set("available_bytes", i.available_bytes);
  out.set("memory", std::move(plans));
  out.set("kernels", isa_name(i.isa));
  out.set("kernels_by_form", kernels_json(i.kernels));
  out.set("gpu_kernels_by_form", kernels_json(i.gpu_kernels));
  out.set("warnings", io::JsonArray(i.warnings.begin(), i.warnings.end()));
  fmt::print("{}\n", io::dump_json(std::move(out)));
}

}  // namespace

void add_inspect(CommandLine& line) {
  Command& command = line.add(
      {.name = "inspect",
       .purpose = "Print architecture, tensors, memory plan and kernels of a checkpoint",
       .examples =
           "  levin inspect models/demo-v32\n"
           "  levin inspect deepseek-ai/DeepSeek-V3.2 --max-model-len 128k     config.json and the index are enough\n"
           "  levin inspect models/demo-v32 --json | jq .memory.fast\n"});
  const std::shared_ptr<EngineOptions> options = add_engine_options(command, ModelArgument::kRequired);
  command.hide({"device", "kernels", "graphs", "overlap", "threads"});
  const auto json = std::make_shared<bool>(false);
  command.option({.names = "--json", .purpose = "Print one JSON object", .group = "Output"}, set_flag(json.get()));
  command.action([options, json]() -> Status {
    LEVIN_ASSIGN(const Inspection inspection, inspect(*options));
    *json ? print_json(inspection) : print_text(inspection);
    return {};
  });
}

}  // namespace levin::app
