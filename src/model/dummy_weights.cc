#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/numbers.h"
#include "model/architecture.h"
#include "model/tensor_source.h"
#include "model/weight_table.h"

namespace levin {
namespace {

using io::StoredDtype;

// splitmix64: one well mixed word per counter.
uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

uint64_t hash_name(std::string_view name) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3u;
  return hash;
}

// A tensor and its bytes.
struct Drawn {
  io::StoredTensor tensor;
  std::vector<std::byte> bytes;

  template <class T>
  void set(std::string name, StoredDtype dtype, std::vector<int64_t> shape, const std::vector<T>& values) {
    bytes.resize(values.size() * sizeof(T));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    tensor = {.name = std::move(name), .dtype = dtype, .shape = std::move(shape), .bytes = bytes};
  }
};

class Dice {
 public:
  explicit Dice(std::string_view name) : state_(hash_name(name)) {}
  uint64_t word(int64_t i) const { return mix(state_ + (static_cast<uint64_t>(i) + 1) * 0x9E3779B97F4A7C15u); }
  float uniform(int64_t i) const { return static_cast<float>(word(i) >> 40) * 0x1p-23f - 1.0f; }  // [-1, 1)

 private:
  uint64_t state_;
};

// Norm weights near one, all others near zero.
Drawn draw_vector(const WeightRow& row) {
  const Dice dice(row.name);
  const float centre = row.name.ends_with("norm.weight") ? 1.0f : 0.0f;
  std::vector<float> values(static_cast<size_t>(n_elements(row)));
  for (size_t i = 0; i < values.size(); ++i) values[i] = centre + 0.05f * dice.uniform(static_cast<int64_t>(i));
  Drawn drawn;
  drawn.set(row.name, StoredDtype::kF32, row.shape, values);
  return drawn;
}

// Width sqrt(3 / K), so that products keep the size of their input.
Drawn draw_plain(const WeightRow& row) {
  const Dice dice(row.name);
  const float width = std::sqrt(3.0f / static_cast<float>(row.shape[1]));
  std::vector<float> values(static_cast<size_t>(row.shape[0] * row.shape[1]));
  for (size_t i = 0; i < values.size(); ++i) values[i] = width * dice.uniform(static_cast<int64_t>(i));
  Drawn drawn;
  if (row.plain == StoredDtype::kF32) {
    drawn.set(row.name, StoredDtype::kF32, row.shape, values);
  } else {
    std::vector<uint16_t> rounded(values.size());
    std::transform(values.begin(), values.end(), rounded.begin(), f32_to_bf16);
    drawn.set(row.name, StoredDtype::kBF16, row.shape, rounded);
  }
  return drawn;
}

// Codes of magnitude 1/16 to 240; the scale brings them to the width of draw_plain().
Drawn draw_fp8(const WeightRow& row) {
  const Dice dice(row.name);
  std::vector<uint8_t> codes(static_cast<size_t>(row.shape[0] * row.shape[1]));
  for (size_t i = 0; i < codes.size(); ++i) {
    const uint64_t word = dice.word(static_cast<int64_t>(i));
    codes[i] = f32_to_e4m3(240.0f * (static_cast<float>(word >> 40) * 0x1p-23f - 1.0f));
  }
  Drawn drawn;
  drawn.set(row.name, StoredDtype::kF8_E4M3, row.shape, codes);
  return drawn;
}

// Any codes, of MXFP4 (I8) or NVFP4 (U8).
Drawn draw_fp4(const WeightRow& row, StoredDtype dtype) {
  const Dice dice(row.name);
  std::vector<uint8_t> pairs(static_cast<size_t>(n_elements(row) / 2));
  for (size_t i = 0; i < pairs.size(); ++i) pairs[i] = static_cast<uint8_t>(dice.word(static_cast<int64_t>(i)) >> 56);
  Drawn drawn;
  drawn.set(row.name, dtype, {row.shape[0], row.shape[1] / 2}, pairs);
  return drawn;
}

// The scale that brings the codes of `dtype` to the width of draw_plain().
Drawn draw_scales(const WeightRow& row, StoredDtype dtype) {
  const float width = std::sqrt(3.0f / static_cast<float>(row.shape[1]));
  const std::vector<int64_t> shape = scale_shape(row, dtype);
  const auto n = static_cast<size_t>(shape[0] * shape[1]);
  Drawn drawn;
  if (dtype == StoredDtype::kI8) {
    const uint32_t bits = std::bit_cast<uint32_t>(e2m1_pow2_scale(width));
    drawn.set(row.scale_name, StoredDtype::kF8_E8M0, shape, std::vector<uint8_t>(n, static_cast<uint8_t>(bits >> 23)));
  } else if (dtype == StoredDtype::kU8) {  // one: the factor is the scale
    drawn.set(row.name + "_scale", StoredDtype::kF8_E4M3, shape, std::vector<uint8_t>(n, f32_to_e4m3(1)));
  } else {
    const float scale = e4m3_pow2_scale(width * kE4m3Max / 240.0f);
    drawn.set(row.scale_name, StoredDtype::kF32, shape, std::vector<float>(n, scale));
  }
  return drawn;
}

// As many ids in a row as there are columns, each once.
Drawn draw_expert_ids(const WeightRow& row, int64_t n_experts) {
  const Dice dice(row.name);
  std::vector<int64_t> ids;
  for (int64_t token = 0; token < row.shape[0]; ++token) {
    const auto first = static_cast<int64_t>(dice.word(token) % static_cast<uint64_t>(n_experts));
    for (int64_t a = 0; a < row.shape[1]; ++a) ids.push_back((first + a) % n_experts);
  }
  Drawn drawn;
  drawn.set(row.name, StoredDtype::kI64, row.shape, ids);
  return drawn;
}

Drawn draw(const WeightRow& row, const ModelConfig& config, StoredDtype dtype) {
  switch (dtype) {
    case StoredDtype::kI8:
    case StoredDtype::kU8:
      return draw_fp4(row, dtype);
    case StoredDtype::kF8_E4M3:
      return draw_fp8(row);
    case StoredDtype::kI64:
      return draw_expert_ids(row, config.n_experts);
    default:
      return row.storage == Storage::kVector ? draw_vector(row) : draw_plain(row);
  }
}

Status read_dummy(const WeightRow& row, const ModelConfig& config, const TensorUser& use) {
  if (row.storage == Storage::kMappedTable) return {};  // stays in a file, of which there is none
  const StoredDtype dtype = released_dtype(row, config);
  const Drawn drawn = draw(row, config, dtype);
  if (!is_quantised(dtype)) return use(drawn.tensor, nullptr);
  const Drawn scales = draw_scales(row, dtype);
  StoredScales stored{.of_blocks = &scales.tensor, .block = row.block};
  if (dtype == StoredDtype::kU8) stored.factor = e2m1_pow2_scale(std::sqrt(3.0f / static_cast<float>(row.shape[1])));
  return use(drawn.tensor, &stored);
}

}  // namespace

TensorSource dummy_tensors(const ModelConfig& config) {
  return {
      .dtype = [&config](const WeightRow& row) { return released_dtype(row, config); },
      .read = [&config](const WeightRow& row, const TensorUser& use) { return read_dummy(row, config, use); },
      .has_mtp = config.n_mtp_layers > 0,
  };
}

Result<ModelWeights> dummy_weights(const ModelConfig& config, const Numerics& numerics, MatrixForm form) {
  LEVIN_TRY(check_numerics(config, numerics));
  ModelWeights weights;
  for (const WeightRow& row : weight_table(config, &numerics, &weights)) {
    LEVIN_TRY(read_dummy(row, config, [&](const io::StoredTensor& tensor, const StoredScales* scales) {
      return row.store(tensor, scales, form);
    }));
  }
  if (config.family->attach_files != nullptr) LEVIN_TRY(config.family->attach_files(config, nullptr, weights));
  return weights;
}

}  // namespace levin
