// Text for the demonstration models.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "support/must.h"
#include "text/tokenizer.h"

namespace levin::test {

// What a document begins with: what the tokenizer puts there by itself, or GLM's two tokens, which only its chat format
// names.
inline std::vector<int32_t> begin_of_text(const text::Tokenizer& tokenizer) {
  std::vector<int32_t> ids(tokenizer.raw_prefix().begin(), tokenizer.raw_prefix().end());
  for (const std::string_view mark : {"[gMASK]", "<sop>"}) {
    if (const auto id = tokenizer.added_id(mark)) ids.push_back(*id);
  }
  return ids;
}

// As begin_of_text(), and then the text.
inline std::vector<int32_t> encode_document(const text::Tokenizer& tokenizer, std::string_view text) {
  std::vector<int32_t> ids = begin_of_text(tokenizer);
  const std::vector<int32_t> body = must(tokenizer.encode_plain(text));
  ids.insert(ids.end(), body.begin(), body.end());
  return ids;
}

}  // namespace levin::test
