#include "engine/digit_tokens.h"

#include <algorithm>
#include <cctype>

#include "engine/demo_text.h"
#include "support/must.h"

namespace levin::test {
namespace {

bool all_digits(std::string_view bytes) {
  return !bytes.empty() && std::all_of(bytes.begin(), bytes.end(), [](unsigned char c) { return std::isdigit(c); });
}

}  // namespace

DigitTokens digit_tokens(const text::Tokenizer& tokenizer, const PasskeyDocument& document) {
  DigitTokens out{.ids = begin_of_text(tokenizer), .answers = {}};
  size_t answer = 0, offset = 0;
  bool inside = false;
  for (const int32_t id : must(tokenizer.encode_plain(document.text))) {
    const std::string_view bytes = tokenizer.token_bytes(id);
    while (answer < document.answers.size() && offset >= document.answers[answer].second) {
      ++answer;
      inside = false;
    }
    if (answer < document.answers.size() && offset >= document.answers[answer].first &&
        offset + bytes.size() <= document.answers[answer].second && all_digits(bytes)) {
      if (!inside) out.answers.emplace_back(out.ids.size(), out.ids.size());
      out.answers.back().second = out.ids.size() + 1;
      inside = true;
    }
    out.ids.push_back(id);
    offset += bytes.size();
  }
  return out;
}

}  // namespace levin::test
