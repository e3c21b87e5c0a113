// levin serve: the HTTP server.
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <sstream>

#include "apps/levin/commands.h"
#include "apps/levin/conversation.h"
#include "apps/levin/engine_options.h"
#include "apps/levin/generation_options.h"
#include "io/mapped_file.h"
#include "serve/server.h"

namespace levin::app {
namespace {

constexpr size_t kMaxKeyFileBytes = size_t{1} << 20;

struct ServeCommand {
  serve::ServerOptions server;
  int port = 8000;
  std::string names, keys, origins, hosts;  // separated by commas
  std::string key_file;
  int64_t max_body_mib = 64;
  int64_t shutdown_s = 30;
  int64_t watchdog_s = 600;
  serve::LogFormat log_format = serve::LogFormat::kText;
};

// A key a line; empty lines and those that begin with # say nothing.
Status add_keys_of(const std::string& file, std::vector<std::string>* keys) {
  LEVIN_ASSIGN(const std::string text,
               io::read_file(file, {.max_bytes = kMaxKeyFileBytes, .kind = ErrorKind::kUsage, .accept_pipes = true}));
  const size_t n_before = keys->size();
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::string key = trimmed(line);
    if (!key.empty() && !key.starts_with('#')) keys->push_back(key);
  }
  if (keys->size() > n_before) return {};
  return Error{ErrorKind::kUsage, fmt::format("--api-key-file {} contains no key; write one per line", file)};
}

Status read_lists(const ServeCommand& command, serve::ServerOptions* options) {
  LEVIN_ASSIGN(options->api_keys, split_list("--api-key", "key", command.keys));
  if (!command.key_file.empty()) LEVIN_TRY(add_keys_of(command.key_file, &options->api_keys));
  LEVIN_ASSIGN(options->model_names, split_list("--served-model-name", "name", command.names));
  LEVIN_ASSIGN(options->cors_origins, split_list("--cors-origins", "origin", command.origins));
  LEVIN_ASSIGN(options->allowed_hosts, split_list("--allowed-hosts", "name", command.hosts));
  return {};
}

// SIGINT and SIGTERM: while the model is loading they end the process; then the first one is for wait(), and a second
// ends the process again.
class EndSignal {
 public:
  EndSignal() {
    loaded_ = 0;
    if (pipe2(pipe_, O_CLOEXEC) != 0) pipe_[0] = pipe_[1] = -1;
    struct sigaction action = {};
    action.sa_handler = note;
    action.sa_flags = SA_RESTART;
    for (const int signal : {SIGINT, SIGTERM}) sigaction(signal, &action, nullptr);
    std::signal(SIGPIPE, SIG_IGN);  // a client that left is noticed where it is written to
  }
  ~EndSignal() {
    for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, SIG_DFL);
    for (const int fd : pipe_) ::close(fd);
  }
  EndSignal(const EndSignal&) = delete;
  EndSignal& operator=(const EndSignal&) = delete;

  static void wait() {
    loaded_ = 1;
    char signal = 0;
    while (::read(pipe_[0], &signal, 1) < 0 && errno == EINTR) {
    }
    for (const int each : {SIGINT, SIGTERM}) std::signal(each, SIG_DFL);
  }
  static void end_wait() { note(0); }

 private:
  // A handler, and not a mask with a default action: as the first process of a container, where signals without a
  // handler are ignored, the server ends as well.
  static void note(int signal) {
    if (loaded_ == 0) ::_exit(128 + signal);
    const char byte = 0;
    if (::write(pipe_[1], &byte, 1) != 1) ::_exit(128 + signal);
  }

  static inline volatile std::sig_atomic_t loaded_ = 0;
  static inline int pipe_[2] = {-1, -1};
};

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

// A cache that could not hold one request of the longest context is made to.
std::string small_cache_text(const EngineOptions& options, const Engine& engine) {
  const int64_t longest = engine.max_context_tokens();
  if (options.cache_tokens == 0 || options.cache_tokens >= longest) return "";
  return fmt::format(
      "--cache-tokens {} is less than one request of the longest context takes: the cache has {} tokens; a smaller "
      "--max-model-len makes a smaller cache possible",
      options.cache_tokens, longest);
}

// Who restricts host names should not believe that they are checked where they are not.
std::string unused_hosts_text(const serve::ServerOptions& options, bool loopback_only) {
  if (options.allowed_hosts.empty() || (loopback_only && options.api_keys.empty())) return "";
  return fmt::format("--allowed-hosts is not used: {}, so requests are answered under any host name",
                     loopback_only ? "every request must carry a key" : "--host is no loopback address");
}

