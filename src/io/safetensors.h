// Safetensors: tensors as stored in files, one file or a checkpoint folder, read through a memory map and written.
//
//   file    u64 little-endian header length | header, JSON | data
//   header  {"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]}, ..., "__metadata__": {text:
//   text}}
//
// Offsets count from the first data byte. The data is covered by the tensors without holes or overlaps, as the format
// demands. Everything is checked before a tensor is handed out; errors name the file and the tensor, and are of kind
// kModelInvalid. Source: the format description of the safetensors project.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/dummy_values.h"
#include "base/result.h"
#include "io/mapped_file.h"

namespace levin::io {

enum class StoredDtype { kF64, kF32, kF16, kBF16, kF8_E4M3, kF8_E5M2, kF8_E8M0, kI64, kI32, kI16, kI8, kU8, kBool };

std::string_view dtype_name(StoredDtype dtype);  // as in the header: "BF16", "F8_E4M3", "BOOL"
std::optional<StoredDtype> dtype_from_name(std::string_view name);
size_t dtype_bytes(StoredDtype dtype);  // per element

// "[2, 3]"
std::string shape_text(std::span<const int64_t> shape);

// Bytes of a tensor, or nullopt if a dimension is negative or the product overflows 63 bits. An empty shape is a
// scalar.
std::optional<int64_t> tensor_bytes(StoredDtype dtype, std::span<const int64_t> shape);

struct StoredTensor {
  std::string name;
  StoredDtype dtype = StoredDtype::kF32;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;  // row-major, little-endian, inside the map; not necessarily aligned to the dtype
  int file_idx = 0;                  // into Checkpoint::files()
  std::optional<DummyTensor> dummies = {};  // instead of bytes, of a tensor that is in no file and that nobody has made
};

struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;                          // ascending by name
  std::vector<std::pair<std::string, std::string>> metadata;  // `__metadata__`, in the order of the file
};

inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;  // the limit of the reference implementation

// Parses a whole file; `what` names it in errors. The tensors' bytes refer to `file`.
Result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> file, std::string_view what);

enum class CheckpointMode {
  kTensors,  // maps every file and reads the headers; weights are read when they are touched
  kNames,    // a sharded checkpoint: the index alone, shards need not be there. A single file: as kTensors
};

// All tensors of a model: a folder with `model.safetensors`, or else `model.safetensors.index.json` and the shards that
// it names, or one .safetensors file. Both in one folder: the single file, as transformers does.
//
// The index and the shards must agree: a missing shard, a tensor named in the index that its shard lacks, a tensor in a
// shard that the index gives to another shard or does not name are errors.
class Checkpoint {
 public:
  static Result<Checkpoint> open(const std::filesystem::path& path, CheckpointMode mode = CheckpointMode::kTensors);

  const std::filesystem::path& path() const { return path_; }  // as given to open()
  bool has_tensors() const { return has_tensors_; }            // false: only names() and shard_names() are known

  const std::vector<std::string>& names() const { return names_; }              // of all tensors, ascending
  const std::vector<std::string>& shard_names() const { return shard_names_; }  // file names, ascending

  // With has_tensors(); empty otherwise.
  const std::vector<StoredTensor>& tensors() const { return tensors_; }  // ascending by name
  const StoredTensor* find(std::string_view name) const;                 // nullptr when absent
  const std::vector<MappedFile>& files() const { return files_; }
  const std::filesystem::path& file_of(const StoredTensor& tensor) const {
    return files_[static_cast<size_t>(tensor.file_idx)].path();
  }
  int64_t total_bytes() const { return total_bytes_; }  // of the tensors, without headers

 private:
  Status open_files(const std::filesystem::path& folder);
  Status open_sharded(const std::filesystem::path& folder, CheckpointMode mode);

  std::filesystem::path path_;
  std::vector<std::string> names_;
  std::vector<std::string> shard_names_;
  std::vector<MappedFile> files_;  // of shard_names_
  std::vector<StoredTensor> tensors_;
  int64_t total_bytes_ = 0;
  bool has_tensors_ = false;
};

// Writes one file, atomically. Tensors stand in the order of add(); the header is padded so that the data begins at a
// multiple of 8 bytes. The bytes passed to add() are not copied and must live until write().
class SafetensorsWriter {
 public:
  struct Entry {
    std::string name;
    StoredDtype dtype = StoredDtype::kF32;
    std::vector<int64_t> shape;
    std::span<const std::byte> bytes;  // row-major, little-endian; as many as dtype and shape say
  };

  void add(Entry entry);  // a second entry of a name and a wrong number of bytes are bugs
  void set_metadata(std::string key, std::string value);
  Status write(const std::filesystem::path& path) const;

 private:
  std::string header() const;

  std::vector<Entry> entries_;
  std::vector<std::pair<std::string, std::string>> metadata_;
};

}  // namespace levin::io
