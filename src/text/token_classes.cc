#include "text/token_classes.h"

#include <string>
#include <unordered_map>

#include "text/byte_alphabet.h"
#include "text/fold.h"
#include "text/unicode.h"

namespace levin::text {
namespace {

// As tokenizer.json spells the token.
std::string spelling(const Tokenizer& tokenizer, const ByteAlphabet& alphabet, TokenId id) {
  const std::string_view bytes = tokenizer.token_bytes(id);
  if (tokenizer.is_added(id)) return std::string(bytes);
  std::string out;
  for (const char byte : bytes) append_utf8(alphabet.character(static_cast<uint8_t>(byte)), out);
  return out;
}

// DeepSeek's code lets one blank survive as U+E000 until the ends are trimmed, so that character of a token becomes one too.
std::string without_stand_in(std::string text) {
  constexpr std::string_view kStandIn = "\xEE\x80\x80";  // U+E000
  for (size_t at = text.find(kStandIn); at != std::string::npos; at = text.find(kStandIn, at + 1))
    text.replace(at, kStandIn.size(), 1, ' ');
  return text;
}

std::string key_of(const Tokenizer& tokenizer, const ByteAlphabet& alphabet, TokenId id) {
  const TokenId ids[] = {id};
  std::string text = tokenizer.decode(ids, false);
  if (text.find(kReplacement) != std::string::npos) return spelling(tokenizer, alphabet, id);
  std::string folded = without_stand_in(fold_spaces(fold_text(text)));
  return folded.empty() ? text : folded;
}

}  // namespace

TokenClasses token_classes(const Tokenizer& tokenizer) {
  const ByteAlphabet alphabet;
  TokenClasses out;
  std::unordered_map<std::string, int32_t> known;
  for (TokenId id = 0; id < tokenizer.n_ids(); ++id) {
    const auto next = static_cast<int32_t>(known.size());
    out.of_token.push_back(known.try_emplace(key_of(tokenizer, alphabet, id), next).first->second);
  }
  out.count = static_cast<int64_t>(known.size());
  return out;
}

}  // namespace levin::text
