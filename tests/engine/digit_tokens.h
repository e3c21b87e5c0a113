// The tokens that recall is counted on: digits of the answers at the end of a passkey document.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/passkey.h"
#include "text/tokenizer.h"

namespace levin::test {

struct DigitTokens {
  std::vector<int32_t> ids;                        // of the whole document, after the beginning-of-text tokens
  std::vector<std::pair<size_t, size_t>> answers;  // for each answer the range of its digit tokens
};

DigitTokens digit_tokens(const text::Tokenizer& tokenizer, const PasskeyDocument& document);

}  // namespace levin::test
