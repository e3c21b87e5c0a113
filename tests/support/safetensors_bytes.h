// The bytes of a safetensors file with any header, right or wrong.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace levin::test {

// The header with its length in front, then data.
inline std::string safetensors_file(std::string_view header, size_t n_data_bytes) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(header.size() >> (8 * i));
  file += header;
  return file + std::string(n_data_bytes, '\x2A');
}

inline std::span<const std::byte> as_bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

}  // namespace levin::test
