// The keys of a config.json in three lists: honoured, harmless, and known to change the mathematics. For the configs of families.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "io/json.h"

namespace levin {

// A key that may have the values listed (as JSON) or be absent.
struct FixedKey {
  std::string_view key;
  std::array<std::string_view, 2> accepted;  // the second may be empty
};

// A list with one entry per layer, all of which must be the one value.
struct UniformKey {
  std::string_view key;
  std::string_view accepted;
};

// The lists of a family, on top of those of `base`; what stands nearer to the family wins. The keys that every family
// has in common, and all harmless ones, need not be listed (config_keys.cc).
struct ConfigKeys {
  const ConfigKeys* base = nullptr;
  std::span<const std::string_view> honoured;
  std::span<const FixedKey> fixed;
  std::span<const UniformKey> uniform;
};

// Every key of the lists, those of every family included.
std::vector<std::string> known_config_keys(const ConfigKeys& keys);

// Refuses keys that ask for other mathematics than is implemented, by name, value and what would be accepted; warns of
// keys in no list.
Status check_config_keys(const io::JsonFields& config, const ConfigKeys& keys, std::vector<std::string>* warnings);

// How a release stores its matrices, as far as its configs say: for plans and dummies. Tensors say what they are.
struct StoredAs {
  bool fp8_blocks = false;
  bool nvfp4_experts = false;
};

// The same for quantization_config: FP8 in blocks of fp8_block x fp8_block with dynamic activations, NVFP4 experts by ModelOpt or
// compressed-tensors, both, or absent.
Result<StoredAs> read_quantization(const io::JsonFields& config, int64_t fp8_block, std::vector<std::string>* warnings);

// And for the `quantization` of an hf_quant_config.json, where ModelOpt says so if config.json does not.
Result<StoredAs> read_modelopt_quantization(const io::JsonFields& config);

}  // namespace levin
