#include "grammar/vocabulary.h"

#include <fmt/core.h>

#include <algorithm>

namespace levin::grammar {

void SortedTexts::sort() {
  std::sort(entries_.begin(), entries_.end(),
            [](const Entry& a, const Entry& b) { return a.text != b.text ? a.text < b.text : a.token < b.token; });
  for (size_t i = 1; i < entries_.size(); ++i) {
    const std::string_view before = entries_[i - 1].text, text = entries_[i].text;
    const auto [end, _] = std::mismatch(text.begin(), text.end(), before.begin(), before.end());
    entries_[i].n_shared = static_cast<size_t>(end - text.begin());
  }
  find_shorter();
}

void SortedTexts::find_shorter() {
  for (size_t i = entries_.size(); i-- > 0;) {
    size_t next = i + 1;
    while (next < entries_.size() && entries_[next].n_shared >= entries_[i].n_shared) next = entries_[next].shorter;
    entries_[i].shorter = next;
  }
}

// Neighbours have in common what all between them had.
SortedTexts SortedTexts::longer_than(size_t n_bytes) const {
  SortedTexts out;
  size_t n_shared = 0;
  for (const Entry& entry : entries_) {
    n_shared = std::min(n_shared, entry.n_shared);
    if (entry.text.size() <= n_bytes) continue;
    out.entries_.push_back({entry.text, entry.token, n_shared, 0});
    n_shared = entry.text.size();
  }
  out.find_shorter();
  return out;
}

Result<std::shared_ptr<const Vocabulary>> Vocabulary::make(int64_t n_tokens,
                                                           const std::function<std::string_view(int32_t)>& text) {
  const auto out = std::make_shared<Vocabulary>();
  std::vector<bool> has_byte(256, false);
  for (int64_t id = 0; id < n_tokens; ++id) {
    const std::string_view bytes = text(static_cast<int32_t>(id));
    const bool usable = bytes.size() <= kMaxTokenBytes;
    out->spans_.push_back({out->bytes_.size(), usable ? bytes.size() : 0});
    if (!usable) continue;
    out->bytes_.insert(out->bytes_.end(), bytes.begin(), bytes.end());
    out->longest_bytes_ = std::max(out->longest_bytes_, bytes.size());
    if (bytes.size() == 1) has_byte[static_cast<uint8_t>(bytes[0])] = true;
  }
  for (int byte = 0; byte < 256; ++byte) {
    const bool in_utf8 = byte < 0xc0 || (byte >= 0xc2 && byte <= 0xf4);
    if (in_utf8 && !has_byte[static_cast<size_t>(byte)]) {
      return Error{
          ErrorKind::kUsage,
          fmt::format("the tokenizer has no token for the byte 0x{:02x} alone, which structured output needs", byte)};
    }
  }
  for (int64_t id = 0; id < n_tokens; ++id) {
    const std::string_view bytes = out->text(static_cast<int32_t>(id));
    if (!bytes.empty()) out->texts_.add(bytes, static_cast<int32_t>(id));
  }
  out->texts_.sort();
  return std::shared_ptr<const Vocabulary>(out);
}

std::string_view Vocabulary::text(int32_t token) const {
  const Span& span = spans_[static_cast<size_t>(token)];
  return {bytes_.data() + span.begin, span.size};
}

}  // namespace levin::grammar
