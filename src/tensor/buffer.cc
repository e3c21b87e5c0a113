#include "tensor/buffer.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "base/check.h"

namespace levin {
namespace {

constexpr int64_t kHugePageBytes = int64_t{2} << 20;
constexpr int64_t kFirstBlockBytes = int64_t{4} << 20;

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

int64_t tensor_bytes(DType dtype, std::initializer_list<int64_t> shape) {
  int64_t n = dtype_bytes(dtype);
  for (const int64_t d : shape) n *= d;
  return n;
}

// As operator new has it: what the program does about lack of memory comes first.
[[noreturn]] void refuse_memory() {
  if (const std::new_handler handler = std::get_new_handler()) handler();
  throw std::bad_alloc();
}

}  // namespace

Buffer::Buffer(int64_t n_bytes) : n_bytes_(n_bytes) {
  LEVIN_CHECK(n_bytes >= 0, "buffer of {} bytes", n_bytes);
  if (n_bytes == 0) return;
  void* data = nullptr;
  int64_t mapped_bytes = 0;
  if (n_bytes >= kHugePageBytes) {
    mapped_bytes = round_up(n_bytes, kHugePageBytes);
    data = mmap(nullptr, static_cast<size_t>(mapped_bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) refuse_memory();
    madvise(data, static_cast<size_t>(mapped_bytes), MADV_HUGEPAGE);
  } else {
    const size_t rounded = static_cast<size_t>(round_up(n_bytes, kAlignment));
    data = std::aligned_alloc(kAlignment, rounded);
    if (data == nullptr) refuse_memory();
    std::memset(data, 0, rounded);
  }
  data_ = {static_cast<std::byte*>(data), FreeBuffer{mapped_bytes}};
}

Buffer Buffer::for_tensor(DType dtype, std::initializer_list<int64_t> shape) {
  return Buffer(tensor_bytes(dtype, shape));
}

Buffer Buffer::of_device(std::byte* data, int64_t n_bytes, void (*free)(std::byte*)) {
  Buffer buffer;
  buffer.data_ = {data, FreeBuffer{.give_back = free, .device = Device::kCuda}};
  buffer.n_bytes_ = n_bytes;
  return buffer;
}

Buffer Buffer::of_host(std::byte* data, int64_t n_bytes, void (*free)(std::byte*)) {
  Buffer buffer;
  buffer.data_ = {data, FreeBuffer{.give_back = free}};
  buffer.n_bytes_ = n_bytes;
  return buffer;
}

Buffer Buffer::borrowed(const std::byte* data, int64_t n_bytes, Device device) {
  const auto leave = [](std::byte*) {};
  auto* writable = const_cast<std::byte*>(data);
  return device == Device::kCuda ? of_device(writable, n_bytes, leave) : of_host(writable, n_bytes, leave);
}

Buffer Buffer::unmade(const DummyTensor& dummies, int64_t n_bytes) {
  Buffer buffer;
  buffer.n_bytes_ = n_bytes;
  buffer.dummies_ = dummies;
  return buffer;
}

void FreeBuffer::operator()(std::byte* data) const {
  if (give_back != nullptr) {
    give_back(data);
  } else if (mapped_bytes > 0) {
    munmap(data, static_cast<size_t>(mapped_bytes));
  } else {
    std::free(data);
  }
}

void Arena::reserve(int64_t n_bytes) {
  LEVIN_CHECK(blocks_.empty(), "an arena in use is asked to reserve {} bytes", n_bytes);
  blocks_.push_back(source_(round_up(std::max<int64_t>(n_bytes, 1), alignment_)));
  is_reserved_ = true;
}

View Arena::allocate(DType dtype, std::initializer_list<int64_t> shape) {
  std::byte* data = allocate_bytes(tensor_bytes(dtype, shape));
  return View(data, dtype, shape, blocks_[current_].device());
}

std::byte* Arena::allocate_bytes(int64_t n_bytes) {
  n_bytes = round_up(std::max<int64_t>(n_bytes, 1), alignment_);
  while (current_ < blocks_.size() && offset_ + n_bytes > blocks_[current_].n_bytes()) {
    ++current_;
    offset_ = 0;
  }
  if (current_ == blocks_.size()) {
    const int64_t previous = blocks_.empty() ? kFirstBlockBytes / 2 : blocks_.back().n_bytes();
    // what was reserved should have been enough: then by as little as does not make many blocks
    blocks_.push_back(source_(std::max(is_reserved_ ? previous / 4 : 2 * previous, n_bytes)));
  }
  std::byte* data = blocks_[current_].data() + offset_;
  offset_ += n_bytes;
  int64_t used = offset_;
  for (size_t i = 0; i < current_; ++i) used += blocks_[i].n_bytes();
  peak_bytes_ = std::max(peak_bytes_, used);
  return data;
}

void Arena::release(Mark mark) {
  current_ = mark.block;
  offset_ = mark.offset;
}

}  // namespace levin
