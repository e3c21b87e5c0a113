// Scalar codecs of the small number formats, exact and the same on every device:
//
//   bf16   8 exponent bits, 7 of mantissa; rounding to nearest, ties to even
//   f16    IEEE binary16
//   e4m3   OCP float8 e4m3fn: largest 448, no infinity, NaN = 0x7F and 0xFF; rounding to nearest even, saturating
//   e8m0   a power of two, 2^(byte - 127); 0xFF = NaN
//   e2m1   OCP float4: 0 .5 1 1.5 2 3 4 6 with a sign bit; rounding to nearest, ties to the even code, saturating
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "base/host_device.h"

namespace levin {

constexpr float kE4m3Max = 448.0f;
constexpr float kE4m3MinAmax = 1e-4f;  // floor of a block's absolute maximum before its scale is formed (model code)
constexpr float kE2m1Max = 6.0f;
constexpr float kE2m1MinAmax = 6 * 0x1p-126f;  // likewise

LEVIN_HOST_DEVICE inline float bf16_to_f32(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

LEVIN_HOST_DEVICE inline uint16_t f32_to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x40);  // quiet NaN
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1)) >> 16);
}

LEVIN_HOST_DEVICE inline float round_to_bf16(float x) { return bf16_to_f32(f32_to_bf16(x)); }

LEVIN_HOST_DEVICE inline float f16_to_f32(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1F, mantissa = bits & 0x3FF;
  if (exponent == 0x1F) return std::bit_cast<float>(sign | 0x7F800000u | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return sign ? -magnitude : magnitude;
}

// Rounding to nearest, ties to even; from 65520 on it is infinite.
LEVIN_HOST_DEVICE inline uint16_t f32_to_f16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00u);   // NaN
  if (magnitude >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);  // infinite
  if (magnitude < 0x38800000u) {                                               // below 2^-14: steps of 2^-24
    const float steps = std::bit_cast<float>(magnitude) * 0x1p24f;
    const float rounded = (steps + 0x1p23f) - 0x1p23f;  // to nearest even
    return static_cast<uint16_t>(sign | static_cast<uint16_t>(rounded));
  }
  const uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1);  // 10 mantissa bits stay
  return static_cast<uint16_t>(sign | ((rounded >> 13) - (112u << 10)));
}

LEVIN_HOST_DEVICE inline float e4m3_to_f32(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80) << 24;
  const uint32_t exponent = (code >> 3) & 0xF, mantissa = code & 7;
  if (exponent == 0xF && mantissa == 7) return std::bit_cast<float>(sign | 0x7FC00000u);
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 120) << 23) | (mantissa << 20));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-9f;
  return sign ? -magnitude : magnitude;
}

LEVIN_HOST_DEVICE inline uint8_t f32_to_e4m3(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint8_t sign = static_cast<uint8_t>((bits >> 24) & 0x80);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<uint8_t>(sign | 0x7F);  // NaN
  if (magnitude >= std::bit_cast<uint32_t>(kE4m3Max)) return static_cast<uint8_t>(sign | 0x7E);
  if (magnitude < 0x3C800000u) {  // below 2^-6: steps of 2^-9
    const float steps = std::bit_cast<float>(magnitude) * 0x1p9f;
    const float rounded = (steps + 0x1p23f) - 0x1p23f;  // to nearest even
    return static_cast<uint8_t>(sign | static_cast<uint8_t>(rounded));
  }
  const uint32_t rounded = magnitude + 0x7FFFFu + ((magnitude >> 20) & 1);  // 3 mantissa bits stay
  const uint32_t code = (rounded >> 20) - (120u << 3);
  return static_cast<uint8_t>(sign | (code > 0x7E ? 0x7E : code));
}

LEVIN_HOST_DEVICE inline float e8m0_to_f32(uint8_t code) {
  if (code == 0xFF) return std::bit_cast<float>(0x7FC00000u);
  if (code == 0) return 0x1p-127f;
  return std::bit_cast<float>(static_cast<uint32_t>(code) << 23);
}

LEVIN_HOST_DEVICE inline float e2m1_to_f32(uint8_t nibble) {
  constexpr float kValues[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  const float magnitude = kValues[nibble & 7];
  return (nibble & 8) ? -magnitude : magnitude;
}

// The format has no NaN: it becomes zero.
LEVIN_HOST_DEVICE inline uint8_t f32_to_e2m1(float x) {
  const float m = std::fabs(x);
  const int code = (m > 0.25f) + (m >= 0.75f) + (m > 1.25f) + (m >= 1.75f) + (m > 2.5f) + (m >= 3.5f) + (m > 5.0f);
  return static_cast<uint8_t>(code | (std::signbit(x) ? 8 : 0));
}

// 2^ceil(log2(x)) of a normal x, from its bits (model code: the exponent, plus one if any mantissa bit is set).
LEVIN_HOST_DEVICE inline float pow2_at_least(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t exponent = (bits >> 23) + ((bits & 0x7FFFFFu) != 0 ? 1 : 0);
  return std::bit_cast<float>(exponent << 23);
}

// The power-of-two scale of an e4m3 block, 2^ceil(log2(max(amax, 1e-4) / 448)), of the rounded quotient.
LEVIN_HOST_DEVICE inline float e4m3_pow2_scale(float amax) {
  return pow2_at_least((amax > kE4m3MinAmax ? amax : kE4m3MinAmax) * (1.0f / kE4m3Max));
}

// The power-of-two scale of an e2m1 block, 2^ceil(log2(max(amax, 6 * 2^-126) / 6)), of the rounded quotient.
LEVIN_HOST_DEVICE inline float e2m1_pow2_scale(float amax) {
  return pow2_at_least((amax > kE2m1MinAmax ? amax : kE2m1MinAmax) * (1.0f / kE2m1Max));
}

}  // namespace levin
