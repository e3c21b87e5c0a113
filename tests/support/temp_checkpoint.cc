#include "support/temp_checkpoint.h"

#include <fmt/core.h>

#include <cstdio>
#include <system_error>

#include "base/check.h"
#include "io/mapped_file.h"
#include "support/must.h"

namespace levin::test {
namespace {

namespace fs = std::filesystem;

io::JsonObject read_object(const fs::path& path) {
  const io::JsonValue document = must(io::parse_json(must(io::read_file(path)), path.string()));
  LEVIN_CHECK(document.as_object() != nullptr, "{} holds no object", path.string());
  return *document.as_object();
}

bool is_weights(const fs::path& name) {
  return name.extension() == ".safetensors" || name == "model.safetensors.index.json";
}

}  // namespace

TempCheckpoint TempCheckpoint::from_fixture(std::string_view name) {
  TempCheckpoint out;
  out.config_ = read_object(fixture_folder(name) / "config.json");
  for (DrawnTensor& tensor : must(draw_tensors(fixture_folder(name) / "weights.json"))) {
    out.add_tensor(std::move(tensor));
  }
  return out;
}

TempCheckpoint TempCheckpoint::from_folder(const fs::path& folder) {
  TempCheckpoint out;
  out.config_ = read_object(folder / "config.json");
  const io::Checkpoint checkpoint = must(io::Checkpoint::open(folder));
  for (const io::StoredTensor& t : checkpoint.tensors()) {
    out.add_tensor({t.name, t.dtype, t.shape, {t.bytes.begin(), t.bytes.end()}});
  }
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const fs::path name = entry.path().filename();
    if (!entry.is_regular_file() || is_weights(name) || name == "config.json") continue;
    out.other_files_[name.string()] = must(io::read_file(entry.path()));
  }
  return out;
}

std::vector<std::string> TempCheckpoint::tensor_names() const {
  std::vector<std::string> names;
  names.reserve(tensors_.size());
  for (const auto& [name, tensor] : tensors_) names.push_back(name);
  return names;
}

DrawnTensor& TempCheckpoint::tensor(std::string_view name) {
  const auto found = tensors_.find(name);
  LEVIN_CHECK(found != tensors_.end(), "the checkpoint has no tensor {}", name);
  return found->second;
}

void TempCheckpoint::remove_tensor(std::string_view name) { tensors_.erase(tensor(name).name); }

void TempCheckpoint::rename_tensor(std::string_view from, std::string_view to) {
  DrawnTensor moved = std::move(tensor(from));
  tensors_.erase(tensors_.find(from));
  moved.name = to;
  add_tensor(std::move(moved));
}

void TempCheckpoint::set_dtype(std::string_view name, io::StoredDtype dtype) {
  DrawnTensor& t = tensor(name);
  t.dtype = dtype;
  t.bytes.resize(static_cast<size_t>(io::tensor_bytes(t.dtype, t.shape).value()));
}

void TempCheckpoint::set_shape(std::string_view name, std::vector<int64_t> shape) {
  DrawnTensor& t = tensor(name);
  t.shape = std::move(shape);
  t.bytes.resize(static_cast<size_t>(io::tensor_bytes(t.dtype, t.shape).value()));
}

void TempCheckpoint::add_tensor(DrawnTensor added) {
  LEVIN_CHECK(!tensors_.contains(added.name), "the checkpoint has a tensor {} already", added.name);
  added.bytes.resize(static_cast<size_t>(io::tensor_bytes(added.dtype, added.shape).value()));
  std::string name = added.name;
  tensors_.emplace(std::move(name), std::move(added));
}

void TempCheckpoint::set_config(std::string_view key, io::JsonValue value) {
  io::JsonObject* object = &config_;
  for (size_t dot = key.find('.'); dot != std::string_view::npos; dot = key.find('.')) {
    const std::string_view step = key.substr(0, dot);
    if (!object->contains(step) || object->find(step)->as_object() == nullptr) object->set(step, io::JsonObject());
    object = object->find(step)->as_object();
    key.remove_prefix(dot + 1);
  }
  object->set(key, std::move(value));
}

void TempCheckpoint::erase_config(std::string_view key) {
  io::JsonObject* object = &config_;
  std::string_view rest = key;
  for (size_t dot = rest.find('.'); object != nullptr && dot != std::string_view::npos; dot = rest.find('.')) {
    io::JsonValue* step = object->find(rest.substr(0, dot));
    object = step != nullptr ? step->as_object() : nullptr;
    rest.remove_prefix(dot + 1);
  }
  const bool erased = object != nullptr && object->erase(rest);
  LEVIN_CHECK(erased, "config.json has no key {}", key);
}

std::string TempCheckpoint::shard_name(int shard_idx, int n_shards) {
  if (n_shards == 1) return "model.safetensors";
  return fmt::format("model-{:05}-of-{:05}.safetensors", shard_idx + 1, n_shards);
}

fs::path TempCheckpoint::write(int n_shards) {
  for (const fs::directory_entry& entry : fs::directory_iterator(path())) fs::remove_all(entry.path());
  std::vector<io::SafetensorsWriter> shards(static_cast<size_t>(n_shards));
  io::JsonObject weight_map;
  int shard_idx = 0;
  for (const auto& [name, t] : tensors_) {
    shards[static_cast<size_t>(shard_idx)].add({t.name, t.dtype, t.shape, t.bytes});
    weight_map.set(name, shard_name(shard_idx, n_shards));
    shard_idx = (shard_idx + 1) % n_shards;
  }
  for (int i = 0; i < n_shards; ++i) must(shards[static_cast<size_t>(i)].write(dir_ / shard_name(i, n_shards)));
  if (n_shards > 1) {
    write_text("model.safetensors.index.json", io::dump_json(io::JsonObject{{"weight_map", std::move(weight_map)}}));
  }
  write_text("config.json", io::dump_json(config_));
  for (const auto& [name, text] : other_files_) write_text(name, text);
  return path();
}

void TempCheckpoint::truncate_file(std::string_view name, size_t n_bytes) {
  LEVIN_CHECK(fs::file_size(dir_ / name) >= n_bytes, "{} is shorter than {} bytes", name, n_bytes);
  fs::resize_file(dir_ / name, n_bytes);
}

void TempCheckpoint::overwrite(std::string_view name, size_t offset, std::span<const std::byte> bytes) {
  std::string content = must(io::read_file(dir_ / name));
  LEVIN_CHECK(offset + bytes.size() <= content.size(), "{} is shorter than {} bytes", name, offset + bytes.size());
  content.replace(offset, bytes.size(), reinterpret_cast<const char*>(bytes.data()), bytes.size());
  write_text(name, content);
}

void TempCheckpoint::write_text(std::string_view name, std::string_view text) {
  must(io::write_file_atomically(dir_ / name, text));
}

void TempCheckpoint::remove_file(std::string_view name) {
  LEVIN_CHECK(fs::remove(dir_ / name), "the checkpoint has no file {}", name);
}

}  // namespace levin::test
