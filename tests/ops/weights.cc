#include "ops/weights.h"

#include "base/check.h"
#include "base/numbers.h"

namespace levin::testing {
namespace {

uint8_t random_e4m3(Random& random) {
  const auto code = static_cast<uint8_t>(random.below(256));
  return (code & 0x7F) == 0x7F ? uint8_t{0} : code;
}

uint8_t random_group_scale(Random& random, DType dtype) {
  return static_cast<uint8_t>(dtype == DType::kNvfp4 ? random.below(0x7F) : 119 + random.below(16));
}

TestMatrix random_fp4(Random& random, DType dtype, int64_t n, int64_t k) {
  TestMatrix m;
  m.codes.resize(static_cast<size_t>(n * k / 2));
  m.group_scales.resize(static_cast<size_t>(n * n_fp4_groups(dtype, k)));
  for (uint8_t& pair : m.codes) {
    pair = static_cast<uint8_t>(random.below(256));
    m.values.push_back(e2m1_to_f32(pair & 0xF));
    m.values.push_back(e2m1_to_f32(pair >> 4));
  }
  for (uint8_t& scale : m.group_scales) scale = random_group_scale(random, dtype);
  m.packed = pack_matrix({.data = m.codes.data(),
                          .dtype = dtype,
                          .n = n,
                          .k = k,
                          .group_scales = m.group_scales.data(),
                          .factor = dtype == DType::kNvfp4 ? 0.0037f : 1.0f});
  return m;
}

}  // namespace

float TestMatrix::group_scale(int64_t n, int64_t k) const {
  const DType dtype = packed.dtype();
  const uint8_t code = group_scales[static_cast<size_t>(n * n_fp4_groups(dtype, packed.k()) + k / fp4_group(dtype))];
  return dtype == DType::kNvfp4 ? e4m3_to_f32(code) : e8m0_to_f32(code);
}

std::vector<uint8_t> TestMatrix::device_group_scales() const {
  std::vector<uint8_t> out(static_cast<size_t>(group_scale_bytes(packed.dtype(), packed.n(), packed.k())));
  copy_group_scales(source(), reinterpret_cast<std::byte*>(out.data()));
  return out;
}

TestMatrix random_matrix(Random& random, DType dtype, int64_t n, int64_t k, bool scaled) {
  if (is_fp4(dtype)) return random_fp4(random, dtype, n, k);
  TestMatrix m;
  m.values.resize(static_cast<size_t>(n * k));
  if (dtype == DType::kF8E4M3) {
    m.codes.resize(m.values.size());
    for (uint8_t& c : m.codes) c = random_e4m3(random);
    for (size_t i = 0; i < m.codes.size(); ++i) m.values[i] = e4m3_to_f32(m.codes[i]);
    if (scaled) {
      m.scales.resize(
          static_cast<size_t>((n + kWeightBlock - 1) / kWeightBlock * ((k + kWeightBlock - 1) / kWeightBlock)));
      for (float& s : m.scales) s = static_cast<float>(0.001 + 0.01 * random.uniform());
    }
    m.packed = pack_matrix(
        {.data = m.codes.data(), .dtype = dtype, .n = n, .k = k, .scales = scaled ? m.scales.data() : nullptr});
    return m;
  }
  for (float& v : m.values) v = random.normal();
  if (dtype == DType::kF32) {
    m.codes.resize(m.values.size() * sizeof(float));
    std::memcpy(m.codes.data(), m.values.data(), m.codes.size());
    m.packed = pack_matrix({.data = m.values.data(), .dtype = dtype, .n = n, .k = k});
    return m;
  }
  std::vector<uint16_t> bf16(m.values.size());
  for (size_t i = 0; i < bf16.size(); ++i) {
    bf16[i] = f32_to_bf16(m.values[i]);
    m.values[i] = bf16_to_f32(bf16[i]);
  }
  m.codes.resize(bf16.size() * sizeof(uint16_t));
  std::memcpy(m.codes.data(), bf16.data(), m.codes.size());
  m.packed = pack_matrix({.data = bf16.data(), .dtype = dtype, .n = n, .k = k});
  return m;
}

const Matrix* on_device(TestDevice& device, const TestMatrix& w, Matrix& memory) {
  if (!device.on_cuda()) return &w.packed;
  Result<Matrix> uploaded = device.cuda().upload(w.source());
  LEVIN_CHECK(uploaded.ok(), "{}", uploaded.error().message);
  memory = std::move(uploaded).value();
  return &memory;
}

}  // namespace levin::testing
