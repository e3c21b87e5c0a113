// Characters as the bytes that stand for them: as they are, or inside the quotes of a JSON string.
//
// In a JSON string a quote, a backslash and what lies below U+0020 are written as escapes, in the short form where there
// is one; everything else stands for itself. So each text has one form.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "grammar/expression.h"

namespace levin::grammar {

enum class Writing : uint8_t { kPlain, kJsonString };

struct CharRange {
  char32_t low = 0, high = 0;
};
using CharSet = std::vector<CharRange>;  // ascending, apart from each other

constexpr char32_t kLastChar = 0x10ffff;

CharSet make_set(CharSet ranges);        // sorts and joins
CharSet all_but(const CharSet& ranges);  // of everything but surrogates

// One character of the set. `edge` marks its first byte.
Expression one_of(const CharSet& set, Writing writing, EdgeKind edge = EdgeKind::kPlain);
// Any character of a JSON string, in any form that JSON has for it but the escapes of surrogates.
Expression json_character(EdgeKind edge = EdgeKind::kPlain);
Expression text_of(std::string_view utf8, Writing writing);

std::vector<char32_t> decode_utf8(std::string_view valid_utf8);

}  // namespace levin::grammar
