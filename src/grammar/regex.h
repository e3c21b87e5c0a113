// Regular expressions as JSON schemas have them (ECMA 262), the regular part of it.
//
//   abc  .  [a-z_]  [^,]  \d \w \s \D \W \S  \n \t \x41 \u00e9  a|b  ( )  (?: )  (?<name> )  ? * + {2} {2,} {2,5}  ^ $
//
// A lazy repeat is the same as a greedy one. Anchors may stand at the ends of the whole or of its outermost
// alternatives. \d, \w are of ASCII; \s and \S, in [^ ] too, leave out what dialects do not agree on; . is anything but a
// line's end.
// Refused by name (kUsage): look-around, references back, \b, \p, flags, anchors elsewhere, empty classes.
#pragma once

#include <string_view>

#include "base/result.h"
#include "grammar/expression.h"
#include "grammar/text_forms.h"

namespace levin::grammar {

enum class RegexMatch : uint8_t {
  kWhole,   // the whole text matches, anchored or not
  kSearch,  // where no anchor stands, any text may stand before or after
};

Result<Expression> parse_regex(std::string_view pattern, RegexMatch match, Writing writing);

}  // namespace levin::grammar
