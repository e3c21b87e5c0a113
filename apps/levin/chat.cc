#include "apps/levin/chat.h"

#include <fmt/format.h>

#include <cstdio>
#include <optional>
#include <string_view>

#include "apps/levin/answer_printer.h"
#include "apps/levin/chat_input.h"
#include "apps/levin/line_editor.h"
#include "apps/levin/terminal.h"

namespace levin::app {
namespace {

constexpr char kHelp[] =
    "/clear          start a new conversation\n"
    "/think on|off   reason before the answer\n"
    "/result TEXT    supply the result of a tool call; one per call, in order\n"
    "/exit, Ctrl-D   exit\n"
    "Ctrl-C          stop the answer; at the prompt: clear the line\n"
    "Alt-Enter, or a backslash at the end of a line, begins another line of the same message; so do lines between "
    "\"\"\" and \"\"\".\n";

constexpr char kHowToLeave[] = "Ctrl-D or /exit exits the chat; so does Ctrl-C pressed again.\n";

constexpr std::string_view kResult = "/result ";

class Chat {
 public:
  Chat(const ChatSetup& setup, const ChatModel& model, const GenerationOptions& options, const PromptHistory& history)
      : conversation_(model, options, setup), history_(history) {}

  Status run();

 private:
  // The next message; nothing once the person has left.
  std::optional<std::string> next_message();
  void remember(const std::string& message);
  bool take_command(const std::string& message);  // false: it is a message for the model
  Status show_turn(const std::string& message);

  Conversation conversation_;
  const PromptHistory& history_;
  LineEditor editor_;
  bool left_ = false;
  bool history_fails_ = false;  // and has been complained about
};

std::optional<std::string> Chat::next_message() {
  for (bool warned = false;;) {
    TypedLine message = read_message([this](const std::string& prompt) { return editor_.read(prompt); });
    if (message.end == TypedLine::End::kEntered) return std::move(message.text);
    if (message.end == TypedLine::End::kEndOfInput) return std::nullopt;
    if (message.text.empty() && warned) return std::nullopt;
    warned = message.text.empty();
    fmt::print(stderr, "{}", warned ? kHowToLeave : "(cleared; Ctrl-D or /exit exits the chat)\n");
  }
}

void Chat::remember(const std::string& message) {
  editor_.remember(message);
  const Status kept = history_.append(message);
  if (kept.ok() || history_fails_) return;
  history_fails_ = true;
  fmt::print(stderr, "warning: the history is not saved: {}\n", kept.error().message);
}

bool Chat::take_command(const std::string& message) {
  const bool command = message.starts_with('/') && message.find('\n') == std::string::npos;
  if (!command || message.starts_with(kResult)) return false;
  if (message == "/quit" || message == "/exit" || message == "/bye") {
    left_ = true;
  } else if (message == "/clear") {
    conversation_.clear();
  } else if (message == "/think on" || message == "/think off") {
    conversation_.set_thinking(message == "/think on");
  } else {
    fmt::print(stderr, "{}", kHelp);
  }
  return true;
}

Status Chat::show_turn(const std::string& message) {
  AnswerPrinter printer;
  const QuietKeys quiet;
  const InterruptScope scope;
  const AnswerStream stream = printer.stream();
  const Result<Answer> answer = message.starts_with(kResult)
                                    ? conversation_.give_result(message.substr(kResult.size()), stream)
                                    : conversation_.ask(message, stream);
  LEVIN_TRY(printer.finish());
  if (!answer.ok()) {
    fmt::print(stderr, "error: {}\n", answer.error().message);
  } else if (!answer->generation.tokens.empty()) {
    print_statistics(*answer);
  }
  return {};
}

Status Chat::run() {
  // A Ctrl-C that comes just after an answer has ended, while no line is edited yet, must not end the program.
  std::optional<InterruptScope> between_lines;
  if (editor_.terminal()) {
    between_lines.emplace();
    fmt::print(stderr, "{}\n", kHelp);
  }
  for (const std::string& entry : history_.read()) editor_.remember(entry);
  while (!left_) {
    const std::optional<std::string> message = next_message();
    if (!message) break;
    if (message->empty()) continue;
    remember(*message);
    if (!take_command(*message)) LEVIN_TRY(show_turn(*message));
  }
  return {};
}

}  // namespace

Status chat(const ChatSetup& setup, const ChatModel& model, const GenerationOptions& options,
            const PromptHistory& history) {
  return Chat(setup, model, options, history).run();
}

}  // namespace levin::app