Status check_cache(const EngineOptions& options) {
  if (options.cache_tokens == 0 || options.cache_tokens >= options.max_model_len_tokens) return {};
  return Error{ErrorKind::kUsage,
               fmt::format("--cache-tokens {} is less than one request of --max-model-len {} takes; give at least as "
                           "many, or a smaller --max-model-len",
                           options.cache_tokens, options.max_model_len_tokens)};
}

// For answers that say so to reach their clients.
constexpr std::chrono::seconds kLostDeviceGrace{2};

Status run(EngineOptions engine_options, const GenerationOptions& generation, ServeCommand command) {
  const EndSignal end_signal;
  raise_descriptor_limit();
  serve::ServerOptions& options = command.server;
  options.http.port = static_cast<uint16_t>(command.port);
  options.http.max_body_bytes = static_cast<size_t>(command.max_body_mib) << 20;
  serve::Log log(command.log_format);
  const auto note = [&log](const std::string& line) { log.write(serve::LogLevel::kWarning, "note", line); };
  options.http.note = note;
  LEVIN_TRY(read_lists(command, &options));
  LEVIN_ASSIGN(std::unique_ptr<serve::Listener> listener, serve::Listener::open(options.http));
  log.info(
      "loading",
      fmt::format("{} port {} answers with status 503 until the model is loaded", options.http.host, listener->port()),
      {{"host", options.http.host}, {"port", listener->port()}});
  engine_options.note = note;
  engine_options.graphs_at_load = true;
  const auto warn = [&log](const std::string& warning) { log.write(serve::LogLevel::kWarning, "warning", warning); };
  LEVIN_ASSIGN(const ChatModel model, ChatModel::load(engine_options, warn));
  log_model(log, command.log_format, *model.engine);
  for (const std::string& text :
       {small_cache_text(engine_options, *model.engine), unused_hosts_text(options, listener->loopback_only())}) {
    if (!text.empty()) warn(text);
  }
  options.version = LEVIN_VERSION;
  if (options.model_names.empty()) {
    options.model_names = {std::filesystem::weakly_canonical(engine_options.model_folder).filename().string()};
  }
  options.defaults = {.sampling = generation.sampling,
                      .ignore_eos = generation.sampling.stop_tokens.empty(),
                      .seed = generation.random_seed ? std::nullopt : std::optional(generation.sampling.seed),
                      .stop_strings = generation.stop_strings,
                      .max_tokens = generation.max_tokens};
  options.defaults.sampling.stop_tokens = generation.eos_tokens;  // for requests that do not ignore them
  options.watch.limit = std::chrono::seconds(command.watchdog_s);
  options.log = &log;
  std::promise<Error> lost_device;
  std::future<Error> lost = lost_device.get_future();
  options.on_lost_device = [&](const Error& error) {
    lost_device.set_value(error);
    EndSignal::end_wait();
  };
  const std::unique_ptr<serve::Server> server =
      serve::Server::start(options, std::move(listener), *model.engine, *model.tokenizer, *model.format);
  log.info("sampling", fmt::format("defaults: temperature {}, top-p {}, top-k {}", generation.sampling.temperature,
                                   generation.sampling.top_p, generation.sampling.top_k));
  log.info("ready",
           fmt::format("http://{}:{}/v1 serves {}", options.http.host, server->port(), options.model_names.front()),
           {{"host", options.http.host}, {"port", server->port()}, {"model", options.model_names.front()}});
  end_signal.wait();
  if (lost.wait_for(std::chrono::seconds(0)) == std::future_status::ready) {
    Error error = lost.get();
    log.write(serve::LogLevel::kError, "device", error.message + "; running and new requests get status 503");
    server->stop(kLostDeviceGrace);
    return error;
  }
  log.info("ending", fmt::format("running answers have {} s to finish", command.shutdown_s));
  server->stop(std::chrono::seconds(command.shutdown_s));
  return {};
}

