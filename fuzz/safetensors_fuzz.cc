// Any bytes, as a file and as the header of a file: the tensors of what is accepted lie inside it, and their bytes can
// be touched.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/check.h"
#include "io/safetensors.h"

namespace levin {
namespace {

void parse(std::span<const std::byte> file) {
  const Result<io::SafetensorsHeader> header = io::parse_safetensors(file, "fuzz");
  if (!header.ok()) return;
  size_t n_bytes = 0;
  unsigned sum = 0;
  for (const io::StoredTensor& tensor : header->tensors) {
    const auto expected = io::tensor_bytes(tensor.dtype, tensor.shape);
    LEVIN_CHECK(expected.has_value(), "an impossible shape was accepted");
    LEVIN_CHECK(static_cast<size_t>(*expected) == tensor.bytes.size(), "bytes and shape differ");
    for (const std::byte b : tensor.bytes) sum += std::to_integer<unsigned>(b);
    n_bytes += tensor.bytes.size();
  }
  volatile unsigned touched = sum;
  (void)touched;
  LEVIN_CHECK(n_bytes <= file.size(), "more bytes in tensors than in the file");
}

// The text with its length in front and, after it, as many bytes as its last byte says.
std::vector<std::byte> with_length_and_data(std::span<const std::byte> text) {
  std::vector<std::byte> file;
  file.reserve(8 + text.size());
  for (int i = 0; i < 8; ++i) file.push_back(static_cast<std::byte>(text.size() >> (8 * i)));
  file.insert(file.end(), text.begin(), text.end());
  file.insert(file.end(), text.empty() ? 0 : std::to_integer<size_t>(text.back()), std::byte{1});
  return file;
}

void check_bytes(std::span<const std::byte> bytes) {
  parse(bytes);
  // As a header: the last byte is the number of data bytes.
  if (!bytes.empty()) {
    std::vector<std::byte> file = with_length_and_data(bytes);
    file[8 + bytes.size() - 1] = std::byte{' '};
    parse(file);
  }
}

}  // namespace
}  // namespace levin

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  levin::check_bytes(std::as_bytes(std::span(data, size)));
  return 0;
}
