#include "apps/levin/standard_output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace levin::app {
namespace {

// open() takes the lowest number that is free, which is `fd` where those below are open.
void occupy(int fd, int flags) {
  if (::fcntl(fd, F_GETFD) < 0 && errno == EBADF) (void)::open("/dev/null", flags | O_NOCTTY);
}

}  // namespace

void occupy_closed_streams() {
  occupy(STDIN_FILENO, O_WRONLY);
  occupy(STDOUT_FILENO, O_RDONLY);
  occupy(STDERR_FILENO, O_WRONLY);
}

Status flush_standard_output() {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return {};
  const std::string reason = errno != 0 ? fmt::format(": {}", std::strerror(errno)) : "";
  return Error{ErrorKind::kRuntime, fmt::format("cannot write standard output{}", reason)};
}

}  // namespace levin::app
