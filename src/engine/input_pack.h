// Tensors of the host that go to a device in one copy. Shapes alone decide where they stand there.
#pragma once

#include <cstddef>
#include <vector>

#include "ops/cuda_backend.h"
#include "tensor/view.h"

namespace levin {

class InputPack {
 public:
  // `view` is to be on the device: send() moves it. Contiguous; an empty one stays as it is.
  void add(View& view);
  // Copies all of it to memory from the backend's arena, and has the views stand there.
  void send(CudaBackend& cuda);

 private:
  struct Part {
    View* view = nullptr;
    int64_t offset = 0;
  };
  std::vector<Part> parts_;
  std::vector<std::byte> bytes_;
};

}  // namespace levin
