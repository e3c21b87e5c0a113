#include "grammar/regex.h"

#include <fmt/core.h>

#include <optional>
#include <string>
#include <utility>

namespace levin::grammar {
namespace {

constexpr size_t kMaxPatternChars = 10'000;
constexpr int kMaxNesting = 64;
constexpr int64_t kMaxRepeat = 100'000;

const CharSet kDigits = {{'0', '9'}};
const CharSet kWordChars = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CharSet kLineEnds = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
// White space in every dialect, and in any.
const CharSet kSpaces = {{'\t', '\r'},     {' ', ' '},       {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
                         {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}};
const CharSet kMaybeSpaces = {{'\t', '\r'},     {0x1c, ' '},      {0x85, 0x85},     {0xa0, 0xa0},
                              {0x1680, 0x1680}, {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f},
                              {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};

class RegexParser {
 public:
  RegexParser(std::string_view pattern, RegexMatch match, Writing writing)
      : chars_(decode_utf8(pattern)), match_(match), writing_(writing) {}

  Result<Expression> parse() {
    if (chars_.size() > kMaxPatternChars) return refuse(fmt::format("is longer than {} characters", kMaxPatternChars));
    LEVIN_ASSIGN(Expression out, alternatives(0));
    if (!at_end()) return refuse("has a ) without a (");
    return out;
  }

 private:
  Error refuse(std::string_view what) const {
    return {ErrorKind::kUsage, fmt::format("the pattern {} (at character {})", what, at_)};
  }
  bool at_end() const { return at_ == chars_.size(); }
  char32_t peek(size_t ahead = 0) const { return at_ + ahead < chars_.size() ? chars_[at_ + ahead] : 0; }
  bool take(char32_t c) {
    if (at_end() || peek() != c) return false;
    ++at_;
    return true;
  }

  Result<Expression> alternatives(int depth) {
    if (depth > kMaxNesting) return refuse(fmt::format("has groups nested deeper than {}", kMaxNesting));
    std::vector<Expression> parts;
    do {
      LEVIN_ASSIGN(Expression part, alternative(depth));
      parts.push_back(std::move(part));
    } while (take('|'));
    return parts.size() == 1 ? std::move(parts.front()) : choice(std::move(parts));
  }

  Result<Expression> alternative(int depth) {
    std::vector<Expression> parts;
    bool from_start = false, to_end = false;
    if (peek() == '^' && !at_end()) {
      if (depth > 0) return refuse("has a ^ inside a group, which is not supported");
      from_start = take('^');
    }
    while (!at_end() && peek() != '|' && peek() != ')') {
      if (to_end) return refuse("has something after a $");
      if (take('$')) {
        if (depth > 0) return refuse("has a $ inside a group, which is not supported");
        to_end = true;
        continue;
      }
      LEVIN_ASSIGN(Expression part, repeated(depth));
      parts.push_back(std::move(part));
    }
    Expression whole = sequence(std::move(parts));
    if (depth > 0 || match_ == RegexMatch::kWhole) return whole;
    const Expression anything = repeat(one_of(all_but({}), writing_), 0);
    std::vector<Expression> around;
    if (!from_start) around.push_back(anything);
    around.push_back(std::move(whole));
    if (!to_end) around.push_back(anything);
    return sequence(std::move(around));
  }

  Result<Expression> repeated(int depth) {
    LEVIN_ASSIGN(Expression part, atom(depth));
    while (!at_end()) {
      int64_t min = 0, max = kNoLimit;
      if (take('?')) {
        max = 1;
      } else if (take('+')) {
        min = 1;
      } else if (!take('*')) {
        LEVIN_ASSIGN(const bool counted, counts(&min, &max));
        if (!counted) return part;
      }
      take('?');  // lazy: the same texts
      if (peek() == '+' && !at_end()) return refuse("has a possessive repeat, which is not supported");
      part = repeat(std::move(part), min, max);
    }
    return part;
  }

  // {2} {2,} {2,5}; false, and nothing taken, where no { stands.
  Result<bool> counts(int64_t* min, int64_t* max) {
    if (!take('{')) return false;
    const std::optional<int64_t> low = number();
    if (!low) return refuse("has a { that begins no count; write \\{ for the character");
    *min = *max = *low;
    if (take(',')) *max = number().value_or(kNoLimit);
    if (!take('}')) return refuse("has a count that does not end");
    if (*max < *min) return refuse(fmt::format("has a count from {} to {}", *min, *max));
    if (*min > kMaxRepeat || (*max != kNoLimit && *max > kMaxRepeat)) {
      return refuse(fmt::format("has a count above {}", kMaxRepeat));
    }
    return true;
  }
  std::optional<int64_t> number() {
    std::optional<int64_t> out;
    while (!at_end() && peek() >= '0' && peek() <= '9') {
      out = std::min<int64_t>(out.value_or(0) * 10 + (chars_[at_++] - '0'), kMaxRepeat + 1);
    }
    return out;
  }

  Result<Expression> atom(int depth) {
    const char32_t c = chars_[at_++];
    switch (c) {
      case '(':
        return group(depth);
      case '[':
        return bracket();
      case '.':
        return one_of(all_but(kLineEnds), writing_);
      case '\\': {
        LEVIN_ASSIGN(const CharSet set, escape());
        return one_of(set, writing_);
      }
      case '^':
        return refuse("has a ^ that is not at its beginning");
      case '*':
      case '+':
      case '?':
      case '{':
        return refuse("has a repeat of nothing");
      default:
        return one_of({{c, c}}, writing_);
    }
  }

  Result<Expression> group(int depth) {
    if (take('?')) {
      if (take(':')) {
      } else if ((peek() == '<' || (peek() == 'P' && peek(1) == '<')) && peek(1) != '=' && peek(1) != '!') {
        while (!at_end() && peek() != '>') ++at_;
        if (!take('>')) return refuse("has a group whose name does not end");
      } else {
        return refuse("has a group of a kind that is not supported: no look-around, no flags");
      }
    }
    LEVIN_ASSIGN(Expression out, alternatives(depth + 1));
    if (!take(')')) return refuse("has a ( without a )");
    return out;
  }

  Result<Expression> bracket() {
    const bool inverted = take('^');
    if (peek() == ']') return refuse("has a class without members");
    CharSet set;
    while (!take(']')) {
      if (at_end()) return refuse("has a [ without a ]");
      LEVIN_ASSIGN(const CharSet first, class_member(inverted));
      const bool is_range = peek() == '-' && peek(1) != ']' && at_ + 1 < chars_.size();
      if (!is_range) {
        set.insert(set.end(), first.begin(), first.end());
        continue;
      }
      ++at_;
      LEVIN_ASSIGN(const CharSet last, class_member(inverted));
      const bool single =
          first.size() == 1 && first[0].low == first[0].high && last.size() == 1 && last[0].low == last[0].high;
      if (!single || first[0].low > last[0].low)
        return refuse("has a range whose ends are not characters in ascending order");
      set.push_back({first[0].low, last[0].low});
    }
    set = make_set(std::move(set));
    return one_of(inverted ? all_but(set) : set, writing_);
  }

  Result<CharSet> class_member(bool inverted) {
    if (at_end()) return refuse("has a [ without a ]");
    const char32_t c = chars_[at_++];
    if (c == '\\') return escape(inverted ? Place::kInvertedClass : Place::kClass);
    return CharSet{{c, c}};
  }

  // What stands after a backslash. White space that is none in some dialect is out of \s and of \S, so it is in both where
  // the class is inverted afterwards.
  enum class Place : uint8_t { kAlone, kClass, kInvertedClass };
  Result<CharSet> escape(Place place = Place::kAlone) {
    const bool inverted = place == Place::kInvertedClass;
    if (at_end()) return refuse("ends with a backslash");
    const char32_t c = chars_[at_++];
    switch (c) {
      case 'd':
        return kDigits;
      case 'D':
        return all_but(kDigits);
      case 'w':
        return kWordChars;
      case 'W':
        return all_but(kWordChars);
      case 's':
        return inverted ? kMaybeSpaces : kSpaces;
      case 'S':
        return all_but(inverted ? kSpaces : kMaybeSpaces);
      case 'n':
        return CharSet{{'\n', '\n'}};
      case 't':
        return CharSet{{'\t', '\t'}};
      case 'r':
        return CharSet{{'\r', '\r'}};
      case 'f':
        return CharSet{{'\f', '\f'}};
      case 'v':
        return CharSet{{'\v', '\v'}};
      case 'x':
        return hex_char(2);
      case 'u':
        return hex_char(4);
      default:
        break;
    }
    if (c == 'b' && place != Place::kAlone) return CharSet{{'\b', '\b'}};
    const bool is_letter_or_digit = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (c == '0' && !(peek() >= '0' && peek() <= '9')) return CharSet{{0, 0}};
    if (is_letter_or_digit) return refuse(fmt::format("has \\{}, which is not supported", static_cast<char>(c)));
    return CharSet{{c, c}};
  }

  Result<CharSet> hex_char(int n_digits) {
    char32_t value = 0;
    for (int i = 0; i < n_digits; ++i) {
      const char32_t c = at_end() ? 0 : chars_[at_++];
      const bool is_hex = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
      if (!is_hex) return refuse(fmt::format("has an escape that needs {} hexadecimal digits", n_digits));
      value = value * 16 + (c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    if (value >= 0xd800 && value <= 0xdfff) return refuse("has half of a surrogate pair; write the character");
    return CharSet{{value, value}};
  }

  const std::vector<char32_t> chars_;
  const RegexMatch match_;
  const Writing writing_;
  size_t at_ = 0;
};

}  // namespace

Result<Expression> parse_regex(std::string_view pattern, RegexMatch match, Writing writing) {
  return RegexParser(pattern, match, writing).parse();
}

}  // namespace levin::grammar
