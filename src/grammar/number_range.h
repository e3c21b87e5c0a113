// Numbers in decimal notation, all or those of a range.
//
// Integers have up to kMaxDigits digits, more where a bound does; fractions up to kMaxDigits. Numbers without bounds may
// have an exponent of two digits. Within bounds none is written: every value has a form without.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "grammar/expression.h"

namespace levin::grammar {

constexpr int64_t kMaxDigits = 16;

// A decimal: digits before the point without leading zeros ("0"), after it without trailing ones ("").
struct Decimal {
  bool negative = false;
  std::string whole = "0";
  std::string fraction = {};
};
// From a JSON number. Refused (kUsage) are more than 32 digits on either side of the point.
Result<Decimal> parse_decimal(const std::string& json_number);

struct Bound {
  Decimal value;
  bool open = false;  // the value itself is not in the range
};
struct NumberRange {
  std::optional<Bound> low, high;
};

Expression integer_in(const NumberRange& range);  // of no integer: matches nothing
Expression number_in(const NumberRange& range);

}  // namespace levin::grammar
