// levin export-gguf: the same weights as GGUF, to run llama.cpp and its relatives on them.
#include <fmt/core.h>

#include <filesystem>
#include <memory>
#include <optional>

#include "apps/levin/commands.h"
#include "apps/levin/engine_options.h"
#include "apps/levin/gguf_tokenizer.h"
#include "apps/levin/progress.h"
#include "arch/load_config.h"
#include "io/mapped_file.h"
#include "model/gguf_export.h"

namespace levin::app {
namespace {

struct ExportCommand {
  std::string out_file;
  GgufOptions gguf;
};

struct TypeName {
  const char* name;
  io::GgufType type;
  uint32_t file_type;  // general.file_type
};
constexpr TypeName kTypes[] = {
    {"bf16", io::GgufType::kBF16, 32}, {"f16", io::GgufType::kF16, 1}, {"f32", io::GgufType::kF32, 0}};

const TypeName& type_name(io::GgufType type) {
  for (const TypeName& known : kTypes) {
    if (known.type == type) return known;
  }
  return kTypes[0];
}

// What the tensors are read from, kept as long as they are.
struct Source {
  std::optional<io::Checkpoint> checkpoint;
  TensorSource tensors;
};

Result<std::unique_ptr<Source>> open_source(const EngineOptions& options, const ModelConfig& config,
                                            std::vector<std::string>* warnings) {
  auto source = std::make_unique<Source>();
  if (options.load_format == LoadFormat::kDummy) {
    source->tensors = dummy_tensors(config);
    return source;
  }
  LEVIN_ASSIGN(source->checkpoint, io::Checkpoint::open(options.model_folder));
  const WeightReport report = validate_weights(config, *source->checkpoint);
  if (!report.errors.empty())
    return weights_error(*source->checkpoint, "the tensors do not fit config.json", report.errors);
  warnings->insert(warnings->end(), report.warnings.begin(), report.warnings.end());
  source->tensors = checkpoint_tensors(*source->checkpoint, report.has_mtp);
  return source;
}

std::string rounding_text(const GgufRounding& rounding, const char* type) {
  if (rounding.n_rounded == 0) return "all values exact";
  return fmt::format("{} of {} values rounded to {}", rounding.n_rounded, rounding.n_values, type);
}

Status run_export(const EngineOptions& options, const ExportCommand& command) {
  LEVIN_ASSIGN(const ParsedConfig parsed,
               load_model_config(options.model_folder, *options.registry, options.overrides));
  std::vector<std::string> warnings = parsed.warnings;
  LEVIN_ASSIGN(const std::unique_ptr<Source> source, open_source(options, parsed.config, &warnings));
  LEVIN_ASSIGN(GgufExport gguf, export_gguf(parsed.config, source->tensors, command.gguf));
  warnings.insert(warnings.end(), gguf.warnings.begin(), gguf.warnings.end());
  for (const std::string& warning : warnings) fmt::print(stderr, "warning: {}\n", warning);
  const TypeName& type = type_name(command.gguf.matrices);
  gguf.file.set("general.name", std::filesystem::weakly_canonical(options.model_folder).filename().string());
  gguf.file.set("general.file_type", type.file_type);
  LEVIN_TRY(set_gguf_tokenizer(options.model_folder, parsed.config, &gguf.file));
  LoadBar bar;
  LEVIN_TRY(gguf.file.write(command.out_file, bar.progress().on_bytes));
  bar.finish();
  fmt::print(stderr, "{} tensors, {:.1f} MiB, written to {}; {}\n", gguf.file.tensors().size(),
             static_cast<double>(gguf.file.data_bytes()) / (1024.0 * 1024.0), command.out_file,
             rounding_text(*gguf.rounding, type.name));
  return {};
}

}  // namespace

void add_export_gguf(CommandLine& line) {
  Command& command = line.add(
      {.name = "export-gguf",
       .purpose = "Write the weights as GGUF, for comparisons with other programs",
       .examples = "  levin export-gguf models/demo-v32 --out demo.gguf\n"
                   "  levin export-gguf CONFIG_FOLDER --load-format dummy --architecture glm-dsa --out layer.gguf\n"});
  const std::shared_ptr<EngineOptions> options = add_engine_options(command, ModelArgument::kRequired);
  command.hide(
      {"max-model-len", "device", "kernels", "graphs", "threads", "isa", "numerics", "kv-cache-dtype", "chunk"});
  const auto gguf = std::make_shared<ExportCommand>();
  command.option(
      {.names = "--out", .value = "FILE", .purpose = "GGUF file to write", .default_text = "", .group = "Export"},
      set_text(&gguf->out_file));
  command.option(
      {.names = "--type",
       .value = "TYPE",
       .purpose = "Type of matrices: bf16, f16 or f32; MXFP4 experts stay MXFP4",
       .default_text = "bf16",
       .group = "Export"},
      set_choice({"bf16", "f16", "f32"}, [gguf](size_t place) { gguf->gguf.matrices = kTypes[place].type; }));
  command.option(
      {.names = "--architecture",
       .value = "NAME",
       .purpose = "Architecture in the file: deepseek32 (llama.cpp only), glm-dsa (also ik_llama.cpp) or deepseek4",
       .default_text = "the family's own",
       .group = "Export"},
      set_text(&gguf->gguf.architecture));
  command.check([gguf](const Environment&) -> Status {
    if (gguf->out_file.empty()) return Error{ErrorKind::kUsage, "--out is missing: the GGUF file to write"};
    return io::check_writable(gguf->out_file);
  });
  command.action([options, gguf] { return run_export(*options, *gguf); });
}

}  // namespace levin::app
