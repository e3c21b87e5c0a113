#include "io/gguf.h"

#include <algorithm>
#include <array>
#include <bit>
#include <type_traits>

#include "base/check.h"

namespace levin::io {
namespace {

constexpr uint32_t kVersion = 3;
constexpr int64_t kAlignment = 32;  // what readers assume without general.alignment
constexpr uint32_t kArray = 9;

int64_t padded(int64_t n_bytes) { return (n_bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Appends little-endian.
template <class T>
void put(std::string& out, T value) {
  if constexpr (std::is_same_v<T, float>) {
    put(out, std::bit_cast<uint32_t>(value));
  } else if constexpr (std::is_same_v<T, bool>) {
    out += static_cast<char>(value);
  } else {
    const auto bits = static_cast<std::make_unsigned_t<T>>(value);
    for (size_t i = 0; i < sizeof(T); ++i) out += static_cast<char>(bits >> (8 * i) & 0xFF);
  }
}
void put(std::string& out, const std::string& text) {
  put(out, static_cast<uint64_t>(text.size()));
  out += text;
}

template <class T>
constexpr uint32_t kTypeCode = std::is_same_v<T, uint32_t>  ? 4
                               : std::is_same_v<T, int32_t> ? 5
                               : std::is_same_v<T, float>   ? 6
                               : std::is_same_v<T, bool>    ? 7
                                                            : 8;

template <class T>
void put_value(std::string& out, const T& value) {
  put(out, kTypeCode<T>);
  put(out, value);
}
template <class T>
void put_value(std::string& out, const std::vector<T>& values) {
  put(out, kArray);
  put(out, kTypeCode<T>);
  put(out, static_cast<uint64_t>(values.size()));
  for (const T& value : values) put(out, value);
}

}  // namespace

int64_t gguf_bytes(GgufType type, std::span<const int64_t> shape) {
  int64_t n = 1;
  for (const int64_t dim : shape) n *= dim;
  switch (type) {
    case GgufType::kF32:
    case GgufType::kI32:
      return n * 4;
    case GgufType::kF16:
    case GgufType::kBF16:
      return n * 2;
    case GgufType::kMxfp4:
      LEVIN_CHECK(!shape.empty() && shape.back() % kGgufMxfp4Group == 0, "MXFP4 of rows that are no whole groups");
      return n / kGgufMxfp4Group * kGgufMxfp4Bytes;
  }
  LEVIN_CHECK(false, "GGUF type {}", static_cast<uint32_t>(type));
  return 0;
}

void GgufWriter::set(std::string key, GgufValue value) {
  const auto same = [&](const auto& other) { return other.first == key; };
  LEVIN_CHECK(std::none_of(keys_.begin(), keys_.end(), same), "key {} was set twice", key);
  keys_.emplace_back(std::move(key), std::move(value));
}

void GgufWriter::add(GgufTensor tensor) {
  const auto same = [&](const GgufTensor& other) { return other.name == tensor.name; };
  LEVIN_CHECK(std::none_of(tensors_.begin(), tensors_.end(), same), "tensor {} was added twice", tensor.name);
  tensors_.push_back(std::move(tensor));
}

int64_t GgufWriter::data_bytes() const {
  int64_t n = 0;
  for (const GgufTensor& tensor : tensors_) n += padded(gguf_bytes(tensor.type, tensor.shape));
  return n;
}

std::string GgufWriter::header() const {
  std::string out = "GGUF";
  put(out, kVersion);
  put(out, static_cast<uint64_t>(tensors_.size()));
  put(out, static_cast<uint64_t>(keys_.size()));
  for (const auto& [key, value] : keys_) {
    put(out, key);
    std::visit([&](const auto& v) { put_value(out, v); }, value);
  }
  int64_t offset = 0;
  for (const GgufTensor& tensor : tensors_) {
    put(out, tensor.name);
    put(out, static_cast<uint32_t>(tensor.shape.size()));
    for (auto dim = tensor.shape.rbegin(); dim != tensor.shape.rend(); ++dim) put(out, static_cast<uint64_t>(*dim));
    put(out, static_cast<uint32_t>(tensor.type));
    put(out, static_cast<uint64_t>(offset));
    offset += padded(gguf_bytes(tensor.type, tensor.shape));
  }
  out.resize(static_cast<size_t>(padded(static_cast<int64_t>(out.size()))), '\0');
  return out;
}

Status GgufWriter::write_tensor(const GgufTensor& tensor, AtomicFile& file) const {
  const int64_t n_bytes = gguf_bytes(tensor.type, tensor.shape);
  int64_t n_written = 0;
  LEVIN_TRY(tensor.write([&](std::span<const std::byte> bytes) {
    n_written += static_cast<int64_t>(bytes.size());
    return file.write(bytes);
  }));
  LEVIN_CHECK(n_written == n_bytes, "tensor {}: {} bytes written, {} expected", tensor.name, n_written, n_bytes);
  static constexpr std::array<std::byte, kAlignment> kZeros = {};
  return file.write(std::span(kZeros).first(static_cast<size_t>(padded(n_bytes) - n_bytes)));
}

Status GgufWriter::write(const std::filesystem::path& path,
                         const std::function<void(int64_t, int64_t)>& on_bytes) const {
  LEVIN_ASSIGN(AtomicFile file, AtomicFile::create(path));
  LEVIN_TRY(file.write(header()));
  int64_t n_done = 0;
  for (const GgufTensor& tensor : tensors_) {
    LEVIN_TRY(write_tensor(tensor, file));
    n_done += padded(gguf_bytes(tensor.type, tensor.shape));
    if (on_bytes) on_bytes(n_done, data_bytes());
  }
  return file.commit();
}

}  // namespace levin::io
