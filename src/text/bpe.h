// Byte-pair encoding of one piece of text: bytes to tokens, joining the pair of lowest rank first, leftmost on a tie.
//
// Cost     pieces that are one token are found by one hash look-up; others up to kShortBytes by repeated search for the
//          lowest rank, longer ones with a heap: O(n log n), so a megabyte of one letter is nothing special
// Threads  everything but the constructor is const; what a call remembers is in the caller's PieceMemo
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/token_id.h"

namespace levin::text {

// The bytes of each token by id; ids without a token have none.
class TokenBytes {
 public:
  explicit TokenBytes(const std::vector<std::string>& tokens);

  TokenId n_ids() const { return static_cast<TokenId>(start_.size() - 1); }
  std::string_view operator[](TokenId id) const {  // 0 <= id < n_ids()
    const size_t i = static_cast<size_t>(id);
    return std::string_view(bytes_).substr(start_[i], start_[i + 1] - start_[i]);
  }

 private:
  std::string bytes_;
  std::vector<uint32_t> start_;  // [n_ids + 1] into bytes_
};

struct Merge {
  TokenId left, right, joined;
};

struct BpeModel {
  std::array<TokenId, 256> byte_tokens;  // the token of each single byte
  std::vector<Merge> merges;             // by rank; a later one of the same pair replaces an earlier one
  std::vector<TokenId> whole_pieces;     // tokens a piece of the same bytes becomes without merging (ignore_merges)
};

// What a caller may keep between pieces: the tokens of recent short pieces. Direct-mapped, of fixed size.
class PieceMemo {
 public:
  static constexpr size_t kMaxBytes = 16;
  static constexpr size_t kMaxTokens = 8;

  struct Entry {
    std::array<char, kMaxBytes> bytes;
    std::array<TokenId, kMaxTokens> tokens;
    uint8_t n_bytes = 0;  // 0: empty
    uint8_t n_tokens = 0;
  };

  PieceMemo() : entries_(kEntries) {}
  Entry& at(uint64_t hash) { return entries_[hash % kEntries]; }

 private:
  static constexpr size_t kEntries = 4096;
  std::vector<Entry> entries_;
};

class Bpe {
 public:
  static constexpr size_t kShortBytes = 48;

  // `bytes` must outlive this object.
  Bpe(const BpeModel& model, const TokenBytes& bytes);

  // Appends the tokens of `piece` (below 2^31 bytes, not empty) to `out`. `memo` may be null.
  void encode(std::string_view piece, PieceMemo* memo, std::vector<TokenId>& out) const;

  // The same without any merge whose result is in `forbidden` (one flag per id). Slow; for the rare piece that hits
  // one.
  void encode_without(std::string_view piece, const std::vector<bool>& forbidden, std::vector<TokenId>& out) const;

 private:
  struct Joined {
    uint32_t rank = kNoRank;
    TokenId token = kNoToken;
  };
  struct PairSlot {
    uint64_t pair = kNoPair;
    Joined joined;
  };
  static constexpr uint32_t kNoRank = ~0u;
  static constexpr uint64_t kNoPair = ~uint64_t{0};

  void add_pairs(std::span<const Merge> merges);
  void add_whole_pieces(const BpeModel& model);
  void add_whole_piece(TokenId token);
  TokenId find_whole_piece(std::string_view piece, uint64_t hash) const;
  Joined join(TokenId left, TokenId right) const;
  void encode_short(std::string_view piece, std::vector<TokenId>& out) const;
  void encode_long(std::string_view piece, std::vector<TokenId>& out) const;

  const TokenBytes* bytes_;
  std::array<TokenId, 256> byte_tokens_;
  std::vector<PairSlot> pairs_;  // open addressing, a power of two, at most half full
  std::vector<TokenId> wholes_;  // the same, tokens by the hash of their bytes
  size_t max_whole_bytes_ = 0;
};

}  // namespace levin::text
