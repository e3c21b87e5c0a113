#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>

namespace levin::text {
namespace {

// Fast enough for a few bytes and good enough for tables: a multiply and a fold per 8 bytes (after wyhash).
uint64_t mix(uint64_t a, uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

uint64_t hash_bytes(std::string_view bytes) {
  constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15u;
  uint64_t hash = bytes.size() * kMultiplier;
  size_t pos = 0;
  uint64_t word = 0;
  for (; pos + 8 <= bytes.size(); pos += 8) {
    std::memcpy(&word, bytes.data() + pos, 8);
    hash = mix(hash ^ word, kMultiplier);
  }
  word = 0;
  for (; pos < bytes.size(); ++pos) word = word << 8 | static_cast<uint8_t>(bytes[pos]);
  return mix(hash ^ word, 0xD6E8FEB86659FD93u);
}

uint64_t pair_of(TokenId left, TokenId right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

uint64_t hash_pair(uint64_t pair) { return mix(pair, 0x9E3779B97F4A7C15u); }

size_t table_size(size_t n_entries) { return std::bit_ceil(std::max<size_t>(2 * n_entries, 16)); }

}  // namespace

TokenBytes::TokenBytes(const std::vector<std::string>& tokens) {
  start_.reserve(tokens.size() + 1);
  start_.push_back(0);
  for (const std::string& token : tokens) {
    bytes_ += token;
    start_.push_back(static_cast<uint32_t>(bytes_.size()));
  }
}

Bpe::Bpe(const BpeModel& model, const TokenBytes& bytes) : bytes_(&bytes), byte_tokens_(model.byte_tokens) {
  add_pairs(model.merges);
  add_whole_pieces(model);
}

void Bpe::add_pairs(std::span<const Merge> merges) {
  pairs_.resize(table_size(merges.size()));
  const size_t mask = pairs_.size() - 1;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const Merge& merge = merges[rank];
    const uint64_t pair = pair_of(merge.left, merge.right);
    size_t slot = hash_pair(pair) & mask;
    while (pairs_[slot].pair != kNoPair && pairs_[slot].pair != pair) slot = (slot + 1) & mask;
    pairs_[slot] = {pair, {static_cast<uint32_t>(rank), merge.joined}};
  }
}

// Tokens that merging makes of their own bytes: for a piece of these bytes merging can be skipped.
void Bpe::add_whole_pieces(const BpeModel& model) {
  wholes_.assign(table_size(model.merges.size() + model.whole_pieces.size()), kNoToken);
  for (const TokenId token : model.whole_pieces) add_whole_piece(token);
  std::vector<TokenId> merged;
  for (const Merge& merge : model.merges) {
    merged.clear();
    const std::string_view bytes = (*bytes_)[merge.joined];
    bytes.size() <= kShortBytes ? encode_short(bytes, merged) : encode_long(bytes, merged);
    if (merged.size() == 1 && merged[0] == merge.joined) add_whole_piece(merge.joined);
  }
}

void Bpe::add_whole_piece(TokenId token) {
  const std::string_view bytes = (*bytes_)[token];
  const size_t mask = wholes_.size() - 1;
  size_t slot = hash_bytes(bytes) & mask;
  for (; wholes_[slot] != kNoToken; slot = (slot + 1) & mask) {
    if ((*bytes_)[wholes_[slot]] == bytes) return;
  }
  wholes_[slot] = token;
  max_whole_bytes_ = std::max(max_whole_bytes_, bytes.size());
}

TokenId Bpe::find_whole_piece(std::string_view piece, uint64_t hash) const {
  if (piece.size() > max_whole_bytes_) return kNoToken;
  const size_t mask = wholes_.size() - 1;
  for (size_t slot = hash & mask; wholes_[slot] != kNoToken; slot = (slot + 1) & mask) {
    if ((*bytes_)[wholes_[slot]] == piece) return wholes_[slot];
  }
  return kNoToken;
}

Bpe::Joined Bpe::join(TokenId left, TokenId right) const {
  const uint64_t pair = pair_of(left, right);
  const size_t mask = pairs_.size() - 1;
  size_t slot = hash_pair(pair) & mask;
  while (pairs_[slot].pair != pair) {
    if (pairs_[slot].pair == kNoPair) return {};
    slot = (slot + 1) & mask;
  }
  return pairs_[slot].joined;
}

void Bpe::encode(std::string_view piece, PieceMemo* memo, std::vector<TokenId>& out) const {
  if (piece.size() == 1) {
    out.push_back(byte_tokens_[static_cast<uint8_t>(piece[0])]);
    return;
  }
  const uint64_t hash = hash_bytes(piece);
  if (const TokenId whole = find_whole_piece(piece, hash); whole != kNoToken) {
    out.push_back(whole);
    return;
  }
  if (piece.size() > kShortBytes) return encode_long(piece, out);
  if (memo == nullptr || piece.size() > PieceMemo::kMaxBytes) return encode_short(piece, out);

  PieceMemo::Entry& entry = memo->at(hash);
  if (std::string_view(entry.bytes.data(), entry.n_bytes) == piece) {
    out.insert(out.end(), entry.tokens.begin(), entry.tokens.begin() + entry.n_tokens);
    return;
  }
  const size_t first = out.size();
  encode_short(piece, out);
  const size_t n_tokens = out.size() - first;
  if (n_tokens > PieceMemo::kMaxTokens) return;
  std::copy(piece.begin(), piece.end(), entry.bytes.begin());
  std::copy(out.begin() + static_cast<ptrdiff_t>(first), out.end(), entry.tokens.begin());
  entry.n_bytes = static_cast<uint8_t>(piece.size());
  entry.n_tokens = static_cast<uint8_t>(n_tokens);
}

void Bpe::encode_short(std::string_view piece, std::vector<TokenId>& out) const {
  std::array<TokenId, kShortBytes> tokens;
  std::array<uint32_t, kShortBytes> ranks;  // of the pair (i, i + 1)
  std::array<TokenId, kShortBytes> joined;  // what that pair becomes
  size_t n = piece.size();
  for (size_t i = 0; i < n; ++i) tokens[i] = byte_tokens_[static_cast<uint8_t>(piece[i])];
  const auto look_up = [&](size_t i) {
    const Joined found = join(tokens[i], tokens[i + 1]);
    ranks[i] = found.rank;
    joined[i] = found.token;
  };
  for (size_t i = 0; i + 1 < n; ++i) look_up(i);

  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i) {
      if (ranks[i] < ranks[best]) best = i;
    }
    if (ranks[best] == kNoRank) break;
    tokens[best] = joined[best];
    --n;
    for (size_t i = best + 1; i < n; ++i) {
      tokens[i] = tokens[i + 1];
      ranks[i] = ranks[i + 1];
      joined[i] = joined[i + 1];
    }
    if (best + 1 < n) look_up(best);
    if (best > 0) look_up(best - 1);
  }
  out.insert(out.end(), tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(n));
}

