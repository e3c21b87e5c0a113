// A row of a tensor on the host as a span.
#pragma once

#include <span>

#include "tensor/view.h"

namespace levin {

inline std::span<const float> row_span(View rows, int64_t r) {
  return {rows.row<float>(r), static_cast<size_t>(rows.dim(1))};
}

}  // namespace levin
