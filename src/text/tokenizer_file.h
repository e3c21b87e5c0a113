// What tokenizer.json and tokenizer_config.json say, checked and as plain data.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/pretokenizer.h"

namespace levin::text {

struct TokenizerFile {
  std::vector<std::string> tokens;  // bytes by id: decoded from their spelling, added tokens by name; empty: no token
  std::vector<AddedToken> added;
  BpeModel bpe;
  SplitPattern split = SplitPattern::kDeepSeek;
  std::vector<TokenId> prefix;  // what the post-processor puts before a text
};

// Everything the document asks for is in the result or, if it is not implemented, the error.
Result<TokenizerFile> parse_tokenizer_file(std::string_view json);

struct TokenizerConfig {
  std::optional<TokenId> bos, eos, pad;
  bool add_bos_token = false;
};

// `added` are the tokens of tokenizer.json, which the config must agree with. Empty text is an empty config.
Result<TokenizerConfig> parse_tokenizer_config(std::string_view json, const std::vector<AddedToken>& added);

}  // namespace levin::text
