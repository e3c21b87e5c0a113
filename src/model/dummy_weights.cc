#include <cmath>
#include <cstring>

#include "base/numbers.h"
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

// A tensor and the bytes behind it.
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

// Norm weights near one, biases near zero.
Drawn draw_vector(const WeightRow& row) {
  const Dice dice(row.name);
  const float centre = row.name.ends_with("bias") ? 0.0f : 1.0f;
  std::vector<float> values(static_cast<size_t>(row.shape[0]));
  for (size_t i = 0; i < values.size(); ++i) values[i] = centre + 0.05f * dice.uniform(static_cast<int64_t>(i));
  Drawn drawn;
  drawn.set(row.name, StoredDtype::kF32, row.shape, values);
  return drawn;
}

// Width sqrt(3 / K), so that products keep the size of their input.
Drawn draw_bf16(const WeightRow& row) {
  const Dice dice(row.name);
  const float width = std::sqrt(3.0f / static_cast<float>(row.shape[1]));
  std::vector<uint16_t> values(static_cast<size_t>(row.shape[0] * row.shape[1]));
  for (size_t i = 0; i < values.size(); ++i) values[i] = f32_to_bf16(width * dice.uniform(static_cast<int64_t>(i)));
  Drawn drawn;
  drawn.set(row.name, StoredDtype::kBF16, row.shape, values);
  return drawn;
}

// Codes of magnitude 1/16 to 240; the scale brings them to the width of draw_bf16().
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

Drawn draw_scales(const WeightRow& row) {
  const float width = std::sqrt(3.0f / static_cast<float>(row.shape[1]));
  const float scale = e4m3_pow2_scale(width * kE4m3Max / 240.0f);
  const std::vector<int64_t> shape = {(row.shape[0] + kWeightBlock - 1) / kWeightBlock,
                                      (row.shape[1] + kWeightBlock - 1) / kWeightBlock};
  Drawn drawn;
  drawn.set(scale_name_of(row.name), StoredDtype::kF32, shape,
            std::vector<float>(static_cast<size_t>(shape[0] * shape[1]), scale));
  return drawn;
}

}  // namespace

Result<ModelWeights> dummy_weights(const ModelConfig& config, const Numerics& numerics) {
  LEVIN_TRY(check_numerics(config, numerics));
  ModelWeights weights;
  for (const WeightRow& row : weight_table(config, &numerics, &weights)) {
    if (row.storage == Storage::kVector) {
      LEVIN_TRY(row.store(draw_vector(row).tensor, nullptr));
    } else if (row.storage == Storage::kMatrix && config.fp8_blocks) {
      const Drawn matrix = draw_fp8(row), scales = draw_scales(row);
      LEVIN_TRY(row.store(matrix.tensor, &scales.tensor));
    } else {
      LEVIN_TRY(row.store(draw_bf16(row).tensor, nullptr));
    }
  }
  return weights;
}

}  // namespace levin
