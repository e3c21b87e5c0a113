// Values as written to values as used.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <utility>

#include "apps/levin/options.h"
#include "base/closest.h"

namespace levin::app {
namespace {

std::string range_text(IntRange range) {
  const bool bounded_above = range.max != std::numeric_limits<int64_t>::max();
  if (bounded_above) return fmt::format("a whole number from {} to {}", range.min, range.max);
  return range.min == std::numeric_limits<int64_t>::min() ? "a whole number"
                                                          : fmt::format("a whole number, {} or more", range.min);
}

std::optional<int64_t> parse_int(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<int64_t> parse_tokens(std::string_view text) {
  int64_t unit = 1;
  if (text.ends_with('k') || text.ends_with('K')) unit = 1024;
  if (text.ends_with('M')) unit = 1024 * 1024;
  if (unit > 1) text.remove_suffix(1);
  const std::optional<int64_t> count = parse_int(text);
  int64_t value = 0;
  if (!count || __builtin_mul_overflow(*count, unit, &value)) return std::nullopt;
  return value;
}

constexpr std::string_view kByteUnits = "KMGT";

std::optional<int64_t> parse_bytes(std::string_view text) {
  int power = 3;
  const size_t end_of_number = std::min(text.find_first_not_of("0123456789."), text.size());
  std::string_view unit = text.substr(end_of_number);
  if (!unit.empty()) {
    const size_t place = kByteUnits.find(static_cast<char>(std::toupper(static_cast<unsigned char>(unit.front()))));
    if (place == std::string_view::npos) return std::nullopt;
    power = static_cast<int>(place) + 1;
    unit.remove_prefix(1);
    if (!unit.empty() && unit != "B" && unit != "iB") return std::nullopt;
  }
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + end_of_number, value);
  if (error != std::errc() || end != text.data() + end_of_number) return std::nullopt;
  const double bytes = std::round(std::ldexp(value, 10 * power));
  return bytes < 0x1p62 ? std::optional(static_cast<int64_t>(bytes)) : std::nullopt;
}

std::string bytes_text(int64_t bytes) {
  size_t unit = 0;
  double value = static_cast<double>(bytes) / 1024;
  for (; value >= 1024 && unit + 1 < kByteUnits.size(); ++unit) value /= 1024;
  return bytes == 0 ? "0" : fmt::format("{:g}{}", value, kByteUnits[unit]);
}

std::optional<std::string> take_bytes(std::string_view text, IntRange range, int64_t* target) {
  const std::optional<int64_t> bytes = parse_bytes(text);
  if (!bytes || *bytes < range.min || *bytes > range.max) {
    return fmt::format("a size from {} to {} (as 512M, 1.5G, 2T or a number of GiB)", bytes_text(range.min),
                       bytes_text(range.max));
  }
  *target = *bytes;
  return std::nullopt;
}

template <class Parse, class Store>
Setter set_whole(IntRange range, const std::string& hint, Parse parse, Store store) {
  return [=](std::string_view text) -> std::optional<std::string> {
    const std::optional<int64_t> value = parse(text);
    if (!value || *value < range.min || *value > range.max) return range_text(range) + hint;
    store(*value);
    return std::nullopt;
  };
}

// Each value between commas by the setter of one; the target keeps what it had when one of them is refused.
template <class Value, class Range>
Setter set_list(std::vector<Value>* target, Range range, Setter (*set_one)(Value*, Range)) {
  return [=](std::string_view text) -> std::optional<std::string> {
    std::vector<Value> list;
    for (size_t begin = 0; begin <= text.size();) {
      const size_t end = std::min(text.find(',', begin), text.size());
      if (const auto expected = set_one(&list.emplace_back(), range)(text.substr(begin, end - begin)))
        return *expected + ", or several with commas";
      begin = end + 1;
    }
    *target = std::move(list);
    return std::nullopt;
  };
}

}  // namespace

std::string trimmed(std::string_view text) {
  static constexpr std::string_view kBlanks = " \t\r";
  text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
  return std::string(text.substr(0, text.find_last_not_of(kBlanks) + 1));
}

Result<std::vector<std::string>> split_list(std::string_view option, std::string_view entry_name,
                                            std::string_view list) {
  std::vector<std::string> out;
  if (list.empty()) return out;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    out.push_back(trimmed(list.substr(begin, end - begin)));
    begin = end + 1;
  }
  const auto empty = std::find(out.begin(), out.end(), "");
  if (empty == out.end()) return out;
  if (std::all_of(out.begin(), out.end(), [](const std::string& each) { return each.empty(); })) {
    return usage_error(fmt::format("{} contains no {}; write one, or several with a comma between them, or omit it",
                                   option, entry_name));
  }
  return usage_error(fmt::format("{}: {} number {} of {} is empty; write one comma between two and none at the ends",
                                 option, entry_name, empty - out.begin() + 1, out.size()));
}

