#include "base/dummy_values.h"

#include <cstring>

namespace levin {
namespace {

// A loop per type, without a branch on it inside, so that the compiler makes vectors of it.
template <class T, class Element>
void draw(const DummyTensor& tensor, int64_t first, int64_t n, std::byte* to, const Element& element) {
  for (int64_t i = 0; i < n; ++i) {
    const T value = element(tensor, first + i);
    std::memcpy(to + i * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
  }
}

}  // namespace

void draw_dummy_values(const DummyTensor& tensor, int64_t first, int64_t n, std::byte* to) {
  switch (tensor.type) {
    case DummyType::kF32:
      return draw<float>(tensor, first, n, to, dummy_f32);
    case DummyType::kBF16:
      return draw<uint16_t>(tensor, first, n, to, dummy_bf16);
    case DummyType::kE4M3:
      return draw<uint8_t>(tensor, first, n, to, dummy_e4m3);
    case DummyType::kFp4Pairs:
      return draw<uint8_t>(tensor, first, n, to, dummy_fp4_pair);
  }
}

}  // namespace levin
