// The check that begins every op: element type and shape of an argument.
#pragma once

#include <initializer_list>
#include <string_view>

#include "tensor/view.h"

namespace levin::ops {

struct Argument {
  std::string_view op;
  std::string_view name;
  const View& view;
};

// Stops the process, naming the argument, unless it has this type and shape.
void check_view(const Argument& a, DType dtype, std::initializer_list<int64_t> shape);

}  // namespace levin::ops
