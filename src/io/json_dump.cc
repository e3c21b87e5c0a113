#include <fmt/core.h>

#include <charconv>
#include <cmath>
#include <string>
#include <string_view>

#include "io/json.h"

namespace levin::io {
namespace {

void append_string(std::string_view text, std::string& out) {
  out += '"';
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        } else {
          out += c;
        }
    }
  }
  out += '"';
}

std::string number_as_python(const JsonNumber& number) {
  if (number.is_integer()) return number.text() == "-0" ? "0" : number.text();
  const std::optional<double> value = number.to_double();
  if (value) return JsonNumber(*value).text();
  return number.text().starts_with('-') ? "-Infinity" : "Infinity";  // too large for a float
}

class Dumper {
 public:
  Dumper(const JsonDumpOptions& options, std::string& out) : options_(options), out_(out) {}

  void append(const JsonValue& value) {
    switch (value.type()) {
      case JsonValue::Type::kNull:
        out_ += "null";
        break;
      case JsonValue::Type::kBool:
        out_ += *value.as_bool() ? "true" : "false";
        break;
      case JsonValue::Type::kNumber:
        append_number(*value.as_number());
        break;
      case JsonValue::Type::kString:
        append_string(*value.as_string(), out_);
        break;
      case JsonValue::Type::kArray:
        append_array(*value.as_array());
        break;
      case JsonValue::Type::kObject:
        append_object(*value.as_object());
        break;
    }
  }

 private:
  void append_number(const JsonNumber& number) {
    out_ += options_.numbers == JsonNumbers::kAsPython ? number_as_python(number) : number.text();
  }

  void append_array(const JsonArray& array) {
    out_ += '[';
    std::string_view separator;
    for (const JsonValue& element : array) {
      out_ += separator;
      append(element);
      separator = comma();
    }
    out_ += ']';
  }

  void append_object(const JsonObject& object) {
    out_ += '{';
    std::string_view separator;
    for (const JsonMember& member : object.members()) {
      out_ += separator;
      append_string(member.key, out_);
      out_ += options_.compact ? ":" : ": ";
      append(member.value);
      separator = comma();
    }
    out_ += '}';
  }

  std::string_view comma() const { return options_.compact ? "," : ", "; }

  const JsonDumpOptions& options_;
  std::string& out_;
};

}  // namespace

std::string dump_json(const JsonValue& value, const JsonDumpOptions& options) {
  std::string out;
  Dumper(options, out).append(value);
  return out;
}

// CPython writes the shortest digits in positional form while the decimal exponent is in [-4, 16), else in scientific
// form with at least two digits of exponent (float_repr_style 'short').
std::string python_float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[32];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  std::string_view text(buffer, static_cast<size_t>(end - buffer));

  const std::string_view minus = text.starts_with('-') ? "-" : "";
  text.remove_prefix(minus.size());
  const size_t e = text.find('e');
  int exponent = 0;
  const size_t skip_plus = text[e + 1] == '+' ? 2 : 1;
  std::from_chars(text.data() + e + skip_plus, text.data() + text.size(), exponent);
  std::string digits(text.substr(0, 1));
  if (e > 2) digits += text.substr(2, e - 2);

  const auto zeros = [](int n) { return std::string(static_cast<size_t>(n), '0'); };
  const std::string_view all = digits;
  const int n_digits = static_cast<int>(all.size());
  if (exponent < -4 || exponent >= 16) {
    const std::string_view point = n_digits > 1 ? "." : "";
    const char sign = exponent < 0 ? '-' : '+';
    return fmt::format("{}{}{}{}e{}{:02d}", minus, all[0], point, all.substr(1), sign, std::abs(exponent));
  }
  if (exponent < 0) return fmt::format("{}0.{}{}", minus, zeros(-exponent - 1), all);
  const int n_whole = exponent + 1;
  if (n_digits <= n_whole) return fmt::format("{}{}{}.0", minus, all, zeros(n_whole - n_digits));
  return fmt::format("{}{}.{}", minus, all.substr(0, static_cast<size_t>(n_whole)),
                     all.substr(static_cast<size_t>(n_whole)));
}

}  // namespace levin::io
