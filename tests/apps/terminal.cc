#include "apps/terminal.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <utility>

#include "base/check.h"

namespace levin::test {
namespace {

constexpr int kPatienceMs = 30'000;
constexpr const char* kNotInherited[] = {"LEVIN_", "LC_", "LANG=", "XDG_STATE_HOME="};

std::vector<std::string> environment_with(const std::vector<std::pair<std::string, std::string>>& added) {
  std::vector<std::string> out;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    bool left_out = false;
    for (const char* begin : kNotInherited) left_out |= text.starts_with(begin);
    if (!left_out) out.push_back(text);
  }
  for (const auto& [name, value] : added) out.push_back(name + "=" + value);
  return out;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

}  // namespace

Terminal::Terminal(const std::vector<std::string>& arguments, const std::string& state_folder,
                   const std::vector<std::pair<std::string, std::string>>& environment) {
  std::vector<std::string> words = {LEVIN_PROGRAM};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<std::string> variables = environment_with({{"TERM", "xterm"}, {"XDG_STATE_HOME", state_folder}});
  for (const auto& [name, value] : environment) variables.push_back(name + "=" + value);
  const std::vector<char*> word_pointers = pointers(words), variable_pointers = pointers(variables);
  const winsize size{.ws_row = 40, .ws_col = 120, .ws_xpixel = 0, .ws_ypixel = 0};
  pid_ = forkpty(&fd_, nullptr, nullptr, &size);
  LEVIN_CHECK(pid_ >= 0, "no pseudo terminal");
  if (pid_ == 0) {
    execve(LEVIN_PROGRAM, word_pointers.data(), variable_pointers.data());
    _exit(127);
  }
}

Terminal::~Terminal() {
  close(fd_);
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void Terminal::resize(int n_columns) const {
  winsize size{.ws_row = 24, .ws_col = static_cast<unsigned short>(n_columns), .ws_xpixel = 0, .ws_ypixel = 0};
  EXPECT_EQ(ioctl(fd_, TIOCSWINSZ, &size), 0);
}

void Terminal::type(const std::string& keys) const {
  EXPECT_EQ(write(fd_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
}

bool Terminal::read_more() {
  pollfd ready{.fd = fd_, .events = POLLIN, .revents = 0};
  if (poll(&ready, 1, kPatienceMs) != 1) return false;
  std::array<char, 4096> bytes{};
  const ssize_t n = read(fd_, bytes.data(), bytes.size());  // fails with EIO when nobody is at the other side any more
  if (n <= 0) return false;
  unseen_.append(bytes.data(), static_cast<size_t>(n));
  return true;
}

std::string Terminal::see(const std::string& text) {
  size_t found = 0;
  while ((found = unseen_.find(text)) == std::string::npos) {
    if (read_more()) continue;
    ADD_FAILURE() << "expected on the terminal: " << text << "\nfound: " << unseen_.substr(0, 2000);
    return std::exchange(unseen_, {});
  }
  std::string seen = unseen_.substr(0, found + text.size());
  unseen_.erase(0, seen.size());
  return seen;
}

void Terminal::see_prompt(const std::string& prompt) {
  see("\x1b[?2004h" + prompt);
  termios settings{};
  for (int i = 0; i < kPatienceMs; ++i) {
    if (tcgetattr(fd_, &settings) == 0 && (settings.c_lflag & static_cast<tcflag_t>(ISIG)) == 0) return;
    usleep(1000);
  }
  ADD_FAILURE() << "no line is edited";
}

std::string Terminal::rest() {
  while (read_more()) {
  }
  return std::exchange(unseen_, {});
}

int Terminal::exit_code() {
  int status = 0;
  waitpid(std::exchange(pid_, -1), &status, 0);
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace levin::test
