// Checks for bugs in our own code: print what was expected, with names and values, and stop; a Recovery throws (recovery.h).
// Nothing that comes from outside may reach one; that is what result.h is for.
//
// Most of the tree includes this header, so it knows of formatting only what a call needs; the text is made in check.cc.
#pragma once

#include <fmt/core.h>

namespace levin {

struct CheckSite {
  const char* file;
  int line;
  const char* condition;
};

[[noreturn, gnu::cold]] void check_failed(const CheckSite& site, fmt::string_view format, fmt::format_args args);

// Takes the text as a format_string, so that it is compared with the arguments while compiling.
template <class... Args>
[[noreturn]] void check_failed_with(const CheckSite& site, fmt::format_string<Args...> format, Args&&... args) {
  check_failed(site, format, fmt::make_format_args(args...));
}

}  // namespace levin

// LEVIN_CHECK(q.rank() == 3, "index_topk: q has rank {}, expected 3", q.rank());
#define LEVIN_CHECK(condition, ...)                                              \
  do {                                                                           \
    if (!(condition)) [[unlikely]]                                               \
      ::levin::check_failed_with({__FILE__, __LINE__, #condition}, __VA_ARGS__); \
  } while (false)
