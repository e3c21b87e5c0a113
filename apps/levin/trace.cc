// levin trace: runs given token ids and writes the tensors along the way, to be compared with another implementation.
#include "engine/trace.h"

#include <fmt/core.h>

#include <memory>

#include "apps/levin/commands.h"
#include "apps/levin/engine_options.h"
#include "apps/levin/ids_file.h"
#include "engine/engine.h"
#include "io/mapped_file.h"

namespace levin::app {
namespace {

struct TraceCommand {
  std::string ids_file;
  std::string out_file;
  TraceOptions trace;
};

Status run_trace(const EngineOptions& options, const TraceCommand& command) {
  TraceOptions trace = command.trace;
  trace.n_chunk_tokens = options.chunk_tokens;
  LEVIN_ASSIGN(trace.ids, read_ids_file(command.ids_file, options));
  EngineOptions drafting = options;
  drafting.n_spec_steps = trace.n_drafts;
  LEVIN_ASSIGN(const std::unique_ptr<Engine> engine, Engine::load(drafting, {}));
  for (const std::string& warning : engine->warnings()) fmt::print(stderr, "warning: {}\n", warning);
  LEVIN_ASSIGN(const TraceResult result, engine->trace(trace));
  LEVIN_TRY(write_trace(command.out_file, engine->config(), trace, result));
  fmt::print(stderr, "{} tokens traced to {}\n", trace.ids.size(), command.out_file);
  return {};
}

}  // namespace

void add_trace(CommandLine& line) {
  Command& command = line.add(
      {.name = "trace",
       .purpose = "Run token ids and write tensors, to compare with another implementation",
       .examples = "  levin trace models/demo-v32 --ids-file ids.txt --out trace.safetensors --numerics reference\n"
                   "  levin trace MODEL --ids-file ids.txt --out t.safetensors --greedy 16 --drafts 3 --chunk 64\n"});
  const std::shared_ptr<EngineOptions> options = add_engine_options(command, ModelArgument::kRequired);
  const auto trace = std::make_shared<TraceCommand>();
  command.option({.names = "--ids-file",
                  .value = "FILE",
                  .purpose = "File with the prompt as token ids separated by white space",
                  .default_text = "",
                  .group = "Trace"},
                 set_text(&trace->ids_file));
  command.option(
      {.names = "--out", .value = "FILE", .purpose = "Safetensors file to write", .default_text = "", .group = "Trace"},
      set_text(&trace->out_file));
  command.option({.names = "--greedy",
                  .value = "N",
                  .purpose = "Number of tokens to generate greedily after the prompt",
                  .default_text = "0",
                  .group = "Trace"},
                 set_int(&trace->trace.n_greedy, {.min = 0, .max = 1 << 20}));
  command.option({.names = "--drafts",
                  .value = "N",
                  .purpose = "Number of greedy drafts after the prompt and its first token",
                  .default_text = "0",
                  .group = "Trace"},
                 set_int(&trace->trace.n_drafts, {.min = 0, .max = 64}));
  command.check([trace](const Environment&) -> Status {
    if (trace->ids_file.empty())
      return Error{ErrorKind::kUsage, "--ids-file is missing: the file with the prompt's token ids"};
    if (trace->out_file.empty()) return Error{ErrorKind::kUsage, "--out is missing: the safetensors file to write"};
    return io::check_writable(trace->out_file);
  });
  command.action([options, trace] { return run_trace(*options, *trace); });
}

}  // namespace levin::app
