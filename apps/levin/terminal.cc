#include "apps/levin/terminal.h"

#include <langinfo.h>
#include <unistd.h>

#include <clocale>
#include <string_view>

namespace levin::app {
namespace {

bool in_foreground() { return tcgetpgrp(STDIN_FILENO) == getpgrp(); }

}  // namespace

void use_utf8_characters() {
  if (std::setlocale(LC_CTYPE, "") != nullptr && std::string_view(nl_langinfo(CODESET)) == "UTF-8") return;
  std::setlocale(LC_CTYPE, "C.UTF-8");
}

QuietKeys::QuietKeys() {
  termios now{};
  if (!in_foreground() || tcgetattr(STDIN_FILENO, &now) != 0) return;
  before_ = now;
  now.c_lflag &= ~static_cast<tcflag_t>(ECHO | ICANON);  // a line in the making would be cut at 4096 bytes
  tcsetattr(STDIN_FILENO, TCSANOW, &now);
}

QuietKeys::~QuietKeys() {
  if (before_ && in_foreground()) tcsetattr(STDIN_FILENO, TCSANOW, &*before_);
}

}  // namespace levin::app
