// Added tokens: names like <think> that stand for one token wherever they appear in trusted text.
//
// Matching is that of Hugging Face tokenizers: first the tokens with normalized = false in the whole text, then the
// others in what is left (the supported files have no normalizer, so their text is the same); from the left, the
// longest name that starts at a place, no overlaps; single_word, lstrip and rstrip looked at afterwards.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/token_id.h"

namespace levin::text {

struct AddedToken {
  TokenId id = kNoToken;
  std::string name;          // not empty
  bool special = false;      // left out of decoded text when asked
  bool single_word = false;  // not next to a word character
  bool lstrip = false;       // swallows white space on its left
  bool rstrip = false;
  bool normalized = false;
};

// A stretch of text, or an added token (then `text` is what it covers).
struct TextPart {
  TokenId token = kNoToken;
  std::string_view text;
};

class AddedTokens {
 public:
  AddedTokens() = default;
  explicit AddedTokens(std::vector<AddedToken> tokens);  // names are unique

  std::span<const AddedToken> tokens() const { return tokens_; }

  // The parts of valid UTF-8 in order; no part is empty text.
  std::vector<TextPart> split(std::string_view text) const;

 private:
  // Names as a tree of bytes; siblings are a linked list.
  class Tree {
   public:
    void add(std::string_view name, int token);
    // The longest name `text` starts with at `pos`: its index into tokens_, or -1.
    int longest(std::string_view text, size_t pos) const;
    bool empty() const { return nodes_.empty(); }

   private:
    struct Node {
      int first_child = -1;
      int next_sibling = -1;
      int token = -1;
      char byte = 0;
    };
    int child(int parent, char byte) const;  // node, or -1

    std::vector<Node> nodes_;
    std::array<int, 256> roots_{};  // by first byte: one more than the node, 0 for none
  };

  void split_by(const Tree& tree, std::string_view text, std::vector<TextPart>& parts) const;

  std::vector<AddedToken> tokens_;
  Tree plain_;
  Tree normalized_;
};

}  // namespace levin::text
