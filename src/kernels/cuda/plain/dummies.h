// Dummy weights made where they lie: the bits that draw_dummy_values() makes (base/dummy_values.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dummy_values.h"
#include "kernels/cuda/plain/paged_cache.h"

namespace levin::cuda::plain {

struct MakeDummies {
  DummyTensor tensor;
  int64_t n = 0;            // elements, from the first on
  std::byte* to = nullptr;  // aligned as its type or not
};
void make_dummies(const MakeDummies& a, StreamHandle stream);

}  // namespace levin::cuda::plain
