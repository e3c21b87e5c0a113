#include "apps/levin/progress.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace levin::app {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstDraw{300};  // shorter loads draw nothing
constexpr milliseconds kRedraw{100};
constexpr std::chrono::seconds kLineEvery{10};
constexpr int kBarWidth = 30;

}  // namespace

std::string progress_text(int64_t bytes_done, int64_t bytes_total, double elapsed_s) {
  constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
  const double share = bytes_total > 0 ? static_cast<double>(bytes_done) / static_cast<double>(bytes_total) : 1.0;
  const int filled = static_cast<int>(std::lround(share * kBarWidth));
  const double rate = elapsed_s > 0 ? static_cast<double>(bytes_done) / elapsed_s : 0.0;
  std::string text =
      fmt::format("[{}{}] {:3.0f}%  {:.1f} of {:.1f} GiB, {:.2f} GiB/s", std::string(static_cast<size_t>(filled), '#'),
                  std::string(static_cast<size_t>(kBarWidth - filled), '.'), std::floor(share * 100),
                  static_cast<double>(bytes_done) / kGiB, static_cast<double>(bytes_total) / kGiB, rate / kGiB);
  if (rate > 0) text += fmt::format(", {:.0f} s left", std::ceil(static_cast<double>(bytes_total - bytes_done) / rate));
  return text;
}

LoadBar::LoadBar() : terminal_(isatty(STDERR_FILENO) == 1), start_(Clock::now()) {
  next_ = start_ + (terminal_ ? Clock::duration(kFirstDraw) : Clock::duration(kLineEvery));
}

LoadProgress LoadBar::progress() {
  return {.on_bytes = [this](int64_t bytes_done, int64_t bytes_total) { show(bytes_done, bytes_total); }};
}

void LoadBar::show(int64_t bytes_done, int64_t bytes_total) {
  const Clock::time_point now = Clock::now();
  if (now < next_) return;
  next_ = now + (terminal_ ? Clock::duration(kRedraw) : Clock::duration(kLineEvery));
  const double elapsed_s = std::chrono::duration<double>(now - start_).count();
  const std::string text = "loading " + progress_text(bytes_done, bytes_total, elapsed_s);
  fmt::print(stderr, "{}{}{}", terminal_ ? "\r\033[K" : "", text, terminal_ ? "" : "\n");
  std::fflush(stderr);
  drawn_ = terminal_;
}

void LoadBar::finish() {
  if (drawn_) fmt::print(stderr, "\r\033[K");
  drawn_ = false;
}

}  // namespace levin::app
