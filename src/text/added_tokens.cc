#include "text/added_tokens.h"

#include <algorithm>
#include <utility>

#include "text/unicode.h"

namespace levin::text {
namespace {

bool ends_with_word(std::string_view text) {
  if (text.empty()) return false;
  return (char_class(decode_utf8(text, previous_char(text, text.size())).code_point) & kWord) != 0;
}

bool starts_with_word(std::string_view text) {
  return !text.empty() && (char_class(decode_utf8(text, 0).code_point) & kWord) != 0;
}

// Start of the white space that `text` ends with.
size_t trailing_space(std::string_view text) {
  size_t start = text.size();
  while (start > 0) {
    const size_t previous = previous_char(text, start);
    if ((char_class(decode_utf8(text, previous).code_point) & kSpace) == 0) break;
    start = previous;
  }
  return start;
}

// Number of bytes of white space that `text` starts with.
size_t leading_space(std::string_view text) {
  size_t end = 0;
  while (end < text.size()) {
    const Utf8Char c = decode_utf8(text, end);
    if ((char_class(c.code_point) & kSpace) == 0) break;
    end += static_cast<size_t>(c.n_bytes);
  }
  return end;
}

}  // namespace

void AddedTokens::Tree::add(std::string_view name, int token) {
  int node = roots_[static_cast<uint8_t>(name[0])] - 1;
  if (node < 0) {
    node = static_cast<int>(nodes_.size());
    nodes_.push_back({.byte = name[0]});
    roots_[static_cast<uint8_t>(name[0])] = node + 1;
  }
  for (const char byte : name.substr(1)) {
    int next = child(node, byte);
    if (next < 0) {
      next = static_cast<int>(nodes_.size());
      nodes_.push_back({.next_sibling = nodes_[static_cast<size_t>(node)].first_child, .byte = byte});
      nodes_[static_cast<size_t>(node)].first_child = next;
    }
    node = next;
  }
  nodes_[static_cast<size_t>(node)].token = token;
}

int AddedTokens::Tree::child(int parent, char byte) const {
  int node = nodes_[static_cast<size_t>(parent)].first_child;
  while (node >= 0 && nodes_[static_cast<size_t>(node)].byte != byte)
    node = nodes_[static_cast<size_t>(node)].next_sibling;
  return node;
}

int AddedTokens::Tree::longest(std::string_view text, size_t pos) const {
  int found = -1;
  int node = roots_[static_cast<uint8_t>(text[pos])] - 1;
  while (node >= 0) {
    if (nodes_[static_cast<size_t>(node)].token >= 0) found = nodes_[static_cast<size_t>(node)].token;
    if (++pos == text.size()) break;
    node = child(node, text[pos]);
  }
  return found;
}

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  for (size_t i = 0; i < tokens_.size(); ++i) {
    (tokens_[i].normalized ? normalized_ : plain_).add(tokens_[i].name, static_cast<int>(i));
  }
}

std::vector<TextPart> AddedTokens::split(std::string_view text) const {
  std::vector<TextPart> parts;
  split_by(plain_, text, parts);
  if (normalized_.empty()) return parts;
  std::vector<TextPart> finer;
  for (const TextPart& part : parts) {
    if (part.token == kNoToken) {
      split_by(normalized_, part.text, finer);
    } else {
      finer.push_back(part);
    }
  }
  return finer;
}

void AddedTokens::split_by(const Tree& tree, std::string_view text, std::vector<TextPart>& parts) const {
  size_t done = 0;  // everything before is in `parts`
  size_t pos = 0;
  while (pos < text.size()) {
    const int index = tree.longest(text, pos);
    if (index < 0) {
      ++pos;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(index)];
    size_t start = pos;
    size_t end = pos + token.name.size();
    pos = end;
    if (token.single_word && (ends_with_word(text.substr(0, start)) || starts_with_word(text.substr(end)))) continue;
    if (token.lstrip && done < start) start = done + trailing_space(text.substr(done, start - done));
    if (token.rstrip) end += leading_space(text.substr(end));
    if (done < start) parts.push_back({.text = text.substr(done, start - done)});
    parts.push_back({token.id, text.substr(start, end - start)});
    done = end;
  }
  if (done < text.size()) parts.push_back({.text = text.substr(done)});
}

}  // namespace levin::text
