#include "text/fold.h"

#include <algorithm>

#include "text/unicode.h"

namespace levin::text {
namespace {

constexpr char32_t kFirstSyllable = 0xAC00;
constexpr char32_t kSyllables = 11172, kVowels = 21, kTails = 28;

// Into its two or three letters (The Unicode Standard, 3.12).
void append_syllable(char32_t code_point, std::string& out) {
  const char32_t index = code_point - kFirstSyllable;
  append_utf8(0x1100 + index / (kVowels * kTails), out);
  append_utf8(0x1161 + index / kTails % kVowels, out);
  if (index % kTails != 0) append_utf8(0x11A7 + index % kTails, out);
}

void append_folded(char32_t code_point, std::string& out) {
  using fold_tables::kEnds;
  using fold_tables::kPoints;
  if (code_point >= kFirstSyllable && code_point < kFirstSyllable + kSyllables) {
    return append_syllable(code_point, out);
  }
  const uint32_t* const end = kPoints + fold_tables::kCount;
  const uint32_t* const found = std::lower_bound(kPoints, end, static_cast<uint32_t>(code_point));
  if (found == end || *found != code_point) return append_utf8(code_point, out);
  const auto i = static_cast<size_t>(found - kPoints);
  for (size_t j = i == 0 ? 0 : kEnds[i - 1]; j < kEnds[i]; ++j) append_utf8(fold_tables::kTexts[j], out);
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty()) {
    const Utf8Char first = decode_utf8(text, 0);
    if ((char_class(first.code_point) & kSpace) == 0) break;
    text.remove_prefix(static_cast<size_t>(first.n_bytes));
  }
  while (!text.empty()) {
    const size_t last = previous_char(text, text.size());
    if ((char_class(decode_utf8(text, last).code_point) & kSpace) == 0) break;
    text.remove_suffix(text.size() - last);
  }
  return text;
}

}  // namespace

std::string fold_text(std::string_view text) {
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Char next = decode_utf8(text, pos);
    append_folded(next.code_point, out);
    pos += static_cast<size_t>(next.n_bytes);
  }
  return out;
}

std::string fold_spaces(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool blank = c == ' ' || c == '\t' || c == '\r' || c == '\n';
    if (!blank) {
      out += c;
    } else if (out.empty() || out.back() != ' ') {
      out += ' ';
    }
  }
  return out == " " ? out : std::string(trimmed(out));
}

}  // namespace levin::text
