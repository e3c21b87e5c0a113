// The terminal a person sits at.
#pragma once

#include <termios.h>

#include <optional>

namespace levin::app {

// Characters are those of the environment's locale where it is a UTF-8 one, else UTF-8 all the same: containers often
// name no locale, and what models write is UTF-8. Nothing but characters depends on the locale.
void use_utf8_characters();

// While this lives, keys that are pressed are not shown: no "^C" in the middle of an answer. They wait, however many they
// are, to be read by the next reader; Ctrl-C and Ctrl-Z are signals as before. Does nothing where standard input is no terminal, or the one of another job in the foreground.
class QuietKeys {
 public:
  QuietKeys();
  ~QuietKeys();
  QuietKeys(const QuietKeys&) = delete;
  QuietKeys& operator=(const QuietKeys&) = delete;

 private:
  std::optional<termios> before_;
};

}  // namespace levin::app
