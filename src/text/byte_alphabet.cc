#include "text/byte_alphabet.h"

#include "text/unicode.h"

namespace levin::text {

ByteAlphabet::ByteAlphabet() {
  byte_.fill(-1);
  char32_t next_other = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    const char32_t character = printable ? static_cast<char32_t>(byte) : next_other++;
    character_[static_cast<size_t>(byte)] = character;
    byte_[character] = static_cast<int16_t>(byte);
  }
}

std::optional<std::string> ByteAlphabet::bytes_of(std::string_view spelling) const {
  std::string bytes;
  for (size_t pos = 0; pos < spelling.size();) {
    const Utf8Char c = decode_utf8(spelling, pos);
    if (c.code_point >= kEndOfAlphabet || byte_[c.code_point] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(byte_[c.code_point]));
    pos += static_cast<size_t>(c.n_bytes);
  }
  return bytes;
}

}  // namespace levin::text
