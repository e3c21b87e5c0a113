#include "text/unicode.h"

#include <cstring>

namespace levin::text {
namespace {

struct Range {
  uint8_t low, high;
};

uint8_t byte_at(std::string_view bytes, size_t i) { return static_cast<uint8_t>(bytes[i]); }

// Length of the character a lead byte announces; 0 for a byte that begins none.
int announced_bytes(uint8_t lead) {
  if (lead < 0x80) return 1;
  if (lead < 0xC2) return 0;  // continuation bytes, and leads of overlong forms
  if (lead < 0xE0) return 2;
  if (lead < 0xF0) return 3;
  if (lead < 0xF5) return 4;
  return 0;
}

// The second byte is where overlong forms, surrogates and values above U+10FFFF are excluded (Unicode, table 3-7).
Range second_byte_range(uint8_t lead) {
  switch (lead) {
    case 0xE0:
      return {0xA0, 0xBF};
    case 0xED:
      return {0x80, 0x9F};
    case 0xF0:
      return {0x90, 0xBF};
    case 0xF4:
      return {0x80, 0x8F};
    default:
      return {0x80, 0xBF};
  }
}

size_t skip_ascii(std::string_view bytes, size_t pos) {
  for (; pos + 8 <= bytes.size(); pos += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + pos, 8);
    if ((word & 0x8080808080808080u) != 0) break;
  }
  while (pos < bytes.size() && byte_at(bytes, pos) < 0x80) ++pos;
  return pos;
}

// End of the valid stretch that starts at `pos`.
size_t skip_valid(std::string_view bytes, size_t pos) {
  while (true) {
    pos = skip_ascii(bytes, pos);
    if (pos == bytes.size()) return pos;
    const Utf8Step step = next_utf8(bytes.substr(pos));
    if (step.kind != Utf8Step::kValid) return pos;
    pos += static_cast<size_t>(step.n_bytes);
  }
}

}  // namespace

Utf8Step next_utf8(std::string_view bytes) {
  const uint8_t lead = byte_at(bytes, 0);
  const int n_bytes = announced_bytes(lead);
  if (n_bytes == 0) return {Utf8Step::kInvalid, 1};
  Range range = second_byte_range(lead);
  for (int i = 1; i < n_bytes; ++i) {
    if (static_cast<size_t>(i) == bytes.size()) return {Utf8Step::kIncomplete, i};
    const uint8_t byte = byte_at(bytes, static_cast<size_t>(i));
    if (byte < range.low || byte > range.high) return {Utf8Step::kInvalid, i};
    range = {0x80, 0xBF};
  }
  return {Utf8Step::kValid, n_bytes};
}

bool is_valid_utf8(std::string_view bytes) { return skip_valid(bytes, 0) == bytes.size(); }

std::string_view valid_utf8(std::string_view bytes, std::string& storage) {
  size_t pos = skip_valid(bytes, 0);
  if (pos == bytes.size()) return bytes;
  storage.assign(bytes.substr(0, pos));
  while (pos < bytes.size()) {
    pos += static_cast<size_t>(next_utf8(bytes.substr(pos)).n_bytes);  // invalid, or incomplete at the end
    storage.append(kReplacement);
    const size_t end = skip_valid(bytes, pos);
    storage.append(bytes.substr(pos, end - pos));
    pos = end;
  }
  return storage;
}

void append_utf8(char32_t code_point, std::string& out) {
  const auto tail = [&](int shift) { out.push_back(static_cast<char>(0x80 | ((code_point >> shift) & 0x3F))); };
  if (code_point < 0x80) {
    out.push_back(static_cast<char>(code_point));
  } else if (code_point < 0x800) {
    out.push_back(static_cast<char>(0xC0 | (code_point >> 6)));
    tail(0);
  } else if (code_point < 0x10000) {
    out.push_back(static_cast<char>(0xE0 | (code_point >> 12)));
    tail(6);
    tail(0);
  } else {
    out.push_back(static_cast<char>(0xF0 | (code_point >> 18)));
    tail(12);
    tail(6);
    tail(0);
  }
}

}  // namespace levin::text
