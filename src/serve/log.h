// The server's log on standard error: a line an event, for people or as JSON.
//
//   text   ready     http://127.0.0.1:8000/v1 serves demo-v32
//   json   {"ts": "2026-01-31T12:00:00.123Z", "level": "info", "event": "ready", "message": "http://...", "port": 8000}
//
// What people read is the message; fields are for machines and shown in JSON alone. A message of several lines stays one
// event. Prompts and answers are never logged.
#pragma once

#include <cstdint>
#include <cstdio>
#include <mutex>
#include <string>
#include <string_view>

#include "io/json.h"

namespace levin::serve {

enum class LogFormat : uint8_t { kText, kJson };
enum class LogLevel : uint8_t { kInfo, kWarning, kError };

class Log {
 public:
  explicit Log(LogFormat format, std::FILE* out = stderr) : format_(format), out_(out) {}

  // From any thread; the line is out when it returns.
  void write(LogLevel level, std::string_view event, const std::string& message, const io::JsonObject& fields = {});
  void info(std::string_view event, const std::string& message, const io::JsonObject& fields = {}) {
    write(LogLevel::kInfo, event, message, fields);
  }

 private:
  const LogFormat format_;
  std::FILE* const out_;
  std::mutex mutex_;
};

}  // namespace levin::serve
