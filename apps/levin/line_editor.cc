#include "apps/levin/line_editor.h"

#include <histedit.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cwchar>
#include <iostream>
#include <string>
#include <string_view>

namespace levin::app {
namespace {

constexpr int kEntries = 1000;
constexpr char kPasteOn[] = "\x1b[?2004h";  // the terminal then marks what is pasted
constexpr char kPasteOff[] = "\x1b[?2004l";
constexpr std::wstring_view kPasteEnd = L"\x1b[201~";

struct WindowSize {
  int n_rows = 0, n_columns = 0;
  bool operator==(const WindowSize&) const = default;

  static WindowSize now() {
    winsize size{};
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? WindowSize{size.ws_row, size.ws_col} : WindowSize{};
  }
};

// Holds back the signal of a new window size while the library would handle it: it frees what it draws to inside its handler.
class WindowSignalHeld {
 public:
  WindowSignalHeld() { pthread_sigmask(SIG_BLOCK, &signals(), &before_); }
  ~WindowSignalHeld() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  WindowSignalHeld(const WindowSignalHeld&) = delete;
  WindowSignalHeld& operator=(const WindowSignalHeld&) = delete;

  static const sigset_t& signals() {
    static const sigset_t set = [] {
      sigset_t window;
      sigemptyset(&window);
      sigaddset(&window, SIGWINCH);
      return window;
    }();
    return set;
  }

 private:
  sigset_t before_{};
};

// Instead of the library's handler: ends the wait for a key, and no more.
void let_windows_interrupt() {
  struct sigaction nothing{};
  nothing.sa_handler = [](int) {};
  sigaction(SIGWINCH, &nothing, nullptr);
  pthread_sigmask(SIG_UNBLOCK, &WindowSignalHeld::signals(), nullptr);
}

}  // namespace

struct LineEditor::State {
  std::string prompt;
  EditLine* editor = nullptr;
  History* history = nullptr;
  bool interrupted = false;
  WindowSize window;
  bool waited = false;  // for a key of this line

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
  static int read_key(EditLine* editor, wchar_t* key);
  void follow_window();
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
  el_set(editor, EL_GETCFN, &State::read_key);
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

void LineEditor::State::follow_window() {
  const WindowSize now = WindowSize::now();
  if (now == window) return;
  window = now;
  el_resize(editor);
  el_set(editor, EL_REFRESH);
}

// The next character, of as many bytes as it has; bytes that are none are left out. 0 at the end of the input, -1 on an error.
int LineEditor::State::read_key(EditLine* editor, wchar_t* key) {
  State& state = of(editor);
  if (!state.waited) let_windows_interrupt();
  state.waited = true;
  std::array<char, MB_LEN_MAX> bytes{};
  size_t n = 0;
  for (;;) {
    state.follow_window();
    const ssize_t n_read = ::read(STDIN_FILENO, bytes.data() + n, 1);
    if (n_read < 0 && errno == EINTR) {
      el_set(editor, EL_REFRESH);
      continue;
    }
    if (n_read <= 0) return static_cast<int>(n_read);
    ++n;
    std::mbstate_t none{};
    const size_t n_used = std::mbrtowc(key, bytes.data(), n, &none);
    if (n_used == 0) *key = L'\0';
    if (n_used <= n) return 1;
    const bool is_begun = n_used == static_cast<size_t>(-2) && n < bytes.size();
    if (is_begun) continue;
    bytes[0] = bytes[n - 1];  // the last byte may begin the next one
    n = n > 1 && (static_cast<unsigned char>(bytes[0]) & 0xC0) == 0xC0 ? 1 : 0;
  }
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
  el_resize(state_->editor);  // the window may have changed during an answer
  state_->window = WindowSize::now();
  state_->waited = false;
  const WindowSignalHeld held;
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
