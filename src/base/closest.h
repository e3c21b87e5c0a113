// The nearest known word to one that is not known, for "did you mean".
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace levin {

// The entry of `known` closest to `word`, if it is close enough to be a slip of the finger.
std::optional<std::string> closest(std::string_view word, const std::vector<std::string>& known);

}  // namespace levin
