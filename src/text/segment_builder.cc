#include "text/segment_builder.h"

namespace levin::text {

void SegmentBuilder::format(std::string_view words) {
  while (!words.empty()) {
    size_t first = words.size();
    const Mark* mark = nullptr;
    for (const Mark& candidate : marks_) {
      const size_t at = words.find(candidate.name);
      if (at < first) first = at, mark = &candidate;
    }
    append(words.substr(0, first), false);
    if (mark == nullptr) return;
    segments_.push_back({.token = mark->token});
    words.remove_prefix(first + mark->name.size());
  }
}

void SegmentBuilder::append(std::string_view text, bool from_user) {
  if (text.empty()) return;
  if (!segments_.empty() && segments_.back().token == kNoToken && segments_.back().from_user == from_user) {
    segments_.back().text += text;
  } else {
    segments_.push_back({.text = std::string(text), .from_user = from_user});
  }
}

}  // namespace levin::text
