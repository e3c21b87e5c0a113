#include <algorithm>

#include "base/check.h"
#include "io/json.h"
#include "io/safetensors.h"

namespace levin::io {

void SafetensorsWriter::add(Entry entry) {
  const auto same_name = [&](const Entry& other) { return other.name == entry.name; };
  LEVIN_CHECK(std::none_of(entries_.begin(), entries_.end(), same_name), "tensor {} was added twice", entry.name);
  const std::optional<int64_t> n_bytes = tensor_bytes(entry.dtype, entry.shape);
  const bool fits = n_bytes && static_cast<size_t>(*n_bytes) == entry.bytes.size();
  LEVIN_CHECK(fits, "tensor {}: {} bytes for {} {}", entry.name, entry.bytes.size(), dtype_name(entry.dtype),
              shape_text(entry.shape));
  entries_.push_back(std::move(entry));
}

void SafetensorsWriter::set_metadata(std::string key, std::string value) {
  metadata_.emplace_back(std::move(key), std::move(value));
}

// Without the length in front of it.
std::string SafetensorsWriter::header() const {
  JsonObject header;
  if (!metadata_.empty()) {
    JsonObject metadata;
    for (const auto& [key, value] : metadata_) metadata.set(key, value);
    header.set("__metadata__", std::move(metadata));
  }
  size_t offset = 0;
  for (const Entry& entry : entries_) {
    JsonArray shape(entry.shape.begin(), entry.shape.end());
    JsonArray offsets = {offset, offset + entry.bytes.size()};
    header.set(entry.name, JsonObject{{"dtype", dtype_name(entry.dtype)},
                                      {"shape", std::move(shape)},
                                      {"data_offsets", std::move(offsets)}});
    offset += entry.bytes.size();
  }
  std::string text = dump_json(header, {.compact = true});
  constexpr size_t kAlignment = 8;  // the length in front takes 8 bytes as well
  text.append((kAlignment - text.size() % kAlignment) % kAlignment, ' ');
  return text;
}

Status SafetensorsWriter::write(const std::filesystem::path& path) const {
  const std::string text = header();
  std::string length;
  for (int i = 0; i < 8; ++i) length += static_cast<char>(text.size() >> (8 * i));
  LEVIN_ASSIGN(AtomicFile file, AtomicFile::create(path));
  LEVIN_TRY(file.write(length));
  LEVIN_TRY(file.write(text));
  for (const Entry& entry : entries_) LEVIN_TRY(file.write(entry.bytes));
  return file.commit();
}

}  // namespace levin::io
