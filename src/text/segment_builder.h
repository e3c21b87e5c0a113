// Puts a prompt together: the format's own words, in which the names of its marks are tokens, and what the caller sent,
// which is text and nothing else.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/tokenizer.h"

namespace levin::text {

class SegmentBuilder {
 public:
  struct Mark {
    std::string_view name;  // as it stands in the format's words
    TokenId token;
  };
  explicit SegmentBuilder(std::vector<Mark> marks) : marks_(std::move(marks)) {}

  // Words of the format, quoted in the source of the renderer.
  void format(std::string_view words);

  // What the caller sent.
  void user(std::string_view text) { append(text, true); }

  std::vector<Segment> take() { return std::move(segments_); }

 private:
  void append(std::string_view text, bool from_user);

  std::vector<Mark> marks_;
  std::vector<Segment> segments_;
};

}  // namespace levin::text
