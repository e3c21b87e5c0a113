// Cutting text into the pieces that BPE works on, one hand-written matcher per known set of patterns.
//
//   kDeepSeek  three splits in sequence (V3, V3.2, V4): numbers by threes; runs of CJK and kana; then words,
//   punctuation
//              and white space. Each split sees only the pieces of the one before, so the end of a piece counts as the
//              end of the text in \s+(?!\S): spaces before a digit stay together, before a letter the last one leaves.
//   kGlm       one split (GLM-4, GLM-5), the pattern of GPT-4
//
// A pattern this file does not know is refused; there is no general regular-expression engine.
#pragma once

#include <string_view>

#include "base/result.h"
#include "io/json.h"

namespace levin::text {

enum class SplitPattern { kDeepSeek, kGlm };

// Recognises the member "pre_tokenizer" of a tokenizer.json by its patterns. `where` names the document in errors.
Result<SplitPattern> recognise_pre_tokenizer(const io::JsonValue& pre_tokenizer, std::string_view where);

// Hands out the pieces of a text in order; together they are the text.
class PieceSplitter {
 public:
  // `text` is valid UTF-8 and must outlive the splitter.
  PieceSplitter(SplitPattern pattern, std::string_view text) : pattern_(pattern), text_(text), limit_(text.size()) {}

  // False at the end of the text.
  bool next(std::string_view& piece) {
    if (pos_ == text_.size()) return false;
    const size_t end = pattern_ == SplitPattern::kGlm ? glm_end() : deepseek_end();
    piece = text_.substr(pos_, end - pos_);
    pos_ = end;
    return true;
  }

 private:
  // What ends the stretch a match may look at.
  enum class Scope {
    kText,           // the end of the text
    kBetweenSplits,  // also a number or a CJK character: the earlier splits cut there
    kCjkRun,         // limit_, the end of the run
  };
  struct Seen {
    unsigned char_class;  // CharClass bits, or kEnd
    unsigned n_bytes;
  };
  static constexpr unsigned kEnd = 1u << 8;

  size_t deepseek_end();
  size_t glm_end() const;
  template <Scope kScope>
  size_t deepseek_piece(size_t pos) const;
  template <Scope kScope>
  size_t deepseek_match(size_t pos) const;
  template <Scope kScope>
  Seen look(size_t pos) const;
  template <Scope kScope>
  size_t skip(size_t pos, unsigned classes) const;
  template <Scope kScope>
  size_t space_end(size_t pos) const;
  size_t numbers_end(size_t pos) const;
  size_t contraction_end(size_t pos) const;
  size_t cjk_end(size_t pos) const;

  SplitPattern pattern_;
  std::string_view text_;
  size_t pos_ = 0;
  size_t limit_;  // text_.size(), or the end of the CJK run that pos_ is in
  bool in_cjk_ = false;
};

}  // namespace levin::text
