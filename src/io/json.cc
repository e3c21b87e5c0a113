#include "io/json.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <system_error>

namespace levin::io {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// The parts of a JSON number: value = (-1)^negative * 0.digits * 10^point, digits without zeros at either end.
struct Decimal {
  bool negative = false;
  std::string digits;
  int64_t point = 0;
};

// Exponents beyond this are as good as infinite; the bound keeps the sums below from overflowing.
constexpr int64_t kHugeExponent = int64_t{1} << 40;

int64_t parse_exponent(std::string_view text) {
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  int64_t magnitude = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), magnitude);
  if (error != std::errc() || magnitude > kHugeExponent) magnitude = kHugeExponent;
  return negative ? -magnitude : magnitude;
}

Decimal split_decimal(std::string_view text) {
  Decimal d;
  d.negative = text.starts_with('-');
  if (d.negative) text.remove_prefix(1);
  int64_t exponent = 0;
  if (const size_t e = text.find_first_of("eE"); e != std::string_view::npos) {
    exponent = parse_exponent(text.substr(e + 1));
    text = text.substr(0, e);
  }
  const size_t dot = std::min(text.find('.'), text.size());
  d.digits = text.substr(0, dot);
  if (dot < text.size()) d.digits += text.substr(dot + 1);
  d.point = static_cast<int64_t>(dot) + exponent;

  const size_t first = std::min(d.digits.find_first_not_of('0'), d.digits.size());
  d.point -= static_cast<int64_t>(first);
  d.digits.erase(0, first);
  d.digits.erase(d.digits.find_last_not_of('0') + 1);
  if (d.digits.empty()) d.point = 0;
  return d;
}

// The number as digits without point and exponent, if it is whole and short enough for 64 bits.
std::optional<std::string> whole_text(std::string_view text) {
  const Decimal d = split_decimal(text);
  if (d.digits.empty()) return "0";
  const auto n_digits = static_cast<int64_t>(d.digits.size());
  if (d.point < n_digits || d.point > 20) return std::nullopt;
  return (d.negative ? "-" : "") + d.digits + std::string(static_cast<size_t>(d.point - n_digits), '0');
}

template <class T>
std::optional<T> parse_whole(std::string_view text) {
  const std::optional<std::string> whole = whole_text(text);
  if (!whole) return std::nullopt;
  T value = 0;
  const char* end = whole->data() + whole->size();
  const auto [stop, error] = std::from_chars(whole->data(), end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

// Length of the run of digits at the start of `text`.
size_t count_digits(std::string_view text) {
  return static_cast<size_t>(std::find_if_not(text.begin(), text.end(), is_digit) - text.begin());
}

}  // namespace

JsonNumber::JsonNumber(double value) {
  if (std::isnan(value)) {
    text_ = "NaN";
  } else if (std::isinf(value)) {
    text_ = value > 0 ? "Infinity" : "-Infinity";
  } else {
    text_ = python_float_repr(value);
  }
}

std::optional<JsonNumber> JsonNumber::from_text(std::string_view text) {
  std::string_view rest = text;
  if (rest.starts_with('-')) rest.remove_prefix(1);
  const size_t n_whole = count_digits(rest);
  if (n_whole == 0 || (n_whole > 1 && rest[0] == '0')) return std::nullopt;
  rest.remove_prefix(n_whole);
  if (rest.starts_with('.')) {
    const size_t n_fraction = count_digits(rest.substr(1));
    if (n_fraction == 0) return std::nullopt;
    rest.remove_prefix(1 + n_fraction);
  }
  if (rest.starts_with('e') || rest.starts_with('E')) {
    rest.remove_prefix(1);
    if (rest.starts_with('-') || rest.starts_with('+')) rest.remove_prefix(1);
    const size_t n_exponent = count_digits(rest);
    if (n_exponent == 0) return std::nullopt;
    rest.remove_prefix(n_exponent);
  }
  if (!rest.empty()) return std::nullopt;
  JsonNumber number;
  number.text_ = text;
  return number;
}

bool JsonNumber::is_integer() const { return text_.find_first_not_of("-0123456789") == std::string::npos; }

std::optional<int64_t> JsonNumber::to_int64() const {
  return is_finite_text() ? parse_whole<int64_t>(text_) : std::nullopt;
}

std::optional<uint64_t> JsonNumber::to_uint64() const {
  return is_finite_text() ? parse_whole<uint64_t>(text_) : std::nullopt;
}

bool JsonNumber::is_finite_text() const { return !text_.empty() && is_digit(text_.back()); }

std::optional<double> JsonNumber::to_double() const {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (text_ == "NaN") return std::numeric_limits<double>::quiet_NaN();
  if (text_ == "Infinity") return kInfinity;
  if (text_ == "-Infinity") return -kInfinity;
  double value = 0;
  const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), value);
  if (error == std::errc() && std::isfinite(value)) return value;
  const Decimal d = split_decimal(text_);
  if (d.point > 0) return std::nullopt;
  return d.negative ? -0.0 : 0.0;
}

JsonObject::JsonObject() = default;
JsonObject::JsonObject(const JsonObject&) = default;
JsonObject::JsonObject(JsonObject&&) noexcept = default;
JsonObject& JsonObject::operator=(const JsonObject&) = default;
JsonObject& JsonObject::operator=(JsonObject&&) noexcept = default;
JsonObject::~JsonObject() = default;

