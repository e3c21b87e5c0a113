#include "text/stream_decoder.h"

#include <utility>

#include "text/unicode.h"

namespace levin::text {

std::string StreamDecoder::push(TokenId id) {
  if (skip_special_ && tokenizer_->is_special(id)) return {};
  pending_ += tokenizer_->token_bytes(id);
  // All but an unfinished character at the end, which starts at most three bytes before it.
  size_t n_whole = pending_.size();
  for (size_t n_tail = 1; n_tail <= 3 && n_tail <= pending_.size(); ++n_tail) {
    const std::string_view tail = std::string_view(pending_).substr(pending_.size() - n_tail);
    const Utf8Step step = next_utf8(tail);
    if (step.kind == Utf8Step::kIncomplete) n_whole = pending_.size() - n_tail;
    if ((static_cast<uint8_t>(tail[0]) & 0xC0) != 0x80) break;
  }
  std::string storage;
  std::string text(valid_utf8(std::string_view(pending_).substr(0, n_whole), storage));
  pending_.erase(0, n_whole);
  return text;
}

std::string StreamDecoder::finish() {
  std::string storage;
  std::string text(valid_utf8(pending_, storage));
  pending_.clear();
  return text;
}

}  // namespace levin::text
