#include "text/bpe.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <string>
#include <vector>

namespace levin::text {
namespace {

// A vocabulary over the letters a, b, c: the 256 bytes and one token per merge.
struct Vocabulary {
  std::vector<std::string> tokens;
  BpeModel model;
};

Vocabulary bytes_only() {
  Vocabulary v;
  for (int byte = 0; byte < 256; ++byte) {
    v.tokens.emplace_back(1, static_cast<char>(byte));
    v.model.byte_tokens[static_cast<size_t>(byte)] = byte;
  }
  return v;
}

TokenId add_merge(Vocabulary& v, TokenId left, TokenId right) {
  const std::string joined = v.tokens[static_cast<size_t>(left)] + v.tokens[static_cast<size_t>(right)];
  auto found = std::find(v.tokens.begin(), v.tokens.end(), joined);
  if (found == v.tokens.end()) found = v.tokens.insert(v.tokens.end(), joined);
  const auto id = static_cast<TokenId>(found - v.tokens.begin());
  v.model.merges.push_back({left, right, id});
  return id;
}

// Merges of random pairs of what is there, so that ranks need not grow with length.
rc::Gen<Vocabulary> vocabularies() {
  return rc::gen::map(rc::gen::container<std::vector<std::pair<uint32_t, uint32_t>>>(
                          rc::gen::arbitrary<std::pair<uint32_t, uint32_t>>()),
                      [](const std::vector<std::pair<uint32_t, uint32_t>>& picks) {
                        Vocabulary v = bytes_only();
                        std::vector<TokenId> usable = {'a', 'b', 'c'};
                        for (const auto& [left, right] : picks) {
                          const TokenId id = add_merge(v, usable[left % usable.size()], usable[right % usable.size()]);
                          if (v.tokens[static_cast<size_t>(id)].size() < 24) usable.push_back(id);
                        }
                        std::reverse(v.model.merges.begin(),
                                     v.model.merges.begin() + static_cast<ptrdiff_t>(v.model.merges.size() / 2));
                        return v;
                      });
}

std::string letters(const std::vector<uint8_t>& draws) {
  std::string text;
  for (const uint8_t draw : draws) text.push_back(static_cast<char>('a' + draw % 3));
  return text;
}

// The definition: look at all pairs, join the leftmost of the lowest rank, start again.
std::vector<TokenId> oracle(const Vocabulary& v, std::string_view piece, const std::vector<bool>* forbidden = nullptr) {
  std::vector<TokenId> tokens;
  for (const char byte : piece) tokens.push_back(v.model.byte_tokens[static_cast<uint8_t>(byte)]);
  while (true) {
    size_t best_rank = v.model.merges.size();
    size_t best = 0;
    for (size_t i = 0; i + 1 < tokens.size(); ++i) {
      for (size_t rank = v.model.merges.size(); rank-- > 0;) {  // of the same pair the later one counts
        const Merge& merge = v.model.merges[rank];
        if (merge.left != tokens[i] || merge.right != tokens[i + 1]) continue;
        const bool allowed = forbidden == nullptr || !(*forbidden)[static_cast<size_t>(merge.joined)];
        if (allowed && rank < best_rank) best_rank = rank, best = i;
        break;
      }
    }
    if (best_rank == v.model.merges.size()) return tokens;
    tokens[best] = v.model.merges[best_rank].joined;
    tokens.erase(tokens.begin() + static_cast<ptrdiff_t>(best) + 1);
  }
}

std::vector<TokenId> encode(const Bpe& bpe, std::string_view piece, PieceMemo* memo = nullptr) {
  std::vector<TokenId> out;
  bpe.encode(piece, memo, out);
  return out;
}

TEST(Bpe, EqualsItsDefinition) {
  ASSERT_TRUE(rc::check([] {
    const Vocabulary v = *vocabularies();
    const TokenBytes bytes(v.tokens);
    const Bpe bpe(v.model, bytes);
    PieceMemo memo;
    std::string piece = letters(*rc::gen::nonEmpty(rc::gen::arbitrary<std::vector<uint8_t>>()));
    for (int round = 0; round < 3; ++round) {  // grows past kShortBytes
      const std::vector<TokenId> expected = oracle(v, piece);
      RC_ASSERT(encode(bpe, piece) == expected);
      RC_ASSERT(encode(bpe, piece, &memo) == expected);
      RC_ASSERT(encode(bpe, piece, &memo) == expected);
      piece += piece;
    }
  }));
}

TEST(Bpe, ForbiddenTokensDoNotComeOut) {
  ASSERT_TRUE(rc::check([] {
    const Vocabulary v = *vocabularies();
    const TokenBytes bytes(v.tokens);
    const Bpe bpe(v.model, bytes);
    std::vector<bool> forbidden(v.tokens.size());
    for (size_t i = 256; i < forbidden.size(); i += 2) forbidden[i] = true;
    const std::string piece = letters(*rc::gen::nonEmpty(rc::gen::arbitrary<std::vector<uint8_t>>()));
    std::vector<TokenId> out;
    bpe.encode_without(piece, forbidden, out);
    RC_ASSERT(out == oracle(v, piece, &forbidden));
  }));
}

TEST(Bpe, WholePiecesComeBeforeMerges) {
  Vocabulary v = bytes_only();
  add_merge(v, 'a', 'b');
  v.tokens.push_back("abc");
  const auto abc = static_cast<TokenId>(v.tokens.size() - 1);
  const TokenBytes bytes(v.tokens);
  EXPECT_EQ(encode(Bpe(v.model, bytes), "abc"), (std::vector<TokenId>{256, 'c'}));
  v.model.whole_pieces.push_back(abc);
  EXPECT_EQ(encode(Bpe(v.model, bytes), "abc"), (std::vector<TokenId>{abc}));
  EXPECT_EQ(encode(Bpe(v.model, bytes), "abcc"), (std::vector<TokenId>{256, 'c', 'c'}));
}

TEST(Bpe, AMemoOfOtherPiecesDoesNotMislead) {
  Vocabulary v = bytes_only();
  add_merge(v, 'a', 'b');
  const TokenBytes bytes(v.tokens);
  const Bpe bpe(v.model, bytes);
  PieceMemo memo;
  for (uint32_t i = 0; i < 100000; ++i) {  // many more pieces than the memo has places
    const uint32_t mixed = i * 2654435761u;
    std::string piece = "ab";
    for (int shift = 0; shift < 32; shift += 8) piece.push_back(static_cast<char>('b' + ((mixed >> shift) & 15)));
    std::vector<TokenId> expected = {256};
    for (const char byte : piece.substr(2)) expected.push_back(byte);
    ASSERT_EQ(encode(bpe, piece, &memo), expected);
  }
}

}  // namespace
}  // namespace levin::text
