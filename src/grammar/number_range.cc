#include "grammar/number_range.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <utility>

namespace levin::grammar {
namespace {

constexpr size_t kMaxBoundDigits = 32;
// Exponents beyond this are too many digits in any case; the bound keeps the sums from overflowing.
constexpr int64_t kHugeExponent = int64_t{1} << 40;

Expression digit(char low = '0', char high = '9') {
  return bytes(static_cast<uint8_t>(low), static_cast<uint8_t>(high));
}
Expression digits(int64_t min, int64_t max) { return repeat(digit(), min, max); }

// Whole numbers, compared and counted up as strings of digits.
bool less(const std::string& a, const std::string& b) { return a.size() != b.size() ? a.size() < b.size() : a < b; }

std::string plus_one(std::string n) {
  size_t i = n.size();
  while (i > 0 && n[i - 1] == '9') n[--i] = '0';
  if (i == 0) {
    n.insert(n.begin(), '1');
  } else {
    ++n[i - 1];
  }
  return n;
}

std::string minus_one(std::string n) {  // n > 0
  size_t i = n.size();
  while (n[i - 1] == '0') n[--i] = '9';
  --n[i - 1];
  if (n.size() > 1 && n[0] == '0') n.erase(0, 1);
  return n;
}

// Digit strings from `low` to `high`, of one length.
Expression same_length(const std::string& low, const std::string& high) {
  if (low.empty()) return {};
  const auto rest = static_cast<int64_t>(low.size()) - 1;
  const std::string nines(low.size(), '9'), zeros(low.size(), '0');
  if (low == zeros && high == nines) return digits(rest + 1, rest + 1);
  if (low[0] == high[0]) return sequence({digit(low[0], low[0]), same_length(low.substr(1), high.substr(1))});
  std::vector<Expression> parts;
  parts.push_back(sequence({digit(low[0], low[0]), same_length(low.substr(1), nines.substr(1))}));
  if (low[0] + 1 < high[0]) {
    parts.push_back(
        sequence({digit(static_cast<char>(low[0] + 1), static_cast<char>(high[0] - 1)), digits(rest, rest)}));
  }
  parts.push_back(sequence({digit(high[0], high[0]), same_length(zeros.substr(1), high.substr(1))}));
  return choice(std::move(parts));
}

// Whole numbers from `low` to `high`, without sign.
Expression whole_between(const std::string& low, const std::string& high) {
  std::vector<Expression> parts;
  for (size_t n = low.size(); n <= high.size(); ++n) {
    const std::string least = n == low.size() ? low : std::string(1, '1').append(n - 1, '0');
    const std::string most = n == high.size() ? high : std::string(n, '9');
    if (!less(most, least)) parts.push_back(same_length(least, most));
  }
  return choice(std::move(parts));
}

std::string largest_whole(const std::string& low) {
  return std::string(std::max<size_t>(low.size(), static_cast<size_t>(kMaxDigits)), '9');
}

// A range without sign: from low (0 if none), up to high.
struct Side {
  Bound low;
  std::optional<Bound> high;
};

// The part of a range on one side of zero; nullopt if there is none.
std::optional<Side> side_of(const NumberRange& range, bool negative) {
  std::optional<Bound> low = range.low, high = range.high;
  if (negative) {
    std::swap(low, high);
    for (std::optional<Bound>* bound : {&low, &high}) {
      if (*bound) (*bound)->value.negative = !(*bound)->value.negative;
    }
  }
  const auto is_zero = [](const Decimal& d) { return d.whole == "0" && d.fraction.empty(); };
  if (high && high->value.negative && !is_zero(high->value)) return std::nullopt;
  if (high && is_zero(high->value) && (negative || high->open)) return std::nullopt;  // zero is written without sign
  Side out{.low = {.value = {}, .open = negative}, .high = high};
  if (low && !(low->value.negative || is_zero(low->value))) out.low = *low;
  if (low && is_zero(low->value)) out.low.open = out.low.open || low->open;
  return out;
}

// Digits after a point, between those of two bounds of which each may still be touched.
class Fractions {
 public:
  Fractions(const Bound* low, const Bound* high) : low_(low), high_(high) {}

  // With the point before it; nothing at all where zero is in range.
  Expression all() const {
    std::vector<Expression> parts;
    const bool tight_low = low_ != nullptr, tight_high = high_ != nullptr;
    if (may_end(0, tight_low, tight_high)) parts.emplace_back();
    parts.push_back(sequence({literal("."), next(0, tight_low, tight_high)}));
    return choice(std::move(parts));
  }

