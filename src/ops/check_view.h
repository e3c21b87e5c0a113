// The checks that begin every op: element type and shape of one argument, and whether the op can run where it is asked to.
#pragma once

#include <initializer_list>
#include <string_view>

#include "ops/context.h"
#include "tensor/view.h"

namespace levin::ops {

struct Argument {
  std::string_view op;
  std::string_view name;
  const View& view;
};

// Stops the process, naming the argument, unless it has this type and shape.
void check_view(const Argument& a, DType dtype, std::initializer_list<int64_t> shape);

// Stops the process, naming the op, if the context is of a CUDA device: for ops that have no kernel there.
void check_on_cpu(const OpContext& ctx, std::string_view op);

}  // namespace levin::ops
