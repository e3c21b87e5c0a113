// The elements of dummy weights: random words of a counter (splitmix64) as values of the types that checkpoints store. An
// element depends on the key of its tensor and its place there alone, so that it is the same on every device, by any thread
// and in any order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/host_device.h"
#include "base/numbers.h"

namespace levin {

enum class DummyType : uint8_t {
  kF32,       // uniform in [-width, width)
  kBF16,      // the same, rounded
  kE4M3,      // codes of up to 240, uniform
  kFp4Pairs,  // any byte: two codes
};

// A tensor of them, in elements as they are stored: of 4-bit types a byte, which is two values.
struct DummyTensor {
  DummyType type = DummyType::kF32;
  uint64_t key = 0;  // dummy_key() of its name
  float width = 1;   // of kF32 and kBF16
};

constexpr int64_t dummy_bytes(DummyType type) { return type == DummyType::kF32 ? 4 : type == DummyType::kBF16 ? 2 : 1; }

constexpr uint64_t dummy_key(std::string_view tensor_name) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : tensor_name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3u;
  return hash;
}

// splitmix64: one well mixed word per counter.
LEVIN_HOST_DEVICE inline uint64_t dummy_word(uint64_t key, int64_t i) {
  uint64_t z = key + (static_cast<uint64_t>(i) + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// In [-1, 1), a multiple of 2^-23: exact, also where the product and the difference are one instruction.
LEVIN_HOST_DEVICE inline float dummy_uniform(uint64_t key, int64_t i) {
  return static_cast<float>(static_cast<uint32_t>(dummy_word(key, i) >> 40)) * 0x1p-23f - 1.0f;
}

LEVIN_HOST_DEVICE inline float dummy_f32(const DummyTensor& t, int64_t i) { return t.width * dummy_uniform(t.key, i); }
LEVIN_HOST_DEVICE inline uint16_t dummy_bf16(const DummyTensor& t, int64_t i) { return f32_to_bf16(dummy_f32(t, i)); }
LEVIN_HOST_DEVICE inline uint8_t dummy_e4m3(const DummyTensor& t, int64_t i) {
  return f32_to_e4m3(240.0f * dummy_uniform(t.key, i));
}
LEVIN_HOST_DEVICE inline uint8_t dummy_fp4_pair(const DummyTensor& t, int64_t i) {
  return static_cast<uint8_t>(dummy_word(t.key, i) >> 56);
}

// Elements first .. first + n - 1 to `to`, which need not be aligned.
void draw_dummy_values(const DummyTensor& tensor, int64_t first, int64_t n, std::byte* to);

}  // namespace levin
