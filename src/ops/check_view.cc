#include "ops/check_view.h"

#include <fmt/ranges.h>

#include <vector>

#include "base/check.h"

namespace levin::ops {

void check_view(const Argument& a, DType dtype, std::initializer_list<int64_t> shape) {
  bool same = a.view.dtype() == dtype && a.view.rank() == static_cast<int>(shape.size());
  int i = 0;
  for (const int64_t n : shape) same = same && a.view.dim(i++) == n;
  LEVIN_CHECK(same, "{}: {} is {}, expected {} [{}]", a.op, a.name, a.view.describe(), dtype_name(dtype),
              fmt::join(std::vector<int64_t>(shape), ", "));
}

}  // namespace levin::ops
