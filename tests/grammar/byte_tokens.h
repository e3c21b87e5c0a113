// A small vocabulary: every byte, some longer texts, and two marks that are no text.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "grammar/constraint.h"
#include "grammar/matcher.h"
#include "support/must.h"

namespace levin::test {

constexpr int32_t kEndMark = 256, kOtherMark = 257;

inline std::shared_ptr<const grammar::Vocabulary> byte_tokens() {
  static const std::shared_ptr<const grammar::Vocabulary> vocabulary = [] {
    std::vector<std::string> texts;
    for (int byte = 0; byte < 256; ++byte) texts.emplace_back(1, static_cast<char>(byte));
    texts.insert(texts.end(), 2, "");
    for (const char* text :
         {"{\"",      "\":",  "\": ",  "\": \"",     "\", \"", "\"}",  "\"]",  "\"}]",   "}}",   ", ",    "],",
          "[[",       "true", "false", "null",       "12",     "123",  "0.",   "-1",     "e+",   "ab",    "abc",
          "the",      " the", "\\n",   "\\u00",      "\n  ",   "é",    "\xc3", "\xa9\"", "日本", "\"a\"", "\", ",
          "a\", \"b", "</",   "<",     "日\": [1, ", "\\\"",   "\"\"", "{}",   "[]",     "{}}",  "[1,"}) {
      texts.emplace_back(text);
    }
    return must(grammar::Vocabulary::make(
        std::ssize(texts), [&](int32_t id) -> std::string_view { return texts[static_cast<size_t>(id)]; }));
  }();
  return vocabulary;
}

inline std::shared_ptr<grammar::Constraint> constraint_of(grammar::Grammar grammar) {
  return std::make_shared<grammar::Constraint>(std::move(grammar), byte_tokens());
}

// Whether the text is one of the grammar, read byte by byte.
inline bool matches(const std::shared_ptr<grammar::Constraint>& constraint, std::string_view text) {
  grammar::Matcher matcher({.constraint = constraint}, std::vector<int32_t>{kEndMark});
  for (const char c : text) {
    if (!matcher.push(static_cast<uint8_t>(c))) return false;
  }
  return matcher.push(kEndMark);
}

}  // namespace levin::test
