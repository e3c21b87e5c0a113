// Decimal notation of ranges, against the numbers themselves.
#include "grammar/number_range.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "grammar/byte_tokens.h"

namespace levin::test {
namespace {

using grammar::Bound;
using grammar::NumberRange;

std::shared_ptr<grammar::Constraint> compiled(const grammar::Expression& expression) {
  grammar::RuleSet rules;
  const grammar::RuleId root = must(rules.add(expression));
  return constraint_of(must(std::move(rules).finish(root)));
}

Bound bound(const char* text, bool open = false) { return {.value = must(grammar::parse_decimal(text)), .open = open}; }

bool in_range(double value, const NumberRange& range, double low, double high) {
  if (range.low && (range.low->open ? value <= low : value < low)) return false;
  return !range.high || (range.high->open ? value < high : value <= high);
}

struct Case {
  const char* low;  // nullptr: none
  const char* high;
  bool low_open = false, high_open = false;
};

TEST(NumberRange, HoldsExactlyTheIntegersBetween) {
  for (const Case& c :
       {Case{"0", "9"}, Case{"-3", "12"}, Case{"7", "7"}, Case{"-120", "-9"}, Case{"0", "100", true, true},
        Case{"98", "1002"}, Case{"-1.5", "2.5"}, Case{"5", nullptr}, Case{nullptr, "-5"}, Case{"0", nullptr, true},
        Case{nullptr, "0", false, true}, Case{"1e2", "1.2e2"}}) {
    const NumberRange range{.low = c.low ? std::optional(bound(c.low, c.low_open)) : std::nullopt,
                            .high = c.high ? std::optional(bound(c.high, c.high_open)) : std::nullopt};
    const auto constraint = compiled(grammar::integer_in(range));
    for (int value = -1100; value <= 1100; ++value) {
      const bool wanted = in_range(value, range, c.low ? std::atof(c.low) : 0, c.high ? std::atof(c.high) : 0);
      EXPECT_EQ(matches(constraint, std::to_string(value)), wanted)
          << value << " in " << (c.low ? c.low : "") << ".." << (c.high ? c.high : "");
    }
  }
}

TEST(NumberRange, HoldsExactlyTheDecimalsBetween) {
  for (const Case& c : {Case{"0", "1"}, Case{"0", "1", true, true}, Case{"-2.25", "1.5"}, Case{"0.05", "0.15"},
                        Case{"1.25", "1.27", true, true}, Case{"-0.5", "-0.25"}, Case{"3", nullptr, true},
                        Case{nullptr, "-1.1"}, Case{"9.9", "10.1"}}) {
    const NumberRange range{.low = c.low ? std::optional(bound(c.low, c.low_open)) : std::nullopt,
                            .high = c.high ? std::optional(bound(c.high, c.high_open)) : std::nullopt};
    const auto constraint = compiled(grammar::number_in(range));
    for (int thousandths = -12000; thousandths <= 12000; thousandths += 5) {
      const double value = thousandths / 1000.0;
      const bool wanted = in_range(value, range, c.low ? std::atof(c.low) : 0, c.high ? std::atof(c.high) : 0);
      std::string text = std::to_string(value);  // six digits after the point
      if (text == "-0.000000") text = "0.000000";
      EXPECT_EQ(matches(constraint, text), wanted)
          << text << " in " << (c.low ? c.low : "") << ".." << (c.high ? c.high : "");
    }
  }
}

TEST(NumberRange, WithoutBoundsHasJsonsForms) {
  const auto constraint = compiled(grammar::number_in({}));
  for (const char* text : {"0", "-0", "12", "0.5", "-1.25e-07", "1E+9", "1234567890123456"}) {
    EXPECT_TRUE(matches(constraint, text)) << text;
  }
  for (const char* text : {"", "01", "1.", ".5", "+1", "1e", "--1", "12345678901234567", "1e100"}) {
    EXPECT_FALSE(matches(constraint, text)) << text;
  }
}

TEST(NumberRange, OfNothingMatchesNothing) {
  for (const NumberRange& range : {NumberRange{bound("2"), bound("1")}, NumberRange{bound("1", true), bound("2", true)},
                                   NumberRange{bound("0.2"), bound("0.8")}}) {
    grammar::RuleSet rules;
    const grammar::RuleId root = must(rules.add(grammar::integer_in(range)));
    EXPECT_FALSE(std::move(rules).finish(root).ok());
  }
  EXPECT_FALSE(grammar::parse_decimal("1e400").ok());
  EXPECT_FALSE(grammar::parse_decimal("1e-400").ok());
  for (const char* power :
       {"-9223372036854775808", "9223372036854775807", "-99999999999999999999"}) {  // with which sums overflow
    for (const char* digits : {"1.5", "0.001", "1200", "-7"}) {
      EXPECT_FALSE(grammar::parse_decimal(fmt::format("{}e{}", digits, power)).ok()) << digits << "e" << power;
    }
  }
}

}  // namespace
}  // namespace levin::test
