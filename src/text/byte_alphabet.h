// The printable characters that tokenizer.json writes for bytes: printable Latin-1 for itself, U+0100 and up in order
// for the other 68 (after GPT-2's byte encoder).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace levin::text {

class ByteAlphabet {
 public:
  ByteAlphabet();

  char32_t character(uint8_t byte) const { return character_[byte]; }

  // The bytes a spelling ("Ġthe") stands for; nullopt if one of its characters stands for none.
  std::optional<std::string> bytes_of(std::string_view spelling) const;

 private:
  static constexpr char32_t kEndOfAlphabet = 256 + 68;

  std::array<char32_t, 256> character_;
  std::array<int16_t, kEndOfAlphabet> byte_;  // -1: none
};

}  // namespace levin::text
