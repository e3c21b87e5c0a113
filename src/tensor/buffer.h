// Memory that owns itself: Buffer for long-lived tensors, Arena for what lives as long as one step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/dummy_values.h"
#include "tensor/view.h"

namespace levin {

constexpr int64_t kAlignment = 64;  // bytes; a cache line and an AVX-512 register

// How a Buffer's memory goes back: to its owner, unmapped, or to the heap.
struct FreeBuffer {
  int64_t mapped_bytes = 0;                 // 0: from the heap
  void (*give_back)(std::byte*) = nullptr;  // null: neither
  Device device = Device::kCpu;
  void operator()(std::byte* data) const;
};

// Host memory, zeroed, aligned to kAlignment. Large ones are mapped: their pages cost nothing until they are touched,
// and the system is asked for huge ones. Or memory of a CUDA device, or of the host in a form that its copy engines want,
// handed over by who allocated it. Movable, not copyable; a moved-from Buffer is empty.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(int64_t n_bytes);
  Buffer(Buffer&& other) noexcept
      : data_(std::move(other.data_)),
        n_bytes_(std::exchange(other.n_bytes_, 0)),
        dummies_(std::exchange(other.dummies_, std::nullopt)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    data_ = std::move(other.data_);
    n_bytes_ = std::exchange(other.n_bytes_, 0);
    dummies_ = std::exchange(other.dummies_, std::nullopt);
    return *this;
  }
  static Buffer for_tensor(DType dtype, std::initializer_list<int64_t> shape);
  static Buffer of_device(std::byte* data, int64_t n_bytes, void (*free)(std::byte*));
  static Buffer of_host(std::byte* data, int64_t n_bytes, void (*free)(std::byte*));
  // Memory that somebody else owns, and for longer.
  static Buffer borrowed(const std::byte* data, int64_t n_bytes, Device device = Device::kCpu);
  // Dummy values that are made where the buffer is moved to, which must be a device: until then data() is null.
  static Buffer unmade(const DummyTensor& dummies, int64_t n_bytes);

  Device device() const { return data_.get_deleter().device; }
  std::byte* data() const { return data_.get(); }
  int64_t n_bytes() const { return n_bytes_; }
  bool empty() const { return n_bytes_ == 0; }
  const std::optional<DummyTensor>& dummies() const { return dummies_; }  // of a buffer that is unmade

 private:
  std::unique_ptr<std::byte[], FreeBuffer> data_;
  int64_t n_bytes_ = 0;
  std::optional<DummyTensor> dummies_;
};

// Scratch memory handed out in order and taken back all at once. Blocks are kept across resets, so a step that has run
// once allocates nothing the next time. Contents are not cleared. Not thread-safe: one thread allocates.
//
// Blocks are of host memory, or whatever the arena's source gives: memory of a device, whose addresses then never change.
class Arena {
 public:
  struct Mark {
    size_t block = 0;
    int64_t offset = 0;
  };
  using BlockSource = std::function<Buffer(int64_t n_bytes)>;

  Arena() = default;
  // Blocks from `source`, parts of them `alignment` bytes apart. Which fails as operator new does.
  Arena(BlockSource source, int64_t alignment) : source_(std::move(source)), alignment_(alignment) {}

  // One block that has room for so much, so that no other one is asked for until more is wanted at a time.
  void reserve(int64_t n_bytes);

  View allocate(DType dtype, std::initializer_list<int64_t> shape);
  std::byte* allocate_bytes(int64_t n_bytes);  // aligned to kAlignment or more; never null, also for 0 bytes

  Mark mark() const { return {current_, offset_}; }
  void release(Mark mark);  // frees everything allocated after the mark
  void reset() { release(Mark{}); }
  int64_t peak_bytes() const { return peak_bytes_; }
  size_t n_blocks() const { return blocks_.size(); }

 private:
  BlockSource source_ = [](int64_t n_bytes) { return Buffer(n_bytes); };
  int64_t alignment_ = kAlignment;
  bool is_reserved_ = false;
  std::vector<Buffer> blocks_;
  size_t current_ = 0;
  int64_t offset_ = 0;
  int64_t peak_bytes_ = 0;
};

// Releases an arena to where it stood, at the end of a scope.
class ArenaScope {
 public:
  explicit ArenaScope(Arena& arena) : arena_(arena), mark_(arena.mark()) {}
  ~ArenaScope() { arena_.release(mark_); }
  ArenaScope(const ArenaScope&) = delete;
  ArenaScope& operator=(const ArenaScope&) = delete;

 private:
  Arena& arena_;
  Arena::Mark mark_;
};

}  // namespace levin
