// GGUF, version 3: keys and tensors in one file, as llama.cpp and its relatives read them. Written only.
//
//   file    "GGUF" | u32 version | u64 tensors | u64 keys | keys | tensor infos | padding | data
//   key     string name | u32 type | value;  string = u64 length | bytes;  array = u32 type | u64 length | values
//   info    string name | u32 dimensions | u64 each, fastest first | u32 type | u64 offset into data
//
// Little-endian throughout. Every tensor begins at a multiple of 32 bytes. Source: the format description of the ggml
// project.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "io/mapped_file.h"

namespace levin::io {

enum class GgufType : uint32_t { kF32 = 0, kF16 = 1, kI32 = 26, kBF16 = 30, kMxfp4 = 39 };

// MXFP4: groups of 32 values along the last dimension, a scale and 16 bytes each; byte i has value i in its low nibble
// and value i + 16 in the high one. The last dimension must be a multiple of 32.
inline constexpr int64_t kGgufMxfp4Group = 32;
inline constexpr int64_t kGgufMxfp4Bytes = 17;

int64_t gguf_bytes(GgufType type, std::span<const int64_t> shape);

using GgufValue = std::variant<uint32_t, int32_t, float, bool, std::string, std::vector<uint32_t>, std::vector<int32_t>,
                               std::vector<float>, std::vector<std::string>>;

using GgufSink = std::function<Status(std::span<const std::byte>)>;

struct GgufTensor {
  std::string name;
  GgufType type = GgufType::kF32;
  std::vector<int64_t> shape;  // row-major, the last dimension is contiguous
  // Hands all bytes to the sink, in any pieces. Called once, when the file gets there.
  std::function<Status(const GgufSink& sink)> write;
};

class GgufWriter {
 public:
  void set(std::string key, GgufValue value);  // a second value of a key is a bug
  void add(GgufTensor tensor);                 // a second tensor of a name likewise
  // Appears complete or not at all. `on_bytes` is told what was written and what there is in all; it may be empty.
  Status write(const std::filesystem::path& path, const std::function<void(int64_t, int64_t)>& on_bytes = {}) const;

  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  int64_t data_bytes() const;  // of all tensors, padding included

 private:
  std::string header() const;
  Status write_tensor(const GgufTensor& tensor, AtomicFile& file) const;

  std::vector<std::pair<std::string, GgufValue>> keys_;
  std::vector<GgufTensor> tensors_;
};

}  // namespace levin::io