Setter set_text(std::string* target) {
  return [target](std::string_view text) -> std::optional<std::string> {
    if (text.empty()) return "some text";
    *target = text;
    return std::nullopt;
  };
}

Setter set_flag(bool* target) {
  return set_choice({"on", "true", "1", "off", "false", "0"}, [target](size_t place) { *target = place < 3; });
}

Setter set_int(int64_t* target, IntRange range) {
  return set_whole(range, "", parse_int, [target](int64_t value) { *target = value; });
}

Setter set_int(int* target, IntRange range) {
  range.min = std::max<int64_t>(range.min, std::numeric_limits<int>::min());
  range.max = std::min<int64_t>(range.max, std::numeric_limits<int>::max());
  return set_whole(range, "", parse_int, [target](int64_t value) { *target = static_cast<int>(value); });
}

Setter set_int(std::optional<int64_t>* target, IntRange range) {
  return set_whole(range, "", parse_int, [target](int64_t value) { *target = value; });
}

Setter set_tokens(int64_t* target, IntRange range) {
  return set_whole(range, " (or a form like 128k or 1M)", parse_tokens, [target](int64_t value) { *target = value; });
}

Setter set_bytes(int64_t* target, IntRange range) {
  return [=](std::string_view text) { return take_bytes(text, range, target); };
}

Setter set_bytes(std::optional<int64_t>* target, IntRange range) {
  return [=](std::string_view text) {
    int64_t bytes = 0;
    std::optional<std::string> expected = take_bytes(text, range, &bytes);
    if (!expected) *target = bytes;
    return expected;
  };
}

Setter set_number(double* target, NumberRange range) {
  return [=](std::string_view text) -> std::optional<std::string> {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool whole = error == std::errc() && end == text.data() + text.size();
    const bool low = range.above_min ? value <= range.min : value < range.min;
    if (whole && std::isfinite(value) && !low && value <= range.max) {
      *target = value;
      return std::nullopt;
    }
    if (std::isinf(range.min) && std::isinf(range.max)) return "a number";
    if (range.above_min) return fmt::format("a number above {} and up to {}", range.min, range.max);
    if (std::isinf(range.max)) return fmt::format("a number, {} or more", range.min);
    return fmt::format("a number from {} to {}", range.min, range.max);
  };
}

Setter set_number(std::optional<double>* target, NumberRange range) {
  return [=](std::string_view text) {
    double value = 0;
    std::optional<std::string> expected = set_number(&value, range)(text);
    if (!expected) *target = value;
    return expected;
  };
}

Setter set_tokens(std::vector<int64_t>* target, IntRange range) { return set_list(target, range, &set_tokens); }

Setter set_number(std::vector<double>* target, NumberRange range) { return set_list(target, range, &set_number); }

Setter set_choice(std::vector<std::string> names, std::function<void(size_t)> set) {
  return [names = std::move(names), set = std::move(set)](std::string_view text) -> std::optional<std::string> {
    const auto found = std::find(names.begin(), names.end(), text);
    if (found == names.end()) {
      const std::optional<std::string> near = closest(text, names);
      return fmt::format("{} {}{}", names.size() > 1 ? "one of" : "the value", fmt::join(names, ", "),
                         near ? fmt::format("; did you mean '{}'?", *near) : "");
    }
    set(static_cast<size_t>(found - names.begin()));
    return std::nullopt;
  };
}

}  // namespace levin::app
