// The checks that begin every op: element type and shape of an argument.
#pragma once

#include <initializer_list>
#include <string_view>

#include "tensor/formats.h"
#include "tensor/view.h"

namespace levin::ops {

struct Argument {
  std::string_view op;
  std::string_view name;
  const View& view;
};

// Stops the process, naming the argument, unless it has this type and shape.
void check_view(const Argument& a, DType dtype, std::initializer_list<int64_t> shape);

// Stops the process unless scales of e4m3 rows x [T, K] are [ceil(K / 128), T rounded up to a multiple of 4].
void check_scales_by_block(std::string_view op, const View& scale, const View& x);

// Stops the process unless the cache has pages of at least this size and a table of them.
void check_cache(std::string_view op, const PagedRows& cache, int64_t page_bytes);

}  // namespace levin::ops
