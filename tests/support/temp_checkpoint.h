// A checkpoint to be spoiled: read into memory, changed, written into a temporary folder.
//
//   TempCheckpoint model = TempCheckpoint::from_fixture("v32-odd");
//   model.remove_tensor("lm_head.weight");
//   model.set_config("rope_parameters.factor", "40");
//   ... run on model.write() ...
//
// Naming a tensor or a file that is not there is a mistake in the test and stops it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.h"
#include "io/safetensors.h"
#include "support/fixture.h"
#include "support/temp_dir.h"

namespace levin::test {

class TempCheckpoint {
 public:
  static TempCheckpoint from_fixture(std::string_view name);
  // Any checkpoint folder; its other files (tokenizer.json, ...) come along.
  static TempCheckpoint from_folder(const std::filesystem::path& folder);

  // Tensors. New dtypes and shapes keep the bytes that still fit; the rest is zero.
  std::vector<std::string> tensor_names() const;
  DrawnTensor& tensor(std::string_view name);
  void remove_tensor(std::string_view name);
  void rename_tensor(std::string_view from, std::string_view to);
  void set_dtype(std::string_view name, io::StoredDtype dtype);
  void set_shape(std::string_view name, std::vector<int64_t> shape);
  void add_tensor(DrawnTensor added);  // no bytes: zeros

  // config.json. A key with dots is a path through objects; objects on the way are made.
  io::JsonObject& config() { return config_; }
  void set_config(std::string_view key, io::JsonValue value);
  void erase_config(std::string_view key);

  // Everything into path(), replacing what an earlier call wrote. More than one shard: with an index, tensors dealt out
  // in turn, ascending by name.
  std::filesystem::path write(int n_shards = 1);
  const std::filesystem::path& path() const { return dir_.path(); }

  // Files, after write().
  static std::string shard_name(int shard_idx, int n_shards);  // model-00001-of-00002.safetensors
  void truncate_file(std::string_view name, size_t n_bytes);   // to its first n bytes
  void overwrite(std::string_view name, size_t offset, std::span<const std::byte> bytes);
  void write_text(std::string_view name, std::string_view text);
  void remove_file(std::string_view name);

 private:
  TempCheckpoint() = default;

  TempDir dir_;
  io::JsonObject config_;
  std::map<std::string, DrawnTensor, std::less<>> tensors_;
  std::map<std::string, std::string> other_files_;
};

}  // namespace levin::test
