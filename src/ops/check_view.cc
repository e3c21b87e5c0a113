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

void check_scales_by_block(std::string_view op, const View& scale, const View& x) {
  check_view({op, "scale", scale}, DType::kF32, {(x.dim(1) + kQuantBlock - 1) / kQuantBlock, (x.dim(0) + 3) / 4 * 4});
}

void check_cache(std::string_view op, const PagedRows& cache, int64_t page_bytes) {
  LEVIN_CHECK(cache.pages != nullptr && cache.page_bytes >= page_bytes,
              "{}: cache pages at {} of {} bytes, the format needs {}", op, static_cast<const void*>(cache.pages),
              cache.page_bytes, page_bytes);
  LEVIN_CHECK(cache.tables.rank() == 2 && cache.tables.dtype() == DType::kI32,
              "{}: cache.tables is {}, expected i32 [B, pages]", op, cache.tables.describe());
}

}  // namespace levin::ops
