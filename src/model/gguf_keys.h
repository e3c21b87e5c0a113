// The keys of a model's GGUF file. For gguf_export.cc and what families add.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "io/gguf.h"
#include "model/config.h"

namespace levin {

// Writes keys with the name of the architecture before each.
class GgufKeys {
 public:
  GgufKeys(const std::string& architecture, io::GgufWriter* file) : prefix_(architecture + "."), file_(file) {}

  void size(const char* key, int64_t value) { file_->set(prefix_ + key, static_cast<uint32_t>(value)); }
  void real(const char* key, double value) { file_->set(prefix_ + key, static_cast<float>(value)); }
  void set(const char* key, io::GgufValue value) { file_->set(prefix_ + key, std::move(value)); }

 private:
  std::string prefix_;
  io::GgufWriter* file_;
};

// How experts are scored, as GGUF numbers it.
enum class GgufGating : uint32_t { kSigmoid = 2, kSqrtSoftplus = 4 };

void set_gguf_experts(const ModelConfig& config, GgufGating gating, GgufKeys& keys);
void set_gguf_rope(const ModelConfig& config, const std::optional<Yarn>& yarn, GgufKeys& keys);

// Sizes, rotations and schedules of `config`, with `architecture` before each key; `with_mtp`: the MTP layer is in the
// file.
void set_gguf_keys(const ModelConfig& config, const std::string& architecture, bool with_mtp, io::GgufWriter* file);

}  // namespace levin
