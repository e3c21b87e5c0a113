// Records of blocks on their way from a device to the host, in parallel with the steps that it computes.
//
// Begin     at once, of rows that steps wrote whose results the host has waited for. Of others after follow()
// End       when the record is asked for, or is found to be there. Until hold() the rows must stay as they are
// Memory    pinned, as much as there are copies under way at a time; a record is put together from it on the host
// Threads   one at a time
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "tensor/buffer.h"
#include "tensor/device_memory.h"

namespace levin {

// A record that is being copied. Not to outlive the caches.
class BlockCopy {
 public:
  virtual ~BlockCopy() = default;
  virtual bool is_done() = 0;   // finish() would not wait
  virtual Status finish() = 0;  // waits, and fills the record; once. A fault of the device is an error
};

class BlockCopies {
 public:
  struct Piece {
    const std::byte* from = nullptr;
    int64_t n_bytes = 0;
  };

  BlockCopies(DeviceMemory& memory, std::unique_ptr<CopyStream> stream, int64_t block_bytes)
      : memory_(&memory), block_bytes_(block_bytes), stream_(std::move(stream)) {}

  // Of block_bytes in all, to `out`, which must stay where it is until then. Null: there is no pinned memory for it.
  std::unique_ptr<BlockCopy> start(std::span<const Piece> pieces, std::span<std::byte> out);

  void follow() { stream_->follow(); }  // later copies begin after all steps so far
  void hold();                          // later steps begin after all copies so far

 private:
  struct Slot {
    Buffer pinned;
    std::unique_ptr<WorkMark> copied;
  };
  class Copy;

  std::unique_ptr<Slot> free_slot();  // null: there is no memory for one

  DeviceMemory* memory_;
  int64_t block_bytes_;
  std::vector<std::unique_ptr<Slot>> free_;
  std::unique_ptr<CopyStream> stream_;  // ends before the memory that it writes to
  bool has_copies_ = false;             // since hold()
};

}  // namespace levin
