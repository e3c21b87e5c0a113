// The tokens of a model as the texts they stand for, in the order in which a walk over all of them shares most.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace levin::grammar {

// Texts in ascending order, each with how much of it the one before has in common: a trie without its nodes.
class SortedTexts {
 public:
  struct Entry {
    std::string_view text;  // not empty
    int32_t token = -1;
    size_t n_shared = 0;  // bytes in common with the entry before; 0 for the first
    size_t shorter = 0;   // index of the next that has less in common with the one before it, or n
  };
  void add(std::string_view text, int32_t token) { entries_.push_back({text, token, 0, 0}); }
  void sort();  // once all are added
  SortedTexts longer_than(size_t n_bytes) const;

  const std::vector<Entry>& entries() const { return entries_; }
  // The index of the next entry after i that does not begin with more than n bytes of its text.
  size_t past(size_t i, size_t n_bytes) const {
    for (++i; i < entries_.size() && entries_[i].n_shared > n_bytes;) i = entries_[i].shorter;
    return i;
  }

 private:
  void find_shorter();

  std::vector<Entry> entries_;
};

class Vocabulary {
 public:
  static constexpr size_t kMaxTokenBytes = 4096;  // longer ones are never chosen where a structure is asked for

  // text(id): the bytes token id stands for; empty for one that is no text (a mark, padding). Refused (kUsage) is a
  // vocabulary in which some byte of UTF-8 has no token of its own: it could not write every text.
  static Result<std::shared_ptr<const Vocabulary>> make(int64_t n_tokens,
                                                        const std::function<std::string_view(int32_t)>& text);

  int64_t n_tokens() const { return static_cast<int64_t>(spans_.size()); }
  size_t n_mask_words() const { return (spans_.size() + 63) / 64; }
  std::string_view text(int32_t token) const;  // empty: no text
  const SortedTexts& texts() const { return texts_; }
  size_t longest_bytes() const { return longest_bytes_; }

 private:
  struct Span {
    size_t begin = 0, size = 0;
  };
  std::vector<char> bytes_;
  std::vector<Span> spans_;
  SortedTexts texts_;
  size_t longest_bytes_ = 0;
};

}  // namespace levin::grammar
