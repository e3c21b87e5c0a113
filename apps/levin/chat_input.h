// Messages from typed lines:
//
//   a line that ends in one backslash   continues with the next one, a newline between them
//   """ at the beginning                opens a text of several lines, up to a line that ends in """
#pragma once

#include <functional>
#include <string>

#include "apps/levin/line_editor.h"

namespace levin::app {

// Reads lines until a message is whole. Its end is that of the last line; an interrupted message keeps what was typed.
TypedLine read_message(const std::function<TypedLine(const std::string& prompt)>& read_line);

}  // namespace levin::app
