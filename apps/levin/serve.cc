// levin serve: the HTTP server.
#include <fmt/core.h>
#include <sys/resource.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>

#include "apps/levin/commands.h"
#include "apps/levin/conversation.h"
#include "apps/levin/engine_options.h"
#include "apps/levin/generation_options.h"
#include "serve/server.h"

namespace levin::app {
namespace {

struct ServeCommand {
  serve::ServerOptions server;
  int port = 8000;
  std::string names, keys, origins;  // separated by commas
  int64_t max_body_mib = 64;
  int64_t shutdown_s = 30;
  int64_t cache_dir_gib = 16;
  std::optional<int64_t> prefix_memory_gib;  // empty: as the engine chooses
  int64_t watchdog_s = 600;
  serve::LogFormat log_format = serve::LogFormat::kText;
};

std::vector<std::string> split_list(const std::string& list) {
  std::vector<std::string> out;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    if (end > begin) out.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

// SIGINT and SIGTERM wait for wait_for_signal(), in every thread that is started from here on.
sigset_t hold_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::signal(SIGPIPE, SIG_IGN);  // a client that left is noticed where it is written to
  return set;
}

// Returns when the process is asked to end; a second request ends it at once.
void wait_for_signal(const sigset_t& set) {
  int signal = 0;
  sigwait(&set, &signal);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

// Every connection is a descriptor: take as many as the system lets us have.
void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// As the other commands print it; for machines a line of its own.
void log_model(serve::Log& log, serve::LogFormat format, const Engine& engine) {
  if (format == serve::LogFormat::kJson) return log.info("model", engine.describe());
  fmt::print(stderr, "{}\n", engine.describe());
}

Status run(EngineOptions engine_options, const GenerationOptions& generation, ServeCommand command) {
  const sigset_t signals = hold_signals();
  raise_descriptor_limit();
  engine_options.cache_dir_bytes = command.cache_dir_gib << 30;
  if (command.prefix_memory_gib) engine_options.prefix_memory_bytes = *command.prefix_memory_gib << 30;
  serve::Log log(command.log_format);
  engine_options.note = [&log](const std::string& line) { log.write(serve::LogLevel::kWarning, "note", line); };
  const auto warn = [&log](const std::string& warning) { log.write(serve::LogLevel::kWarning, "warning", warning); };
  LEVIN_ASSIGN(const ChatModel model, ChatModel::load(engine_options, warn));
  log_model(log, command.log_format, *model.engine);
  serve::ServerOptions& options = command.server;
  options.version = LEVIN_VERSION;
  options.http.port = static_cast<uint16_t>(command.port);
  options.http.max_body_bytes = static_cast<size_t>(command.max_body_mib) << 20;
  options.model_names = split_list(command.names);
  if (options.model_names.empty()) {
    options.model_names = {std::filesystem::weakly_canonical(engine_options.model_folder).filename().string()};
  }
  options.api_keys = split_list(command.keys);
  options.cors_origins = split_list(command.origins);
  options.sampling = generation.sampling;
  options.watch.limit = std::chrono::seconds(command.watchdog_s);
  options.log = &log;
  LEVIN_ASSIGN(const std::unique_ptr<serve::Server> server,
               serve::Server::start(options, *model.engine, *model.tokenizer, *model.format));
  log.info("sampling", fmt::format("temperature {}, top-p {}, top-k {} unless a request says otherwise",
                                   options.sampling.temperature, options.sampling.top_p, options.sampling.top_k));
  log.info("ready",
           fmt::format("http://{}:{}/v1 serves {}", options.http.host, server->port(), options.model_names.front()),
           {{"host", options.http.host}, {"port", server->port()}, {"model", options.model_names.front()}});
  wait_for_signal(signals);
  log.info("ending", fmt::format("running answers have {} s to finish", command.shutdown_s));
  server->stop(std::chrono::seconds(command.shutdown_s));
  return {};
}

void add_server_options(Command& command, ServeCommand& serve) {
  const OptionGroup add(command, "Server");
  add("--host", "ADDRESS", "Address to listen on; 0.0.0.0 for all", "127.0.0.1", set_text(&serve.server.http.host));
  add("--port", "N", "Port to listen on; 0: a free one", "8000", set_int(&serve.port, {.min = 0, .max = 65535}));
  add("--served-model-name,--alias", "NAMES", "Names of the model for clients, separated by commas",
      "the folder's name", set_text(&serve.names));
  add("--any-model", "", "Answer whatever model name a client asks for", "off", set_flag(&serve.server.any_model_name));
  add("--api-key", "KEYS", "Keys of which requests must bear one, separated by commas", "none needed",
      set_text(&serve.keys));
  add("--cors-origins", "ORIGINS", "Origins whose pages may call from a browser, separated by commas; *: any", "none",
      set_text(&serve.origins));
  add("--thinking", "on|off", "Reason before the answer where a request does not say", "off",
      set_flag(&serve.server.thinking));
  add("--reasoning-field", "NAME", "What answers call reasoning: both, reasoning_content or reasoning", "both",
      set_choice({"both", "reasoning_content", "reasoning"},
                 [&serve](size_t place) { serve.server.reasoning_field = static_cast<serve::ReasoningField>(place); }));
  add("--max-queued-requests", "N", "Requests that may be open at once; more are told to come back", "1024",
      set_int(&serve.server.max_queued, {.min = 1, .max = 1'000'000}));
  add("--max-body-mib", "MIB", "Longest body of a request", "64",
      set_int(&serve.max_body_mib, {.min = 1, .max = 4096}));
  add("--watchdog-timeout", "SECONDS",
      "Longest step; one that takes longer is reported, and who waits for it gets an error. 0: none", "600",
      set_int(&serve.watchdog_s, {.min = 0, .max = 86400}));
  add("--log-format", "FORMAT", "Of the log on standard error: text, or json with an object a line", "text",
      set_choice({"text", "json"},
                 [&serve](size_t place) { serve.log_format = static_cast<serve::LogFormat>(place); }));
  add("--shutdown-timeout", "SECONDS", "Time for running answers once the server is asked to end", "30",
      set_int(&serve.shutdown_s, {.min = 0, .max = 86400}));
}

}  // namespace

void add_serve(CommandLine& line) {
  Command& command =
      line.add({.name = "serve",
                .purpose = "Serve a model to OpenAI clients over HTTP",
                .examples = "  levin serve models/demo-v32\n"
                            "  levin serve ./DeepSeek-V3.2 --host 0.0.0.0 --port 8080 --api-key SECRET\n"});
  const std::shared_ptr<EngineOptions> engine = add_engine_options(command, ModelArgument::kRequired);
  const std::shared_ptr<GenerationOptions> generation = add_generation_options(command, engine);
  add_speculation_options(command, engine);
  engine->max_running = 64;
  const auto serve = std::make_shared<ServeCommand>();
  command.option({.names = "--max-num-seqs,--max-running-requests",
                  .value = "N",
                  .purpose = "Requests that are computed side by side",
                  .default_text = std::to_string(engine->max_running),
                  .group = "Server"},
                 set_int(&engine->max_running, {.min = 1, .max = 4096}));
  command.option({.names = "--cache-tokens",
                  .value = "TOKENS",
                  .purpose = "Cache of all requests together and of prompts to come back to",
                  .default_text = "one request of the longest context",
                  .group = "Server"},
                 set_tokens(&engine->cache_tokens, {.min = 1, .max = int64_t{1} << 32}));
  command.option({.names = "--prefix-memory",
                  .value = "GIB",
                  .purpose = "Memory for prompts to come back to where --cache-tokens cannot hold them: DeepSeek-V4's",
                  .default_text = "a quarter of what is left, at most 4",
                  .group = "Server"},
                 set_int(&serve->prefix_memory_gib, {.min = 0, .max = 1 << 20}));
  command.option(
      {.names = "--cache-dir",
       .value = "FOLDER",
       .purpose = "Keep computed prompts and answers here, so that a server that is started again knows them",
       .default_text = "not kept",
       .group = "Server"},
      set_text(&engine->cache_dir));
  command.option({.names = "--cache-dir-size",
                  .value = "GIB",
                  .purpose = "Most that --cache-dir may hold; what was used least recently goes",
                  .default_text = "16",
                  .group = "Server"},
                 set_int(&serve->cache_dir_gib, {.min = 1, .max = 1 << 20}));
  add_server_options(command, *serve);
  command.action([engine, generation, serve] { return run(*engine, *generation, *serve); });
}

}  // namespace levin::app
