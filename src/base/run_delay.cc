#include "base/run_delay.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string_view>
#include <utility>

namespace levin {

RunDelay RunDelay::of_this_thread() {
  RunDelay out;
  out.file_ = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
  out.last_total_ = out.total();
  return out;
}

RunDelay::~RunDelay() {
  if (file_ >= 0) close(file_);
}

RunDelay::RunDelay(RunDelay&& other) noexcept : file_(std::exchange(other.file_, -1)), last_total_(other.last_total_) {}

RunDelay& RunDelay::operator=(RunDelay&& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(last_total_, other.last_total_);
  return *this;
}

std::chrono::nanoseconds RunDelay::since_last_call() {
  const std::chrono::nanoseconds now = total();
  return now - std::exchange(last_total_, now);
}

// The second of the file's numbers: nanoseconds on a processor, nanoseconds waited, time slices.
std::chrono::nanoseconds RunDelay::total() const {
  char buffer[96];
  const ssize_t n_bytes = file_ < 0 ? 0 : pread(file_, buffer, sizeof(buffer), 0);
  const std::string_view text(buffer, static_cast<size_t>(std::max<ssize_t>(n_bytes, 0)));
  const size_t space = text.find(' ');
  int64_t waited_ns = last_total_.count();  // as before, if the thread is gone
  if (space != std::string_view::npos) std::from_chars(text.data() + space + 1, text.data() + text.size(), waited_ns);
  return std::chrono::nanoseconds(waited_ns);
}

}  // namespace levin
