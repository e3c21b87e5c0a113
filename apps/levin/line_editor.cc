#include "apps/levin/line_editor.h"

#include <histedit.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <iostream>
#include <string>
#include <string_view>

namespace levin::app {
namespace {

constexpr int kEntries = 1000;
constexpr char kPasteOn[] = "\x1b[?2004h";  // the terminal then marks what is pasted
constexpr char kPasteOff[] = "\x1b[?2004l";
constexpr std::wstring_view kPasteEnd = L"\x1b[201~";

}  // namespace

struct LineEditor::State {
  std::string prompt;
  EditLine* editor = nullptr;
  History* history = nullptr;
  bool interrupted = false;

  State();
  ~State() {
    el_end(editor);
    history_end(history);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void bind_keys() const;

  static State& of(EditLine* editor) {
    State* state = nullptr;
    el_get(editor, EL_CLIENTDATA, &state);
    return *state;
  }

  // ---- what keys do: called by the library ----
  static char* prompt_of(EditLine* editor) { return of(editor).prompt.data(); }
  static unsigned char interrupt(EditLine* editor, int /*key*/) {
    of(editor).interrupted = true;
    el_push(editor, "\n");  // the Enter key leaves the cursor below the line
    return CC_NORM;
  }
  static unsigned char suspend(EditLine* /*editor*/, int /*key*/) {
    raise(SIGTSTP);  // the library puts the terminal back before, and the line after
    return CC_REDISPLAY;
  }
  static unsigned char newline(EditLine* editor, int /*key*/) {
    return el_insertstr(editor, "\n") == 0 ? CC_REFRESH : CC_ERROR;
  }
  static unsigned char paste(EditLine* editor, int /*key*/);
};

LineEditor::State::State() {
  editor = el_init("levin", stdin, stdout, stderr);
  history = history_init();
  HistEvent event;
  ::history(history, &event, H_SETSIZE, kEntries);
  el_set(editor, EL_CLIENTDATA, this);
  el_set(editor, EL_PROMPT, &State::prompt_of);
  el_set(editor, EL_EDITOR, "emacs");
  el_set(editor, EL_SIGNAL, 1);
  el_set(editor, EL_HIST, ::history, history);
  bind_keys();
}

void LineEditor::State::bind_keys() const {
  el_set(editor, EL_SETTY, "-d", "-isig", nullptr);  // Ctrl-C and Ctrl-Z are keys while a line is edited
  el_set(editor, EL_ADDFN, "levin-interrupt", "Drop the line", &State::interrupt);
  el_set(editor, EL_ADDFN, "levin-suspend", "Stop the program", &State::suspend);
  el_set(editor, EL_ADDFN, "levin-newline", "Begin another line of the same text", &State::newline);
  el_set(editor, EL_ADDFN, "levin-paste", "Insert what is pasted", &State::paste);
  el_set(editor, EL_BIND, "^C", "levin-interrupt", nullptr);
  el_set(editor, EL_BIND, "^Z", "levin-suspend", nullptr);
  el_set(editor, EL_BIND, "\\e\\r", "levin-newline", nullptr);
  el_set(editor, EL_BIND, "\\e\\n", "levin-newline", nullptr);
  el_set(editor, EL_BIND, "\\e[200~", "levin-paste", nullptr);
}

// Everything up to the mark of the end, with the newlines of a text; those at its end would only hide the rest.
unsigned char LineEditor::State::paste(EditLine* editor, int /*key*/) {
  std::wstring text;
  wchar_t next = 0;
  while (!text.ends_with(kPasteEnd) && el_wgetc(editor, &next) == 1) {
    const bool second_of_crlf = next == L'\n' && text.ends_with(L'\r');
    if (second_of_crlf) text.pop_back();
    text += next;
  }
  if (text.ends_with(kPasteEnd)) text.resize(text.size() - kPasteEnd.size());
  for (wchar_t& c : text) {
    if (c == L'\r') c = L'\n';
  }
  while (text.ends_with(L'\n')) text.pop_back();
  std::erase(text, L'\0');  // would end it for the library
  if (text.empty()) return CC_NORM;
  return el_winsertstr(editor, text.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
}

LineEditor::LineEditor() : terminal_(isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0) {
  if (terminal_) state_ = std::make_unique<State>();
}

LineEditor::~LineEditor() = default;

TypedLine LineEditor::read(const std::string& prompt) {
  TypedLine line;
  if (!terminal_) {
    if (!std::getline(std::cin, line.text)) line.end = TypedLine::End::kEndOfInput;
    return line;
  }
  state_->prompt = prompt;
  state_->interrupted = false;
  std::fputs(kPasteOn, stdout);
  std::fflush(stdout);
  int n_bytes = 0;
  const char* text = el_gets(state_->editor, &n_bytes);
  if (text != nullptr && n_bytes > 0) line.text.assign(text, static_cast<size_t>(n_bytes));
  const bool ended = line.text.ends_with('\n');
  std::fputs(kPasteOff, stdout);
  if (!ended) std::fputs("\n", stdout);  // Ctrl-D leaves the cursor after the prompt
  std::fflush(stdout);
  if (ended) line.text.pop_back();
  if (!ended && line.text.empty()) line.end = TypedLine::End::kEndOfInput;
  if (state_->interrupted) line.end = TypedLine::End::kInterrupted;
  return line;
}

void LineEditor::remember(const std::string& entry) {
  if (!terminal_) return;
  HistEvent event;
  ::history(state_->history, &event, H_ENTER, entry.c_str());
}

}  // namespace levin::app
