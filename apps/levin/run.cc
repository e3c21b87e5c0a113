// levin run: one chat turn.
#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <memory>

#include "apps/levin/commands.h"
#include "apps/levin/engine_options.h"
#include "apps/levin/progress.h"
#include "engine/engine.h"
#include "text/chat.h"
#include "text/stream_decoder.h"
#include "text/tokenizer.h"

namespace levin::app {
namespace {

struct RunCommand {
  std::string prompt;
  std::string system;
  bool thinking = false;
  double temperature = 0;
  int64_t max_tokens = 0;
};

volatile std::sig_atomic_t interrupted = 0;

void note_interrupt(int) { interrupted = 1; }

void print_now(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

Result<std::vector<int32_t>> render_prompt(const RunCommand& command, const text::Tokenizer& tokenizer,
                                           const text::ChatFormat& format) {
  text::ChatRequest request{.thinking = command.thinking};
  if (!command.system.empty()) request.messages.push_back({.role = text::Role::kSystem, .content = command.system});
  request.messages.push_back({.role = text::Role::kUser, .content = command.prompt});
  LEVIN_ASSIGN(const std::vector<text::Segment> segments, format.render(request));
  return tokenizer.encode(segments);
}

void print_statistics(const Generation& answer, int64_t n_prompt) {
  const double n_decoded = static_cast<double>(answer.tokens.size()) - 1;
  fmt::print(stderr, "\n[{} prompt tokens at {:.1f} tokens/s, {} tokens at {:.1f} tokens/s, {}]\n", n_prompt,
             static_cast<double>(n_prompt) / answer.prefill_s, answer.tokens.size(),
             answer.decode_s > 0 ? n_decoded / answer.decode_s : 0.0, finish_reason_name(answer.finish_reason));
}

Status run_prompt(const EngineOptions& options, const RunCommand& command) {
  LEVIN_ASSIGN(const text::Tokenizer tokenizer, text::Tokenizer::load(options.model_folder));
  LEVIN_ASSIGN(const text::ChatFormat format, text::ChatFormat::make(text::ChatFamily::kDeepSeekV32, tokenizer));
  LoadBar bar;
  LEVIN_ASSIGN(const std::unique_ptr<Engine> engine, Engine::load(options, bar.progress()));
  bar.finish();
  for (const std::string& warning : engine->warnings()) fmt::print(stderr, "warning: {}\n", warning);
  fmt::print(stderr, "{}\n\n", engine->describe());

  GenerateRequest request{.max_tokens = command.max_tokens};
  request.sampling = {.temperature = command.temperature, .stop_tokens = engine->config().eos_tokens};
  LEVIN_ASSIGN(request.prompt, render_prompt(command, tokenizer, format));
  const int64_t n_prompt = static_cast<int64_t>(request.prompt.size());
  text::StreamDecoder decoder(tokenizer);
  std::signal(SIGINT, note_interrupt);
  request.on_token = [&](const TokenEvent& event) {
    print_now(decoder.push(event.token));
    return interrupted == 0;
  };
  LEVIN_ASSIGN(const Generation answer, engine->generate(std::move(request)));
  std::signal(SIGINT, SIG_DFL);
  print_now(decoder.finish() + "\n");
  print_statistics(answer, n_prompt);
  return {};
}

}  // namespace

void add_run(CommandLine& line) {
  Command& command = line.add(
      {.name = "run",
       .purpose = "Answer a prompt",
       .examples = "  levin run -p \"Repeat: river stone apple\" --temperature 0\n"
                   "  levin run models/demo-v32 -p \"What is the capital of Japan?\" --thinking on --temperature 0\n"});
  const std::shared_ptr<EngineOptions> options = add_engine_options(command, ModelArgument::kOptional);
  const auto run = std::make_shared<RunCommand>();
  const std::string group = "Prompt and answer";
  command.option(
      {.names = "-p,--prompt", .value = "TEXT", .purpose = "What to ask", .default_text = "", .group = group},
      set_text(&run->prompt));
  command.option(
      {.names = "--system", .value = "TEXT", .purpose = "System prompt", .default_text = "none", .group = group},
      set_text(&run->system));
  command.option({.names = "--thinking",
                  .value = "on|off",
                  .purpose = "Begin the answer with reasoning",
                  .default_text = "off",
                  .group = group},
                 set_flag(&run->thinking));
  command.option({.names = "-n,--max-tokens",
                  .value = "N",
                  .purpose = "Most tokens to answer",
                  .default_text = "as the context holds",
                  .group = group},
                 set_tokens(&run->max_tokens, {.min = 1}));
  command.option({.names = "--temperature",
                  .value = "T",
                  .purpose = "0: always the likeliest token, the only choice so far",
                  .default_text = "0",
                  .group = group},
                 set_number(&run->temperature, {.min = 0, .max = 0}));
  command.check([run](const Environment&) -> Status {
    if (run->prompt.empty()) return Error{ErrorKind::kUsage, "-p is missing: the text to answer"};
    return {};
  });
  command.action([options, run] { return run_prompt(*options, *run); });
}

}  // namespace levin::app
