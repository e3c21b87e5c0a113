#include "apps/levin/standard_input.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "io/mapped_file.h"

namespace levin::app {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 30;
constexpr int kPatienceMs = 2000;

Error cannot_read(const std::string& reason) {
  return {ErrorKind::kUsage, fmt::format("cannot read standard input: {}", reason)};
}

void say_what_is_waited_for() {
  pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  if (isatty(STDIN_FILENO) == 0 && ::poll(&input, 1, kPatienceMs) == 0)
    fmt::print(stderr, "reading the prompt from standard input; add '< /dev/null' if there is nothing to read\n");
}

Result<std::string> read_all() {
  std::string text;
  std::array<char, 1 << 16> piece{};
  while (true) {
    const ssize_t n = ::read(STDIN_FILENO, piece.data(), piece.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return cannot_read(std::strerror(errno));
    if (n == 0) break;
    text.append(piece.data(), static_cast<size_t>(n));
    if (text.size() > kMaxBytes) return cannot_read(fmt::format("it is longer than {} bytes", kMaxBytes));
  }
  return text;
}

std::string without_last_newline(std::string text) {
  for (const char* newline : {"\r\n", "\n"}) {
    if (!text.ends_with(newline)) continue;
    text.erase(text.size() - std::strlen(newline));
    break;
  }
  return text;
}

// As occupy_closed_streams() leaves it.
bool closed() { return (::fcntl(STDIN_FILENO, F_GETFL) & O_ACCMODE) == O_WRONLY; }

}  // namespace

Result<std::string> complete_prompt(const std::string& given) {
  if (given != "-" && (isatty(STDIN_FILENO) != 0 || closed())) return given;
  say_what_is_waited_for();
  LEVIN_ASSIGN(const std::string input, read_all());
  const std::string text = without_last_newline(input);
  if (given == "-" && text.empty()) return Error{ErrorKind::kUsage, "-p - : standard input is empty"};
  if (given == "-" || given.empty()) return text;
  return text.empty() ? given : fmt::format("{}\n\n{}", given, text);
}

Result<std::string> read_input(const std::string& file) {
  return file == "-" ? read_all() : io::read_file(file, {.kind = ErrorKind::kUsage, .accept_pipes = true});
}

}  // namespace levin::app
