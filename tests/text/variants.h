// The demonstration tokenizer and its variants of golden/variants.json, made as make_goldens.py makes them.
#pragma once

#include <string>
#include <string_view>

#include "io/json.h"
#include "text/tokenizer.h"

namespace levin::test {

std::string read_text_file(const std::string& path_in_project);

// tokenizer.json of a variant ("deepseek" is the file as it is).
io::JsonValue variant_document(std::string_view name);

text::Tokenizer variant_tokenizer(std::string_view name);

// The file as it is with its tokenizer_config.json; one for the whole program.
const text::Tokenizer& demo_tokenizer();

// Draws as make_goldens.py does.
class Draw {
 public:
  explicit Draw(uint64_t seed) : state_(seed) {}
  uint32_t below(uint32_t n) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>((state_ >> 33) % n);
  }

 private:
  uint64_t state_;
};

// FNV-1a over 64-bit numbers.
struct Fnv {
  uint64_t value = 14695981039346656037u;
  void add(uint64_t number) { value = (value ^ number) * 1099511628211u; }
};

}  // namespace levin::test
