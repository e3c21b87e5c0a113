#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace levin {

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  std::fprintf(stderr, "levin: internal error at %s:%d: %s\n  failed: %s\n", file, line, message.c_str(), condition);
  std::fflush(stderr);
  std::abort();
}

}  // namespace levin
