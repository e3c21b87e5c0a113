// Standard input as a file, as part of a prompt, or all of it.
#pragma once

#include <string>

#include "base/result.h"

namespace levin::app {

// The prompt that `given` (the value of -p; empty: none) and standard input make together:
//
//   -p -             standard input, also a terminal's
//   no terminal      the given text, a blank line, and standard input; either alone where the other is empty
//   a terminal       the given text
//
// One newline at the end of standard input is left out, so that `echo hi | levin run` asks what `levin run -p hi` asks.
// A note on standard error says what is waited for when nothing comes. Errors are of kind kUsage.
Result<std::string> complete_prompt(const std::string& given);

// The whole file; "-": standard input, as it is. Errors are of kind kUsage.
Result<std::string> read_input(const std::string& file);

}  // namespace levin::app
