#include "ops/weights.h"

#include "base/check.h"
#include "base/numbers.h"

namespace levin::testing {
namespace {

uint8_t random_e4m3(Random& random) {
  const auto code = static_cast<uint8_t>(random.below(256));
  return (code & 0x7F) == 0x7F ? uint8_t{0} : code;
}

TestMatrix random_mxfp4(Random& random, int64_t n, int64_t k) {
  TestMatrix m;
  m.codes.resize(static_cast<size_t>(n * k / 2));
  m.group_scales.resize(static_cast<size_t>(n * ((k + kMxGroup - 1) / kMxGroup)));
  for (uint8_t& pair : m.codes) {
    pair = static_cast<uint8_t>(random.below(256));
    m.values.push_back(e2m1_to_f32(pair & 0xF));
    m.values.push_back(e2m1_to_f32(pair >> 4));
  }
  for (uint8_t& scale : m.group_scales) scale = static_cast<uint8_t>(119 + random.below(16));
  m.packed = pack_matrix(
      {.data = m.codes.data(), .dtype = DType::kMxfp4, .n = n, .k = k, .group_scales = m.group_scales.data()});
  return m;
}

}  // namespace

TestMatrix random_matrix(Random& random, DType dtype, int64_t n, int64_t k, bool scaled) {
  if (dtype == DType::kMxfp4) return random_mxfp4(random, n, k);
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
    m.packed = pack_matrix({.data = m.values.data(), .dtype = dtype, .n = n, .k = k});
    return m;
  }
  std::vector<uint16_t> bf16(m.values.size());
  for (size_t i = 0; i < bf16.size(); ++i) {
    bf16[i] = f32_to_bf16(m.values[i]);
    m.values[i] = bf16_to_f32(bf16[i]);
  }
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
