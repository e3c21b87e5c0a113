// Passkey documents: made-up program text with planted numbers, and questions at the end that only a look back can
// answer. A model whose indexer selects the wrong tokens loses them at a few thousand tokens, while almost everything
// else still looks right.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace levin::test {

struct PasskeyDocument {
  // The file, then `# What is the passkey of KEY? It is ANSWER.` for every key
  std::string text;
  std::vector<std::pair<size_t, size_t>> answers;  // byte ranges of the answers to the questions at the end
};

// A document of about n_characters before the questions; the same seed gives the same document.
PasskeyDocument passkey_document(uint64_t seed, size_t n_characters);

// Of the `n_drawn` documents from this seed on the n that ask for most numbers: those say most about recall for their length.
struct PasskeyChoice {
  uint64_t first_seed;
  int n_drawn;
  int n;
};
std::vector<PasskeyDocument> passkey_documents(const PasskeyChoice& choice, size_t n_characters);

}  // namespace levin::test
