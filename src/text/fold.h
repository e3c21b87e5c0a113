// Text with what is alike made equal: case, accents, compatibility forms, runs of white space.
//
// Source  the normalisation that DeepSeek-V4.1 applies to tokens before it hashes them (model_spec.md 11.6): NFKC, NFD, accents
//         removed, lower case, as Hugging Face tokenizers do them (fold_tables.py)
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace levin::text {

namespace fold_tables {
extern const size_t kCount;
extern const uint32_t kPoints[];  // code points that change, ascending
extern const uint16_t kEnds[];    // of the text of each in kTexts, where that of the one before ends
extern const uint32_t kTexts[];
}  // namespace fold_tables

// `text` is valid UTF-8.
std::string fold_text(std::string_view text);

// Runs of blanks, tabs and line ends become one blank, and white space at both ends is removed; a text that is one blank
// remains one.
std::string fold_spaces(std::string_view text);

}  // namespace levin::text
