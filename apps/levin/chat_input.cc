#include "apps/levin/chat_input.h"

#include <string_view>

namespace levin::app {
namespace {

constexpr char kPrompt[] = "> ";
constexpr char kMorePrompt[] = ". ";
constexpr std::string_view kQuotes = "\"\"\"";

bool goes_on(std::string_view line) { return line.ends_with('\\') && !line.ends_with("\\\\"); }

}  // namespace

TypedLine read_message(const std::function<TypedLine(const std::string& prompt)>& read_line) {
  TypedLine message = read_line(kPrompt);
  const bool quoted = message.text.starts_with(kQuotes);
  if (quoted) message.text.erase(0, kQuotes.size());
  const auto whole = [&] { return quoted ? message.text.ends_with(kQuotes) : !goes_on(message.text); };
  while (message.end == TypedLine::End::kEntered && !whole()) {
    if (!quoted) message.text.pop_back();
    TypedLine more = read_line(kMorePrompt);
    message.text += '\n' + more.text;
    message.end = more.end;
  }
  if (!quoted || message.end != TypedLine::End::kEntered) return message;
  message.text.resize(message.text.size() - kQuotes.size());
  if (message.text.starts_with('\n')) message.text.erase(0, 1);  // the lines of the quotes themselves
  if (message.text.ends_with('\n')) message.text.pop_back();
  return message;
}

}  // namespace levin::app
