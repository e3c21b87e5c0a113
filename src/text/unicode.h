// UTF-8 and the classes of characters that pre-tokenizer patterns ask for.
//
// Version  Unicode 16.0, as the regular expressions of Hugging Face tokenizers (unicode_tables.py)
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace levin::text {

// Bits; a character may have several.
enum CharClass : uint8_t {
  kLetter = 1,       // \p{L}
  kMark = 2,         // \p{M}
  kNumber = 4,       // \p{N}
  kPunctuation = 8,  // \p{P}
  kSymbol = 16,      // \p{S}
  kSpace = 32,       // \s: the property White_Space
  kWord = 64,        // \w: Alphabetic, \p{M}, \p{Nd}, \p{Pc}, Join_Control
  kNewline = 128,    // CR and LF
};

namespace unicode_tables {
inline constexpr int kBlockBits = 7;
extern const uint8_t kBlockOf[0x110000 >> kBlockBits];
extern const uint8_t kClasses[];
}  // namespace unicode_tables

// The CharClass bits of a code point below 0x110000.
inline uint8_t char_class(char32_t code_point) {
  const size_t block = unicode_tables::kBlockOf[code_point >> unicode_tables::kBlockBits];
  const char32_t place = code_point & ((1u << unicode_tables::kBlockBits) - 1);
  return unicode_tables::kClasses[(block << unicode_tables::kBlockBits) | place];
}

struct Utf8Char {
  char32_t code_point;
  int n_bytes;
};

// The character that starts at `pos` of valid UTF-8. Text from outside goes through valid_utf8() first.
inline Utf8Char decode_utf8(std::string_view text, size_t pos) {
  const auto byte = [text, pos](size_t i) { return static_cast<char32_t>(static_cast<uint8_t>(text[pos + i])); };
  const char32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {(lead & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  if (lead < 0xF0) return {(lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
  return {(lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F), 4};
}

// Where the character that ends before `end` begins; `end` > 0, valid UTF-8.
inline size_t previous_char(std::string_view text, size_t end) {
  size_t start = end - 1;
  while (start > 0 && (static_cast<uint8_t>(text[start]) & 0xC0) == 0x80) --start;
  return start;
}

inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// What stands at the start of bytes that need not be UTF-8.
struct Utf8Step {
  enum Kind {
    kValid,       // one character
    kInvalid,     // one maximal subpart of an ill-formed sequence: stands for one U+FFFD
    kIncomplete,  // the bytes end inside a character that is well formed so far
  };
  Kind kind;
  int n_bytes;  // 1 to 4
};
Utf8Step next_utf8(std::string_view bytes);  // `bytes` is not empty

bool is_valid_utf8(std::string_view bytes);

// The bytes as UTF-8, each maximal ill-formed subpart replaced by U+FFFD: what Python's errors="replace" and the
// WHATWG decoder do. Returns `bytes` itself if it is valid, otherwise a view of `storage`.
std::string_view valid_utf8(std::string_view bytes, std::string& storage);

void append_utf8(char32_t code_point, std::string& out);

}  // namespace levin::text
