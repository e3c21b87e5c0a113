#include "base/check.h"

#include <fmt/core.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace levin {

void check_failed(const CheckSite& site, fmt::string_view format, fmt::format_args args) {
  const std::string message = fmt::vformat(format, args);
  std::fprintf(stderr, "levin: internal error at %s:%d: %s\n  failed: %s\n", site.file, site.line, message.c_str(),
               site.condition);
  std::fflush(stderr);
  std::abort();
}

}  // namespace levin
