#include "kv/block_copies.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/check.h"

namespace levin {

class BlockCopies::Copy final : public BlockCopy {
 public:
  Copy(BlockCopies& copies, std::unique_ptr<Slot> slot, std::span<std::byte> out)
      : copies_(copies), slot_(std::move(slot)), out_(out) {}
  ~Copy() override { copies_.free_.push_back(std::move(slot_)); }

  bool is_done() override { return slot_->copied->is_past(); }
  Status finish() override {
    LEVIN_TRY(slot_->copied->wait());
    std::copy_n(slot_->pinned.data(), out_.size(), out_.begin());
    return {};
  }

 private:
  BlockCopies& copies_;
  std::unique_ptr<Slot> slot_;
  std::span<std::byte> out_;
};

std::unique_ptr<BlockCopy> BlockCopies::start(std::span<const Piece> pieces, std::span<std::byte> out) {
  std::unique_ptr<Slot> slot = free_slot();
  if (slot == nullptr) return nullptr;
  std::byte* to = slot->pinned.data();
  for (const Piece& piece : pieces) {
    LEVIN_CHECK(slot->pinned.data() + std::ssize(out) - to >= piece.n_bytes,
                "{} bytes are too few for a block's record", out.size());
    stream_->copy_bytes_out(to, piece.from, piece.n_bytes);
    to += piece.n_bytes;
  }
  slot->copied->set();
  has_copies_ = true;
  return std::make_unique<Copy>(*this, std::move(slot), out);
}

std::unique_ptr<BlockCopies::Slot> BlockCopies::free_slot() {
  if (!free_.empty()) {
    std::unique_ptr<Slot> slot = std::move(free_.back());
    free_.pop_back();
    return slot;
  }
  Result<Buffer> pinned = memory_->allocate_pinned(block_bytes_);
  Result<std::unique_ptr<WorkMark>> copied = stream_->make_mark();
  if (!pinned.ok() || !copied.ok()) return nullptr;
  return std::make_unique<Slot>(Slot{.pinned = std::move(pinned).value(), .copied = std::move(copied).value()});
}

void BlockCopies::hold() {
  if (std::exchange(has_copies_, false)) stream_->hold();
}

}  // namespace levin
