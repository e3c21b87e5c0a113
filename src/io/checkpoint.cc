#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "io/json.h"
#include "io/safetensors.h"

namespace levin::io {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

template <class... Args>
Error invalid(fmt::format_string<Args...> format, Args&&... args) {
  return Error{ErrorKind::kModelInvalid, fmt::format(format, std::forward<Args>(args)...)};
}

// Absent, not merely unreadable: those are reported when the file is opened.
bool is_absent(const fs::path& path) {
  std::error_code ignored;
  return fs::status(path, ignored).type() == fs::file_type::not_found;
}

// Names of files in the folder itself, so that an index cannot lead elsewhere.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\0", 2)) == std::string::npos;
}

// The index of a sharded checkpoint: tensor name to file name, ascending.
using Index = std::map<std::string, std::string, std::less<>>;

Result<Index> read_index(const fs::path& path) {
  constexpr size_t kMaxIndexBytes = kMaxSafetensorsHeaderBytes;
  LEVIN_ASSIGN(std::string text, read_file(path, {.max_bytes = kMaxIndexBytes}));
  LEVIN_ASSIGN(JsonValue document, parse_json(text, path.string()));
  LEVIN_ASSIGN(JsonFields fields, JsonFields::of(document, path.string()));
  LEVIN_ASSIGN(JsonFields weight_map, fields.get_fields("weight_map"));
  Index index;
  for (const JsonMember& member : weight_map.object().members()) {
    LEVIN_ASSIGN(std::string file, weight_map.get<std::string>(member.key));
    if (!is_plain_name(file)) return weight_map.unexpected(member.key, "the name of a file in the same folder");
    index.emplace(member.key, std::move(file));
  }
  if (index.empty()) return invalid("{}: weight_map names no tensor", path.string());
  return index;
}

// Each tensor stands in the file that the index gives it to, and the other way round.
Status check_index(const Index& index, const std::vector<StoredTensor>& tensors, const std::vector<MappedFile>& files) {
  const auto path_of = [&](const StoredTensor& t) { return files[static_cast<size_t>(t.file_idx)].path(); };
  for (const StoredTensor& t : tensors) {
    const auto entry = index.find(t.name);
    if (entry == index.end()) {
      return invalid("{}: tensor {} is not named in {}", path_of(t).string(), t.name, kIndexFile);
    }
    if (path_of(t).filename() != entry->second) {
      return invalid("{}: tensor {} belongs to {} according to {}", path_of(t).string(), t.name, entry->second,
                     kIndexFile);
    }
  }
  auto tensor = tensors.begin();  // both ascend by name, and every tensor is in the index
  for (const auto& [name, file] : index) {
    if (tensor == tensors.end() || tensor->name != name) {
      return invalid("{}: tensor {} is missing, {} says that it is there", file, name, kIndexFile);
    }
    ++tensor;
  }
  return {};
}

}  // namespace

// Maps the files of shard_names_ and collects their tensors.
Status Checkpoint::open_files(const fs::path& folder) {
  for (const std::string& name : shard_names_) {
    LEVIN_ASSIGN(MappedFile file, MappedFile::open(folder / name));
    LEVIN_ASSIGN(SafetensorsHeader header, parse_safetensors(file.bytes(), file.path().string()));
    for (StoredTensor& tensor : header.tensors) {
      tensor.file_idx = static_cast<int>(files_.size());
      total_bytes_ += static_cast<int64_t>(tensor.bytes.size());
      tensors_.push_back(std::move(tensor));
    }
    files_.push_back(std::move(file));
  }
  std::sort(tensors_.begin(), tensors_.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return std::tie(a.name, a.file_idx) < std::tie(b.name, b.file_idx);
  });
  const auto twice = std::adjacent_find(tensors_.begin(), tensors_.end(),
                                        [](const StoredTensor& a, const StoredTensor& b) { return a.name == b.name; });
  if (twice != tensors_.end()) {
    return invalid("tensor {} is in two files: {} and {}", twice->name, file_of(twice[0]).string(),
                   file_of(twice[1]).string());
  }
  has_tensors_ = true;
  return {};
}

Result<Checkpoint> Checkpoint::open(const fs::path& path, CheckpointMode mode) {
  Checkpoint checkpoint;
  checkpoint.path_ = path;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) return invalid("{}: no such file or folder", path.string());

  if (fs::is_directory(status) && is_absent(path / kSingleFile)) {
    if (is_absent(path / kIndexFile)) {
      return invalid("{}: has neither {} nor {}", path.string(), kSingleFile, kIndexFile);
    }
    LEVIN_TRY(checkpoint.open_sharded(path, mode));
    return checkpoint;
  }
  const fs::path file = fs::is_directory(status) ? path / kSingleFile : path;
  checkpoint.shard_names_ = {file.filename().string()};
  LEVIN_TRY(checkpoint.open_files(file.parent_path()));
  for (const StoredTensor& tensor : checkpoint.tensors_) checkpoint.names_.push_back(tensor.name);
  return checkpoint;
}

Status Checkpoint::open_sharded(const fs::path& folder, CheckpointMode mode) {
  LEVIN_ASSIGN(const Index index, read_index(folder / kIndexFile));
  std::set<std::string> shards;
  for (const auto& [name, file] : index) {
    names_.push_back(name);
    shards.insert(file);
  }
  shard_names_.assign(shards.begin(), shards.end());
  if (mode == CheckpointMode::kNames) return {};
  for (const std::string& shard : shard_names_) {
    if (is_absent(folder / shard)) {
      return invalid("{}: file {} is missing, {} names it", folder.string(), shard, kIndexFile);
    }
  }
  LEVIN_TRY(open_files(folder));
  return check_index(index, tensors_, files_);
}

const StoredTensor* Checkpoint::find(std::string_view name) const {
  const auto place = std::lower_bound(tensors_.begin(), tensors_.end(), name,
                                      [](const StoredTensor& t, std::string_view n) { return t.name < n; });
  return place != tensors_.end() && place->name == name ? &*place : nullptr;
}

}  // namespace levin::io
