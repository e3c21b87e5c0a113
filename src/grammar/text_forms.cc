#include "grammar/text_forms.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

namespace levin::grammar {
namespace {

constexpr CharRange kSurrogates = {0xd800, 0xdfff};
constexpr CharRange kLengths[] = {{0, 0x7f}, {0x80, 0x7ff}, {0x800, 0xd7ff}, {0xe000, 0xffff}, {0x10000, kLastChar}};

std::vector<uint8_t> encode(char32_t c) {
  const auto byte = [](char32_t v) { return static_cast<uint8_t>(v); };
  if (c < 0x80) return {byte(c)};
  if (c < 0x800) return {byte(0xc0 | c >> 6), byte(0x80 | (c & 0x3f))};
  if (c < 0x10000) return {byte(0xe0 | c >> 12), byte(0x80 | (c >> 6 & 0x3f)), byte(0x80 | (c & 0x3f))};
  return {byte(0xf0 | c >> 18), byte(0x80 | (c >> 12 & 0x3f)), byte(0x80 | (c >> 6 & 0x3f)), byte(0x80 | (c & 0x3f))};
}

// All byte strings from `low` to `high`, which are of one length and begin a character.
Expression between(std::span<const uint8_t> low, std::span<const uint8_t> high, EdgeKind edge) {
  if (low.size() == 1) return bytes(low[0], high[0], edge);
  const std::vector<uint8_t> least(low.size() - 1, 0x80), most(low.size() - 1, 0xbf);
  const auto rest = [](std::span<const uint8_t> a, std::span<const uint8_t> b) {
    return between(a, b, EdgeKind::kPlain);
  };
  if (low[0] == high[0]) return sequence({bytes(low[0], low[0], edge), rest(low.subspan(1), high.subspan(1))});
  std::vector<Expression> parts;
  parts.push_back(sequence({bytes(low[0], low[0], edge), rest(low.subspan(1), most)}));
  if (low[0] + 1 < high[0]) {
    parts.push_back(sequence({bytes(low[0] + 1, high[0] - 1, edge), rest(least, most)}));
  }
  parts.push_back(sequence({bytes(high[0], high[0], edge), rest(least, high.subspan(1))}));
  return choice(std::move(parts));
}

void add_utf8(CharRange range, EdgeKind edge, std::vector<Expression>* out) {
  for (const CharRange& length : kLengths) {
    const char32_t low = std::max(range.low, length.low), high = std::min(range.high, length.high);
    if (low <= high) out->push_back(between(encode(low), encode(high), edge));
  }
}

bool needs_escape(char32_t c) { return c < 0x20 || c == '"' || c == '\\'; }

std::string escape_of(char32_t c) {
  switch (c) {
    case '"':
      return "\\\"";
    case '\\':
      return "\\\\";
    case '\b':
      return "\\b";
    case '\f':
      return "\\f";
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    default:
      return fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
  }
}

CharSet without_escaped(const CharSet& set) {
  CharSet out;
  for (CharRange range : set) {
    range.low = std::max<char32_t>(range.low, 0x20);
    for (const char32_t hole : {U'"', U'\\'}) {
      if (range.low > range.high || hole < range.low || hole > range.high) continue;
      if (range.low < hole) out.push_back({range.low, hole - 1});
      range.low = hole + 1;
    }
    if (range.low <= range.high) out.push_back(range);
  }
  return out;
}

}  // namespace

CharSet make_set(CharSet ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const CharRange& a, const CharRange& b) { return a.low < b.low; });
  CharSet out;
  for (const CharRange& range : ranges) {
    if (!out.empty() && range.low <= out.back().high + 1) {
      out.back().high = std::max(out.back().high, range.high);
    } else {
      out.push_back(range);
    }
  }
  return out;
}

CharSet all_but(const CharSet& ranges) {
  CharSet cut = ranges;
  cut.push_back(kSurrogates);
  CharSet out;
  char32_t low = 0;
  for (const CharRange& range : make_set(std::move(cut))) {
    if (low < range.low) out.push_back({low, range.low - 1});
    low = range.high + 1;
  }
  if (low <= kLastChar) out.push_back({low, kLastChar});
  return out;
}

Expression one_of(const CharSet& set, Writing writing, EdgeKind edge) {
  std::vector<Expression> parts;
  const bool json = writing == Writing::kJsonString;
  for (const CharRange& range : json ? without_escaped(set) : set) add_utf8(range, edge, &parts);
  if (json) {
    for (const CharRange& range : set) {
      for (char32_t c = range.low; c <= std::min<char32_t>(range.high, '\\'); ++c) {
        if (!needs_escape(c)) continue;
        Expression escape = literal(escape_of(c));
        escape.parts.front().edge = edge;
        parts.push_back(std::move(escape));
      }
    }
  }
  return choice(std::move(parts));
}

Expression json_character(EdgeKind edge) {
  const auto hex = [] { return choice({bytes('0', '9'), bytes('a', 'f'), bytes('A', 'F')}); };
  std::vector<Expression> letters;
  for (const char c : std::string_view("\"\\/bfnrt")) letters.push_back(literal(std::string_view(&c, 1)));
  Expression no_surrogate = choice(
      {sequence({choice({bytes('0', '9'), bytes('a', 'c'), bytes('A', 'C'), bytes('e', 'f'), bytes('E', 'F')}), hex()}),
       sequence({choice({literal("d"), literal("D")}), bytes('0', '7')})});
  letters.push_back(sequence({literal("u"), std::move(no_surrogate), hex(), hex()}));
  std::vector<Expression> parts = {sequence({bytes('\\', '\\', edge), choice(std::move(letters))})};
  for (const CharRange& range : without_escaped(all_but({}))) add_utf8(range, edge, &parts);
  return choice(std::move(parts));
}

std::vector<char32_t> decode_utf8(std::string_view text) {
  std::vector<char32_t> out;
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<uint8_t>(text[i]);
    const size_t n = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    char32_t c = n == 1 ? lead : lead & (0x7f >> n);
    for (size_t j = 1; j < n && i + j < text.size(); ++j) c = c << 6 | (static_cast<uint8_t>(text[i + j]) & 0x3f);
    out.push_back(c);
    i += n;
  }
  return out;
}

Expression text_of(std::string_view utf8, Writing writing) {
  if (writing == Writing::kPlain) return literal(utf8);
  std::string written;
  for (const char c : utf8) {
    const auto byte = static_cast<uint8_t>(c);
    if (needs_escape(byte)) {
      written += escape_of(byte);
    } else {
      written += c;
    }
  }
  return literal(written);
}

}  // namespace levin::grammar