JsonObject::JsonObject(std::initializer_list<JsonMember> members) : JsonObject(std::vector<JsonMember>(members)) {}

JsonObject::JsonObject(std::vector<JsonMember> members, std::optional<std::string>* duplicate) {
  members_ = std::move(members);
  by_key_.resize(members_.size());
  std::iota(by_key_.begin(), by_key_.end(), 0u);
  std::sort(by_key_.begin(), by_key_.end(), [this](uint32_t a, uint32_t b) {
    const int order = members_[a].key.compare(members_[b].key);
    return order != 0 ? order < 0 : a < b;
  });
  const auto same_key = [this](uint32_t a, uint32_t b) { return members_[a].key == members_[b].key; };
  const auto twice = std::adjacent_find(by_key_.begin(), by_key_.end(), same_key);
  if (twice == by_key_.end()) return;

  if (duplicate != nullptr) *duplicate = members_[*twice].key;
  drop_duplicates();
}

// by_key_ is sorted by (key, index): in a run of one key the first member stays and takes the value of the last.
void JsonObject::drop_duplicates() {
  std::vector<bool> stays(members_.size(), false);
  for (size_t first = 0, next = 0; first < by_key_.size(); first = next) {
    const std::string& key = members_[by_key_[first]].key;
    for (next = first + 1; next < by_key_.size() && members_[by_key_[next]].key == key;) ++next;
    stays[by_key_[first]] = true;
    if (next - first > 1) members_[by_key_[first]].value = std::move(members_[by_key_[next - 1]].value);
  }
  std::vector<uint32_t> new_place(members_.size(), 0);
  uint32_t n_kept = 0;
  for (uint32_t i = 0; i < members_.size(); ++i) {
    if (!stays[i]) continue;
    if (n_kept != i) members_[n_kept] = std::move(members_[i]);
    new_place[i] = n_kept++;
  }
  std::erase_if(by_key_, [&](uint32_t member) { return !stays[member]; });
  for (uint32_t& member : by_key_) member = new_place[member];
  members_.resize(n_kept);
}

size_t JsonObject::n_members() const { return members_.size(); }

std::span<const JsonMember> JsonObject::members() const { return members_; }

size_t JsonObject::place_of(std::string_view key) const {
  const auto place = std::lower_bound(by_key_.begin(), by_key_.end(), key,
                                      [this](uint32_t member, std::string_view k) { return members_[member].key < k; });
  return static_cast<size_t>(place - by_key_.begin());
}

bool JsonObject::holds(size_t place, std::string_view key) const {
  return place < by_key_.size() && members_[by_key_[place]].key == key;
}

const JsonValue* JsonObject::find(std::string_view key) const {
  const size_t place = place_of(key);
  return holds(place, key) ? &members_[by_key_[place]].value : nullptr;
}

JsonValue* JsonObject::find(std::string_view key) { return const_cast<JsonValue*>(std::as_const(*this).find(key)); }

void JsonObject::set(std::string_view key, JsonValue value) {
  const size_t place = place_of(key);
  if (holds(place, key)) {
    members_[by_key_[place]].value = std::move(value);
    return;
  }
  by_key_.insert(by_key_.begin() + static_cast<std::ptrdiff_t>(place), static_cast<uint32_t>(members_.size()));
  members_.push_back({std::string(key), std::move(value)});
}

bool JsonObject::erase(std::string_view key) {
  const size_t place = place_of(key);
  if (!holds(place, key)) return false;
  const uint32_t gone = by_key_[place];
  by_key_.erase(by_key_.begin() + static_cast<std::ptrdiff_t>(place));
  for (uint32_t& member : by_key_) member -= member > gone ? 1 : 0;
  members_.erase(members_.begin() + gone);
  return true;
}

bool JsonObject::operator==(const JsonObject& other) const { return members_ == other.members_; }

JsonValue::JsonValue(JsonArray value) : value_(std::move(value)) {}
JsonValue::JsonValue(JsonObject value) : value_(std::move(value)) {}

std::optional<int64_t> JsonValue::to_int64() const {
  const JsonNumber* number = as_number();
  return number != nullptr ? number->to_int64() : std::nullopt;
}

std::optional<uint64_t> JsonValue::to_uint64() const {
  const JsonNumber* number = as_number();
  return number != nullptr ? number->to_uint64() : std::nullopt;
}

std::optional<double> JsonValue::to_double() const {
  const JsonNumber* number = as_number();
  return number != nullptr ? number->to_double() : std::nullopt;
}

bool JsonValue::operator==(const JsonValue& other) const { return value_ == other.value_; }

std::string describe_json(const JsonValue& value) {
  constexpr size_t kMaxShown = 60;
  const auto shown = [](std::string text) {
    if (text.size() <= kMaxShown) return text;
    size_t cut = kMaxShown;
    while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) --cut;  // between characters only
    return text.substr(0, cut) + "...";
  };
  switch (value.type()) {
    case JsonValue::Type::kNull:
      return "null";
    case JsonValue::Type::kBool:
      return *value.as_bool() ? "true" : "false";
    case JsonValue::Type::kNumber:
      return shown(value.as_number()->text()) + " (a number)";
    case JsonValue::Type::kString:
      return shown(dump_json(value)) + " (a string)";
    case JsonValue::Type::kArray:
      return fmt::format("a list of {}", value.as_array()->size());
    case JsonValue::Type::kObject:
      return "an object";
  }
  return "";
}

}  // namespace levin::io