namespace {

constexpr uint32_t kNone = ~0u;

// The joins still possible, lowest rank first, then leftmost. Where ranks are kept apart (long pieces), the joins of
// one rank are collected until it is their turn and then sorted, which they nearly are; what comes up for that turn
// later goes to a heap. So a join costs one step through memory instead of a way down a heap that no cache holds.
class JoinQueue {
 public:
  explicit JoinQueue(size_t n_bytes) : shift_(n_bytes < kLongBytes ? 32 : 0) {}

  void push(uint32_t rank, uint32_t position) {
    const uint64_t entry = static_cast<uint64_t>(rank) << 32 | position;
    const auto turn = static_cast<size_t>(uint64_t{rank} >> shift_);
    if (turn < next_turn_) {
      heap_.push_back(entry);
      std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
      return;
    }
    if (turn >= later_.size()) later_.resize(turn + 1);
    later_[turn].push_back(entry);
  }

  // False when there are none.
  bool pop(uint32_t& rank, uint32_t& position) {
    while (n_taken_ == run_.size() && heap_.empty()) {
      if (next_turn_ == later_.size()) return false;
      run_ = std::move(later_[next_turn_++]);
      n_taken_ = 0;
      if (!std::is_sorted(run_.begin(), run_.end())) std::sort(run_.begin(), run_.end());
    }
    const bool from_heap = n_taken_ == run_.size() || (!heap_.empty() && heap_.front() < run_[n_taken_]);
    uint64_t entry = 0;
    if (from_heap) {
      std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
      entry = heap_.back();
      heap_.pop_back();
    } else {
      entry = run_[n_taken_++];
    }
    rank = static_cast<uint32_t>(entry >> 32);
    position = static_cast<uint32_t>(entry);
    return true;
  }

