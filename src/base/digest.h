// What bytes are told apart by: SHA-256 where names must not collide, a quick checksum where damage is to be noticed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace levin {

using Digest = std::array<std::byte, 32>;

// SHA-256 (FIPS 180-4) of everything that was added.
class Sha256 {
 public:
  Sha256& add(std::span<const std::byte> bytes);
  Sha256& add(std::string_view text) { return add(std::as_bytes(std::span(text))); }
  // Eight bytes, the lowest first.
  Sha256& add_number(uint64_t value);
  Digest finish();  // once, at the end

 private:
  void take_block(const std::byte* block);

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, 64> pending_ = {};
  size_t n_pending_ = 0;
  uint64_t n_bytes_ = 0;
};

// "9f86d081..." of the first n_bytes.
std::string hex(std::span<const std::byte> bytes);

// Of memory's speed. It changes with any change that stays within eight bytes of a whole multiple of eight, and else with
// a chance of 1 - 2^-64; an adversary can make two of the same. Little-endian machines agree on it.
uint64_t checksum64(std::span<const std::byte> bytes);

}  // namespace levin
