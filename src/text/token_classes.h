// Classes of tokens whose texts are alike (" The", "the" and "THE" are one), in the order in which the ids meet them.
#pragma once

#include <cstdint>
#include <vector>

#include "text/tokenizer.h"

namespace levin::text {

struct TokenClasses {
  std::vector<int32_t> of_token;  // by id, tokenizer.n_ids() of them
  int64_t count = 0;
};

// A token that is no text by itself (a part of a character) is alike to none but one spelled as it.
TokenClasses token_classes(const Tokenizer& tokenizer);

}  // namespace levin::text