 private:
  static constexpr size_t kLongBytes = 4096;

  int shift_;                                 // of a rank to its turn; 32: all have the same
  std::vector<std::vector<uint64_t>> later_;  // rank << 32 | position, by turn
  size_t next_turn_ = 0;
  std::vector<uint64_t> run_;  // the present turn, ascending,
  size_t n_taken_ = 0;         // and how many of it are done
  std::vector<uint64_t> heap_;
};

// A token of a piece, at the position of its first byte, in a list that joins shorten.
struct Node {
  TokenId token;   // kNoToken: joined to an earlier node
  TokenId joined;  // what this node and the next become,
  uint32_t rank;   // and when; kNone: they do not join
  uint32_t previous, next;
};

std::vector<Node> nodes_of(std::string_view piece, const std::array<TokenId, 256>& byte_tokens) {
  const auto n = static_cast<uint32_t>(piece.size());
  std::vector<Node> nodes(n);
  for (uint32_t i = 0; i < n; ++i) {
    const TokenId token = byte_tokens[static_cast<uint8_t>(piece[i])];
    nodes[i] = {token, kNoToken, kNone, i == 0 ? kNone : i - 1, i + 1 == n ? kNone : i + 1};
  }
  return nodes;
}

// `join(left, right)` gives rank and token of a pair, rank kNone when it does not join.
template <class Join>
void merge_long(std::vector<Node> nodes, const Join& join, std::vector<TokenId>& out) {
  JoinQueue queue(nodes.size());
  const auto look_up = [&](uint32_t position) {
    Node& node = nodes[position];
    const auto found = join(node.token, nodes[node.next].token);
    node.joined = found.token;
    node.rank = found.rank;
    if (node.rank != kNone) queue.push(node.rank, position);
  };
  for (uint32_t i = 0; i + 1 < nodes.size(); ++i) look_up(i);

  uint32_t rank = 0;
  uint32_t position = 0;
  while (queue.pop(rank, position)) {
    Node& node = nodes[position];
    // A rank belongs to one pair: another rank means that the pair has changed since this was pushed.
    if (node.token == kNoToken || node.rank != rank) continue;
    Node& right = nodes[node.next];
    right.token = kNoToken;
    node.token = node.joined;
    node.rank = kNone;
    node.next = right.next;
    if (node.next != kNone) {
      nodes[node.next].previous = position;
      look_up(position);
    }
    if (node.previous != kNone) look_up(node.previous);
  }
  for (uint32_t i = 0; i != kNone; i = nodes[i].next) out.push_back(nodes[i].token);
}

}  // namespace

void Bpe::encode_long(std::string_view piece, std::vector<TokenId>& out) const {
  merge_long(nodes_of(piece, byte_tokens_), [this](TokenId left, TokenId right) { return join(left, right); }, out);
}

void Bpe::encode_without(std::string_view piece, const std::vector<bool>& forbidden, std::vector<TokenId>& out) const {
  const auto allowed = [&](TokenId left, TokenId right) {
    const Joined found = join(left, right);
    return found.rank != kNoRank && forbidden[static_cast<size_t>(found.token)] ? Joined{} : found;
  };
  merge_long(nodes_of(piece, byte_tokens_), allowed, out);
}

}  // namespace levin::text
