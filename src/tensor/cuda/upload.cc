#include "tensor/cuda/upload.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <vector>

#include "base/memory.h"

namespace levin::cuda {
namespace {

constexpr int64_t kPartBytes = int64_t{8} << 20;
constexpr int kMostThreads = 16;                  // more of them would wait for the link
constexpr size_t kPartsAhead = 2 * kMostThreads;  // of which files are asked for

// What one thread stages and one copy sends: bytes of the device that follow each other, from copies first_copy and on.
struct Part {
  std::byte* to = nullptr;
  int64_t n_bytes = 0;
  size_t first_copy = 0;
};

std::vector<Part> parts_of(std::span<const CopyIn> copies) {
  std::vector<Part> parts;
  for (size_t i = 0; i < copies.size(); ++i) {
    const CopyIn& copy = copies[i];
    const std::byte* end = parts.empty() ? nullptr : parts.back().to + parts.back().n_bytes;
    const bool follows = end != nullptr && copy.to >= end && copy.to - end <= DeviceMemory::kCopyGap;
    if (!follows) parts.push_back({.to = copy.to, .n_bytes = 0, .first_copy = i});
    std::byte* const new_end = copy.to + copy.n_bytes;
    while (new_end - parts.back().to > kPartBytes) {
      parts.back().n_bytes = kPartBytes;
      parts.push_back({.to = parts.back().to + kPartBytes, .n_bytes = 0, .first_copy = i});
    }
    parts.back().n_bytes = new_end - parts.back().to;
  }
  return parts;
}

// Calls body(at, from, n): n bytes at `from` belong at byte `at` of the part.
template <class Body>
void for_each_piece(const Part& part, std::span<const CopyIn> copies, const Body& body) {
  const std::byte* const end = part.to + part.n_bytes;
  for (size_t i = part.first_copy; i < copies.size() && copies[i].to < end; ++i) {
    const CopyIn& copy = copies[i];
    const std::byte* const first = std::max<const std::byte*>(copy.to, part.to);
    const std::byte* const last = std::min<const std::byte*>(copy.to + copy.n_bytes, end);
    if (first < last) body(first - part.to, copy.from + (first - copy.to), last - first);
  }
}

void stage(const Part& part, std::span<const CopyIn> copies, std::byte* pinned) {
  int64_t n_staged = 0;
  for_each_piece(part, copies, [&](int64_t at, const std::byte* from, int64_t n) {
    std::memset(pinned + n_staged, 0, static_cast<size_t>(at - n_staged));
    std::memcpy(pinned + at, from, static_cast<size_t>(n));
    n_staged = at + n;
  });
  std::memset(pinned + n_staged, 0, static_cast<size_t>(part.n_bytes - n_staged));
}

// Two pinned parts: one is filled while the other one is sent.
class Stage {
 public:
  static Result<Stage> create() {
    Stage stage;
    for (Side& side : stage.sides_) {
      LEVIN_ASSIGN(side.memory, PinnedBuffer::create(kPartBytes));
      LEVIN_ASSIGN(side.sent, Event::create());
    }
    return stage;
  }

  Status send(const Stream& stream, const Part& part, std::span<const CopyIn> copies) {
    Side& side = sides_[next_];
    next_ = (next_ + 1) % sides_.size();
    LEVIN_TRY(side.sent.synchronize());  // at once where it was never recorded
    stage(part, copies, side.memory.data());
    copy_to_device(stream, part.to, side.memory.data(), part.n_bytes);
    side.sent.record(stream);
    return {};
  }
  Status finish() const {
    for (const Side& side : sides_) LEVIN_TRY(side.sent.synchronize());
    return {};
  }

 private:
  struct Side {
    PinnedBuffer memory;
    Event sent;
  };
  std::array<Side, 2> sides_;
  size_t next_ = 0;
};

class Upload {
 public:
  Upload(const Stream& stream, int device_index, std::span<const CopyIn> copies)
      : stream_(stream), device_index_(device_index), copies_(copies), parts_(parts_of(copies)) {
    for (size_t i = 0; i < std::min(parts_.size(), kPartsAhead); ++i) ask_for(parts_[i]);
  }

  size_t n_parts() const { return parts_.size(); }

  // What one thread does.
  Status send_parts() {
    if (next_ >= parts_.size()) return {};
    LEVIN_TRY(use_device(device_index_));
    LEVIN_ASSIGN(Stage stage, Stage::create());
    Status status;
    for (size_t i = next_++; i < parts_.size() && status.ok(); i = next_++) {
      if (i + kPartsAhead < parts_.size()) ask_for(parts_[i + kPartsAhead]);
      status = stage.send(stream_, parts_[i], copies_);
    }
    const Status sent = stage.finish();  // also after an error: its memory goes
    return status.ok() ? sent : status;
  }

 private:
  void ask_for(const Part& part) const {
    for_each_piece(part, copies_,
                   [](int64_t, const std::byte* from, int64_t n) { read_soon({from, static_cast<size_t>(n)}); });
  }

  const Stream& stream_;
  int device_index_;
  std::span<const CopyIn> copies_;
  std::vector<Part> parts_;
  std::atomic<size_t> next_{0};
};

}  // namespace

Status upload(const Stream& stream, int device_index, std::span<const CopyIn> copies, ThreadPool& pool) {
  Upload all(stream, device_index, copies);
  if (all.n_parts() == 0) return {};
  std::vector<Status> statuses(static_cast<size_t>(pool.n_threads()));
  pool.run([&](int thread) {
    if (thread < kMostThreads) statuses[static_cast<size_t>(thread)] = all.send_parts();
  });
  for (const Status& status : statuses) LEVIN_TRY(status);
  return {};
}

}  // namespace levin::cuda
