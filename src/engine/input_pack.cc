#include "engine/input_pack.h"

#include <cstring>

#include "base/check.h"
#include "tensor/buffer.h"

namespace levin {
namespace {

int64_t n_bytes_of(const View& view) { return view.n_elements() * dtype_bytes(view.dtype()); }

View on_device(const View& view, std::byte* data) {
  LEVIN_CHECK(view.rank() <= 2, "a step's input is {}", view.describe());
  if (view.rank() == 1) return View(data, view.dtype(), {view.dim(0)}, Device::kCuda);
  return View(data, view.dtype(), {view.dim(0), view.dim(1)}, Device::kCuda);
}

}  // namespace

void InputPack::add(View& view) {
  if (view.empty()) return;
  LEVIN_CHECK(view.contiguous(), "a step's input is {} with gaps between its rows", view.describe());
  const int64_t offset = std::ssize(bytes_), n_bytes = n_bytes_of(view);
  bytes_.resize(static_cast<size_t>((offset + n_bytes + kAlignment - 1) / kAlignment * kAlignment));
  std::memcpy(bytes_.data() + offset, view.bytes(), static_cast<size_t>(n_bytes));
  parts_.push_back({&view, offset});
}

void InputPack::send(CudaBackend& cuda) {
  std::byte* here = cuda.arena().allocate_bytes(std::ssize(bytes_));
  cuda.copy_bytes_in(here, bytes_.data(), std::ssize(bytes_));
  for (const Part& part : parts_) *part.view = on_device(*part.view, here + part.offset);
}

}  // namespace levin
