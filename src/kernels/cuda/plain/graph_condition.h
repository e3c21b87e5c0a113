// Whether a graph runs a part of it, decided on the device.
#pragma once

#include <cstdint>

#include "tensor/cuda/device.h"

namespace levin::cuda::plain {

// Sets the condition to 0 if all of seq [n] are negative, as those of a step of padding alone are, otherwise to 1. To be recorded.
struct HasRows {
  GraphCondition condition = 0;
  const int32_t* seq = nullptr;
  int64_t n = 0;
};
void set_if_has_rows(const HasRows& a, StreamHandle stream);

}  // namespace levin::cuda::plain
