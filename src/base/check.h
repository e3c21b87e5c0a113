// Checks for bugs in our own code: print what was expected, with names and values, and stop.
// Nothing that comes from outside may reach one; that is what result.h is for.
#pragma once

#include <fmt/format.h>

#include <string>

namespace levin {

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& message);

}  // namespace levin

// LEVIN_CHECK(q.rank() == 3, "index_topk: q has rank {}, expected 3", q.rank());
#define LEVIN_CHECK(condition, ...)                                                      \
  do {                                                                                   \
    if (!(condition)) [[unlikely]]                                                       \
      ::levin::check_failed(__FILE__, __LINE__, #condition, ::fmt::format(__VA_ARGS__)); \
  } while (false)