void add_server_options(Command& command, ServeCommand& serve) {
  const OptionGroup add(command, "Server");
  add("--host", "ADDRESS", "Address or host name to listen on; 0.0.0.0 for all", "127.0.0.1",
      set_text(&serve.server.http.host));
  add("--port", "N", "Port to listen on; 0: any free port", "8000", set_int(&serve.port, {.min = 0, .max = 65535}));
  add("--served-model-name,--alias", "NAMES", "Names of the model for clients, separated by commas",
      "the folder's name", set_text(&serve.names));
  add("--any-model", "", "Accept any model name in requests", "off", set_flag(&serve.server.any_model_name));
  add("--api-key", "KEYS", "API keys, separated by commas; every request must carry one of them", "no key needed",
      set_text(&serve.keys));
  add("--api-key-file", "FILE", "File with one API key per line, so that process listings do not show them", "none",
      set_text(&serve.key_file));
  add("--cors-origins", "ORIGINS", "Origins whose web pages may call the server, separated by commas; *: any", "none",
      set_text(&serve.origins));
  add("--allowed-hosts", "NAMES",
      "Host names, separated by commas, that a server without keys on a loopback address answers to, in addition to "
      "localhost; *: any",
      "none", set_text(&serve.hosts));
  add("--thinking", "on|off", "Reason before the answer, unless the request says otherwise", "off",
      set_flag(&serve.server.thinking));
  add("--reasoning-field", "NAME", "Field of answers that has the reasoning: both, reasoning_content or reasoning",
      "both", set_choice({"both", "reasoning_content", "reasoning"}, [&serve](size_t place) {
        serve.server.reasoning_field = static_cast<serve::ReasoningField>(place);
      }));
  add("--max-queued-requests", "N", "Maximum number of open requests, running and waiting; more get status 429", "1024",
      set_int(&serve.server.max_queued, {.min = 1, .max = 1'000'000}));
  add("--max-body-mib", "MIB", "Maximum size of a request body", "64",
      set_int(&serve.max_body_mib, {.min = 1, .max = 4096}));
  add("--watchdog-timeout", "SECONDS",
      "Maximum duration of an engine step; a longer one is logged and its requests end with an error; 0: no limit",
      "600", set_int(&serve.watchdog_s, {.min = 0, .max = 86400}));
  add("--log-format", "FORMAT", "Format of the log on standard error: text, or json with one object per line", "text",
      set_choice({"text", "json"},
                 [&serve](size_t place) { serve.log_format = static_cast<serve::LogFormat>(place); }));
  add("--shutdown-timeout", "SECONDS", "How long running requests may take to finish after SIGTERM or Ctrl-C", "30",
      set_int(&serve.shutdown_s, {.min = 0, .max = 86400}));
}

}  // namespace

void add_serve(CommandLine& line) {
  Command& command =
      line.add({.name = "serve",
                .purpose = "Serve a model to OpenAI and Anthropic clients over HTTP",
                .examples = "  levin serve models/demo-v32\n"
                            "  levin serve ./DeepSeek-V3.2 --host 0.0.0.0 --port 8080 --api-key SECRET\n"});
  const std::shared_ptr<EngineOptions> engine = add_engine_options(command, ModelArgument::kRequired);
  const std::shared_ptr<GenerationOptions> generation = add_generation_options(command, engine);
  add_speculation_options(command, engine);
  engine->max_running = 64;
  const auto serve = std::make_shared<ServeCommand>();
  command.option({.names = "--max-num-seqs,--max-running-requests",
                  .value = "N",
                  .purpose = "Maximum number of running requests; others wait",
                  .default_text = std::to_string(engine->max_running),
                  .group = "Server"},
                 set_int(&engine->max_running, {.min = 1, .max = 4096}));
  command.option({.names = "--cache-tokens",
                  .value = "TOKENS",
                  .purpose = "Size of the KV cache for all requests together, cached prefixes included",
                  .default_text = "one request of the longest context",
                  .group = "Server"},
                 set_tokens(&engine->cache_tokens, {.min = 1, .max = int64_t{1} << 32}));
  command.option({.names = "--prefix-memory",
                  .value = "SIZE",
                  .purpose = "Host memory for the prefix cache of models whose cache pages cannot be shared "
                             "(DeepSeek-V4, DeepSeek-V4.1, GLM-5.3-Flash), as 512M, 2G or a number of GiB",
                  .default_text = "a quarter of the memory left, at most 4G",
                  .group = "Server"},
                 set_bytes(&engine->prefix_memory_bytes, {.min = 0, .max = int64_t{1} << 50}));
  command.option({.names = "--cache-dir",
                  .value = "FOLDER",
                  .purpose = "Keep the prefix cache on disk too, so that it survives a restart",
                  .default_text = "off",
                  .group = "Server"},
                 set_text(&engine->cache_dir));
  command.option(
      {.names = "--cache-dir-size",
       .value = "SIZE",
       .purpose = "Maximum size of --cache-dir, as 512M, 20G or a number of GiB; the least recently used pages are "
                  "deleted first",
       .default_text = "16G",
       .group = "Server"},
      set_bytes(&engine->cache_dir_bytes, {.min = int64_t{1} << 20, .max = int64_t{1} << 50}));
  add_server_options(command, *serve);
  command.check([engine](const Environment&) { return check_cache(*engine); });
  command.action([engine, generation, serve] { return run(*engine, *generation, *serve); });
}

}  // namespace levin::app
