#include "serve/log.h"

#include <fmt/core.h>

#include <ctime>

namespace levin::serve {
namespace {

std::string_view level_name(LogLevel level) {
  switch (level) {
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
  }
  return "unknown";
}

std::string timestamp() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  tm parts{};
  ::gmtime_r(&now.tv_sec, &parts);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", parts.tm_year + 1900, parts.tm_mon + 1,
                     parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec, now.tv_nsec / 1'000'000);
}

}  // namespace

void Log::write(LogLevel level, std::string_view event, const std::string& message, const io::JsonObject& fields) {
  std::string line;
  if (format_ == LogFormat::kText) {
    line = fmt::format("{:<9} {}\n", event, message);
  } else {
    io::JsonObject object = {{"ts", timestamp()}, {"level", level_name(level)}, {"event", event}, {"message", message}};
    for (const io::JsonMember& member : fields.members()) object.set(member.key, member.value);
    line = io::dump_json(object) + "\n";
  }
  const std::lock_guard lock(mutex_);
  std::fwrite(line.data(), 1, line.size(), out_);
  std::fflush(out_);
}

}  // namespace levin::serve
