#include "base/check.h"

#include <fmt/core.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/recovery.h"

namespace levin {

void check_failed(const CheckSite& site, fmt::string_view format, fmt::format_args args) {
  const std::string message = fmt::vformat(format, args);
  std::fprintf(stderr, "levin: internal error at %s:%d: %s\n  failed: %s\n", site.file, site.line, message.c_str(),
               site.condition);
  std::fflush(stderr);
  if (Recovery::active()) throw CheckFailed(fmt::format("{} ({}:{})", message, site.file, site.line));
  std::abort();
}

}  // namespace levin
