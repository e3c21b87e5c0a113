// Decoding while tokens arrive: the pieces it hands out are whole UTF-8 and, put together, are what decode() of all the
// ids gives.
//
//   StreamDecoder decoder(tokenizer);
//   for (TokenId id : generated) print(decoder.push(id));
//   print(decoder.finish());
#pragma once

#include <string>

#include "text/token_id.h"
#include "text/tokenizer.h"

namespace levin::text {

class StreamDecoder {
 public:
  // The tokenizer must outlive the decoder.
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = true)
      : tokenizer_(&tokenizer), skip_special_(skip_special) {}

  // Text that is complete with this token; an unfinished character (at most three bytes) is held back.
  std::string push(TokenId id);

  // What was held back, as U+FFFD; afterwards the decoder is as new.
  std::string finish();

  // Number of bytes held back, 0 to 3.
  size_t n_pending_bytes() const { return pending_.size(); }

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::string pending_;
};

}  // namespace levin::text
