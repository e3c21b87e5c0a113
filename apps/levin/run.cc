// levin run: one answer, or a chat.
#include <fmt/core.h>
#include <unistd.h>

#include <cstdio>
#include <memory>

#include "apps/levin/answer_printer.h"
#include "apps/levin/chat.h"
#include "apps/levin/commands.h"
#include "apps/levin/conversation.h"
#include "apps/levin/engine_options.h"
#include "apps/levin/generation_options.h"
#include "apps/levin/ids_file.h"
#include "apps/levin/prompt_history.h"
#include "apps/levin/standard_input.h"
#include "apps/levin/terminal.h"
#include "apps/levin/tools_file.h"
#include "io/json.h"

namespace levin::app {
namespace {

struct RunCommand {
  std::string prompt;
  std::string ids_file;
  std::string system;
  std::string tools_file;
  bool raw = false;
  bool thinking = false;
  bool json = false;
  bool keep_history = true;
  std::filesystem::path history_file;
};

io::JsonObject speculation_json(const SpeculationStats& s) {
  io::JsonArray per_position(s.accepted_per_position.begin(), s.accepted_per_position.end());
  return {{"verify_passes", s.n_verify_passes},
          {"drafted", s.n_drafted},
          {"accepted", s.n_accepted},
          {"accepted_per_position", std::move(per_position)},
          {"mean_accept_length", s.mean_accept_length()}};
}

io::JsonArray calls_json(const std::vector<text::ToolCall>& calls) {
  io::JsonArray out;
  for (const text::ToolCall& call : calls)
    out.push_back(io::JsonObject{{"name", call.name}, {"arguments", call.arguments}});
  return out;
}

io::JsonObject logprob_json(const TokenLogprob& l) { return {{"token_id", l.token}, {"logprob", l.logprob}}; }

// Raw log probabilities, one entry a token of the answer.
io::JsonArray logprobs_json(const std::vector<TokenEvent>& tokens) {
  io::JsonArray out;
  for (const TokenEvent& event : tokens) {
    io::JsonObject entry = logprob_json(event.logprobs->chosen);
    io::JsonArray top;
    for (const TokenLogprob& l : event.logprobs->top) top.push_back(logprob_json(l));
    entry.set("top", std::move(top));
    out.push_back(std::move(entry));
  }
  return out;
}

std::string answer_json(const Answer& answer, double load_s) {
  const Generation& g = answer.generation;
  io::JsonArray ids;
  for (const TokenEvent& event : g.tokens) ids.emplace_back(event.token);
  const int64_t n_answer = static_cast<int64_t>(g.tokens.size());
  io::JsonObject object = {
      {"token_ids", std::move(ids)},
      {"text", answer.text},
      {"finish_reason", std::string(finish_reason_name(g.finish_reason))},
      {"seed", answer.seed},
      {"usage", io::JsonObject{{"prompt_tokens", answer.n_prompt_tokens},
                               {"completion_tokens", n_answer},
                               {"cached_tokens", g.n_hit_tokens}}},
      {"timing", io::JsonObject{{"load_s", load_s},
                                {"prefill_s", g.prefill_s},
                                {"decode_s", g.decode_s},
                                {"prefill_tokens_per_s", per_second(n_computed(answer), g.prefill_s)},
                                {"decode_tokens_per_s", per_second(n_decoded(answer), g.decode_s)}}},
      {"speculation", speculation_json(g.speculation)}};
  if (!answer.calls.empty()) object.set("tool_calls", calls_json(answer.calls));
  if (!g.tokens.empty() && g.tokens.front().logprobs) object.set("logprobs", logprobs_json(g.tokens));
  return io::dump_json(object);
}

Result<ChatSetup> chat_setup(const RunCommand& command) {
  ChatSetup setup{.system = command.system, .tools = {}, .thinking = command.thinking};
  if (command.tools_file.empty()) return setup;
  LEVIN_ASSIGN(setup.tools, read_tools_file(command.tools_file));
  return setup;
}

Result<PromptIds> prompt_ids(const RunCommand& command, const ChatSetup& setup, const ChatModel& model) {
  PromptIds out;
  if (command.raw) {
    LEVIN_ASSIGN(out.ids, model.tokenizer->encode_raw(command.prompt));
    return out;
  }
  text::ChatRequest request{.messages = opening_messages(setup), .thinking = setup.thinking};
  request.messages.push_back({.role = text::Role::kUser, .content = command.prompt});
  LEVIN_ASSIGN(const std::vector<text::Segment> segments, model.format->render(request));
  LEVIN_ASSIGN(out.ids, model.tokenizer->encode(segments));
  out.in_reasoning = command.thinking;
  out.tools = setup.tools;
  return out;
}

// A chat needs somebody to chat with, and prints answers as they form.
Status check_chat(const RunCommand& command) {
  const char* reason = command.raw ? "--raw needs a prompt"
                       : command.json
                           ? "--json needs a prompt"
                           : "there is no prompt: standard input is empty, and it is not a terminal for a chat";
  if (!command.raw && !command.json && isatty(STDIN_FILENO) != 0) return {};
  return Error{ErrorKind::kUsage, fmt::format("{}; give -p TEXT, --ids-file FILE, or text on standard input", reason)};
}

Status answer_once(const RunCommand& command, PromptIds prompt, const ChatModel& model,
                   const GenerationOptions& options) {
  AnswerPrinter printer;
  AnswerStream stream = printer.stream();
  if (command.json) stream.on_event = nullptr;
  const QuietKeys quiet;
  const InterruptScope scope;
  LEVIN_ASSIGN(const Answer answer, answer_prompt(model, std::move(prompt), options, stream));
  if (command.json) {
    fmt::print("{}\n", answer_json(answer, model.engine->load_seconds()));
    return {};
  }
  LEVIN_TRY(printer.finish());
  print_statistics(answer);
  return {};
}

Status run(const EngineOptions& engine_options, const GenerationOptions& options, RunCommand command) {
  LEVIN_ASSIGN(const ChatSetup setup, chat_setup(command));
  PromptIds prompt;
  if (!command.ids_file.empty()) {
    LEVIN_ASSIGN(prompt.ids, read_ids_file(command.ids_file, engine_options));
  } else {
    LEVIN_ASSIGN(command.prompt, complete_prompt(command.prompt));
  }
  const bool chatting = command.prompt.empty() && command.ids_file.empty();
  if (chatting) LEVIN_TRY(check_chat(command));
  LEVIN_ASSIGN(const ChatModel model, ChatModel::load(engine_options));
  if (!command.json) fmt::print(stderr, "{}\n\n", model.engine->describe());
  if (chatting) return chat(setup, model, options, PromptHistory(command.history_file));
  if (!command.prompt.empty()) {
    LEVIN_ASSIGN(prompt, prompt_ids(command, setup, model));
  }
  return answer_once(command, std::move(prompt), model, options);
}

// What only the chat format has a place for.
Status check_chat_options(const RunCommand& command) {
  const char* without = command.raw ? "--raw" : !command.ids_file.empty() ? "--ids-file" : nullptr;
  const char* option = !command.tools_file.empty() ? "--tools"
                       : !command.system.empty()   ? "--system"
                       : command.thinking          ? "--thinking on"
                                                   : nullptr;
  if (without == nullptr || option == nullptr) return {};
  return Error{ErrorKind::kUsage,
               fmt::format("{} needs the chat format, which {} does without; omit one", option, without)};
}

Status check_run(const RunCommand& command, const GenerationOptions& options) {
  if (!command.prompt.empty() && !command.ids_file.empty()) {
    return Error{ErrorKind::kUsage, "-p and --ids-file both give the prompt; omit one"};
  }
  if (options.n_top_logprobs && !command.json) {
    return Error{ErrorKind::kUsage, "--logprobs needs --json"};
  }
  return check_chat_options(command);
}

}  // namespace

void add_run(CommandLine& line) {
  Command& command = line.add(
      {.name = "run",
       .purpose = "Answer a prompt, or chat in the terminal",
       .examples = "  levin run                                           a chat with the demonstration model\n"
                   "  git diff | levin run MODEL -p \"Describe this change:\" > message.txt\n"
                   "  levin run -p \"Repeat: river stone apple\" --temperature 0\n"
                   "  levin run -p \"What is the capital of Japan?\" --thinking on --temperature 0\n"
                   "  levin run models/demo-v32 --raw -p \"def read_file(\" -n 64 --json\n"});
  const std::shared_ptr<EngineOptions> engine = add_engine_options(command, ModelArgument::kOptional);
  const std::shared_ptr<GenerationOptions> options = add_generation_options(command, engine);
  add_speculation_options(command, engine);
  const auto run_command = std::make_shared<RunCommand>();
  const OptionGroup add(command, "Prompt");
  add("-p,--prompt", "TEXT",
      "Prompt; -: read it from standard input. Standard input that is no terminal is appended to TEXT. Without a "
      "prompt, at a terminal: a chat",
      "", set_text(&run_command->prompt));
  add("--ids-file", "FILE", "File with the prompt as token ids separated by white space, used without a chat format",
      "", set_text(&run_command->ids_file));
  add("--raw", "", "Use the prompt without the chat format", "", set_flag(&run_command->raw));
  add("--system", "TEXT", "System prompt", "none", set_text(&run_command->system));
  add("--tools", "FILE", "File with functions that the model may call: a JSON list of {name, description, parameters}",
      "none", set_text(&run_command->tools_file));
  add("--thinking", "on|off", "Reason before the answer", "off", set_flag(&run_command->thinking));
  add("--history", "on|off", "Save the lines typed in chats for later chats", "on",
      set_flag(&run_command->keep_history));
  add("--json", "", "Print one JSON object instead of the answer", "", set_flag(&run_command->json));
  add("--logprobs", "N", "With --json: log probability of each token and of the N most likely tokens", "none",
      set_int(&options->n_top_logprobs, {.min = 0, .max = 100}));
  command.check([run_command, options](const Environment& environment) {
    if (run_command->keep_history) run_command->history_file = PromptHistory::default_file(environment);
    return check_run(*run_command, *options);
  });
  command.action([engine, options, run_command] { return run(*engine, *options, *run_command); });
}

}  // namespace levin::app
