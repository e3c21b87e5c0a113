#include "apps/levin/line_editor.h"

#include <histedit.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <string>

namespace levin::app {
namespace {

constexpr int kHistoryLines = 1000;

char* prompt_of(EditLine* editor) {
  std::string* prompt = nullptr;
  el_get(editor, EL_CLIENTDATA, &prompt);
  return prompt->data();
}

}  // namespace

struct LineEditor::State {
  std::string prompt;
  EditLine* editor = nullptr;
  History* history = nullptr;

  State() {
    editor = el_init("levin", stdin, stdout, stderr);
    history = history_init();
    HistEvent event;
    ::history(history, &event, H_SETSIZE, kHistoryLines);
    el_set(editor, EL_CLIENTDATA, &prompt);
    el_set(editor, EL_PROMPT, &prompt_of);
    el_set(editor, EL_EDITOR, "emacs");
    el_set(editor, EL_SIGNAL, 1);
    el_set(editor, EL_HIST, ::history, history);
  }
  ~State() {
    el_end(editor);
    history_end(history);
  }
};

LineEditor::LineEditor() : terminal_(isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0) {
  if (terminal_) state_ = std::make_unique<State>();
}

LineEditor::~LineEditor() = default;

std::optional<std::string> LineEditor::read(const std::string& prompt) {
  if (!terminal_) {
    std::string line;
    if (!std::getline(std::cin, line)) return std::nullopt;
    return line;
  }
  state_->prompt = prompt;
  int n_characters = 0;
  const char* text = el_gets(state_->editor, &n_characters);
  if (text == nullptr || n_characters <= 0) return std::nullopt;
  std::string line(text, static_cast<size_t>(n_characters));
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
  if (!line.empty()) {
    HistEvent event;
    ::history(state_->history, &event, H_ENTER, line.c_str());
  }
  return line;
}

}  // namespace levin::app