 private:
  static char at(const Bound& bound, size_t i) {
    return i < bound.value.fraction.size() ? bound.value.fraction[i] : '0';
  }
  // After i digits that are the bound's own, a number may end: it is below a bound that has more.
  bool may_end(size_t i, bool tight_low, bool tight_high) const {
    if (tight_low && (i < low_->value.fraction.size() || low_->open)) return false;
    return !tight_high || i < high_->value.fraction.size() || !high_->open;
  }
  Expression rest(size_t i, bool tight_low, bool tight_high) const {
    const int64_t n_left = limit() - static_cast<int64_t>(i);
    if (!tight_low && !tight_high) return digits(0, n_left);
    std::vector<Expression> parts;
    if (may_end(i, tight_low, tight_high)) parts.emplace_back();
    if (n_left > 0) parts.push_back(next(i, tight_low, tight_high));
    return choice(std::move(parts));
  }
  Expression next(size_t i, bool tight_low, bool tight_high) const {
    const char from = tight_low ? at(*low_, i) : '0', to = tight_high ? at(*high_, i) : '9';
    std::vector<Expression> parts;
    for (char d = from; d <= to;) {
      const bool on_low = tight_low && d == from, on_high = tight_high && d == to;
      char last = d;
      if (!on_low && !on_high) last = static_cast<char>(tight_high ? to - 1 : to);
      parts.push_back(sequence({digit(d, last), rest(i + 1, on_low, on_high)}));
      d = static_cast<char>(last + 1);
    }
    return choice(std::move(parts));
  }
  int64_t limit() const {
    size_t n = static_cast<size_t>(kMaxDigits);
    for (const Bound* bound : {low_, high_}) {
      if (bound != nullptr) n = std::max(n, bound->value.fraction.size() + 1);
    }
    return static_cast<int64_t>(n);
  }

  const Bound* low_;
  const Bound* high_;
};

Expression number_side(const Side& side) {
  const std::string& low = side.low.value.whole;
  const Fractions any(nullptr, nullptr), from_low(&side.low, nullptr);
  const Bound* high = side.high ? &*side.high : nullptr;
  if (high != nullptr && less(high->value.whole, low)) return choice({});
  if (high != nullptr && high->value.whole == low) {
    return sequence({literal(low), Fractions(&side.low, high).all()});
  }
  std::vector<Expression> parts = {sequence({literal(low), from_low.all()})};
  const std::string after = plus_one(low);
  const std::string before = high != nullptr ? minus_one(high->value.whole) : largest_whole(low);
  if (!less(before, after)) parts.push_back(sequence({whole_between(after, before), any.all()}));
  if (high != nullptr) parts.push_back(sequence({literal(high->value.whole), Fractions(nullptr, high).all()}));
  return choice(std::move(parts));
}

Expression integer_side(const Side& side) {
  const Decimal& l = side.low.value;
  const std::string low = !l.fraction.empty() || side.low.open ? plus_one(l.whole) : l.whole;
  if (!side.high) return whole_between(low, largest_whole(low));
  const Decimal& h = side.high->value;
  const bool next_below = h.fraction.empty() && side.high->open;
  if (next_below && h.whole == "0") return choice({});
  const std::string high = next_below ? minus_one(h.whole) : h.whole;
  return less(high, low) ? choice({}) : whole_between(low, high);
}

Expression both_sides(const NumberRange& range, Expression (*side)(const Side&)) {
  std::vector<Expression> parts;
  if (const std::optional<Side> positive = side_of(range, false)) parts.push_back(side(*positive));
  if (const std::optional<Side> negative = side_of(range, true)) {
    parts.push_back(sequence({literal("-"), side(*negative)}));
  }
  return choice(std::move(parts));
}

}  // namespace

Result<Decimal> parse_decimal(const std::string& json_number) {
  Decimal out;
  std::string_view rest = json_number;
  out.negative = rest.starts_with('-');
  if (out.negative) rest.remove_prefix(1);
  int64_t exponent = 0;
  if (const size_t e = rest.find_first_of("eE"); e != std::string_view::npos) {
    std::string_view power = rest.substr(e + 1);
    if (power.starts_with('+')) power.remove_prefix(1);
    if (std::from_chars(power.data(), power.data() + power.size(), exponent).ec != std::errc())
      exponent = kHugeExponent;
    exponent = std::clamp(exponent, -kHugeExponent, kHugeExponent);
    rest = rest.substr(0, e);
  }
  const size_t point = std::min(rest.find('.'), rest.size());
  std::string all(rest.substr(0, point));
  int64_t n_whole = std::ssize(all);
  if (point < rest.size()) all += rest.substr(point + 1);
  const size_t first = all.find_first_not_of('0');
  if (first == std::string::npos) return out;
  all.erase(0, first);
  all.erase(all.find_last_not_of('0') + 1);
  n_whole += exponent - static_cast<int64_t>(first);
  const auto limit = static_cast<int64_t>(kMaxBoundDigits);
  if (n_whole > limit || std::ssize(all) - n_whole > limit) {
    return Error{ErrorKind::kUsage, fmt::format("the bound {} has more than {} digits", json_number, kMaxBoundDigits)};
  }
  if (n_whole <= 0) {
    out.fraction = std::string(static_cast<size_t>(-n_whole), '0') + all;
  } else if (n_whole >= std::ssize(all)) {
    out.whole = all + std::string(static_cast<size_t>(n_whole - std::ssize(all)), '0');
  } else {
    out.whole = all.substr(0, static_cast<size_t>(n_whole));
    out.fraction = all.substr(static_cast<size_t>(n_whole));
  }
  return out;
}

Expression integer_in(const NumberRange& range) { return both_sides(range, integer_side); }

Expression number_in(const NumberRange& range) {
  if (range.low || range.high) return both_sides(range, number_side);
  const Expression whole = choice({literal("0"), sequence({digit('1', '9'), digits(0, kMaxDigits - 1)})});
  const Expression sign = choice({literal("+"), literal("-")});
  return sequence({optional(literal("-")), whole, optional(sequence({literal("."), digits(1, kMaxDigits)})),
                   optional(sequence({choice({literal("e"), literal("E")}), optional(sign), digits(1, 2)}))});
}

}  // namespace levin::grammar
