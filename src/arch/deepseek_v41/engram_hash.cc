#include "arch/deepseek_v41/engram_hash.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <set>

#include "base/check.h"

namespace levin::deepseek_v41 {
namespace {

using Pool = std::array<uint32_t, 4>;

// One of the two hashes of SeedSequence, whose constant changes from call to call.
class Hash {
 public:
  Hash(uint32_t constant, uint32_t factor) : constant_(constant), factor_(factor) {}
  uint32_t operator()(uint32_t value) {
    value ^= constant_;
    constant_ *= factor_;
    value *= constant_;
    return value ^ value >> 16;
  }

 private:
  uint32_t constant_, factor_;
};

uint32_t mix(uint32_t x, uint32_t y) {
  const uint32_t mixed = 0xCA01F9DDu * x - 0x4973F715u * y;
  return mixed ^ mixed >> 16;
}

Pool seed_pool(uint32_t seed) {
  Hash hash(0x43B0D7E5u, 0x931E8875u);
  Pool pool{};
  for (size_t i = 0; i < pool.size(); ++i) pool[i] = hash(i == 0 ? seed : 0);
  for (size_t from = 0; from < pool.size(); ++from) {
    for (size_t to = 0; to < pool.size(); ++to) {
      if (from != to) pool[to] = mix(pool[to], hash(pool[from]));
    }
  }
  return pool;
}

unsigned __int128 joined(uint64_t high, uint64_t low) { return static_cast<unsigned __int128>(high) << 64 | low; }

bool is_prime(int64_t n) {
  if (n < 4) return n > 1;
  if (n % 2 == 0) return false;
  for (int64_t d = 3; d * d <= n; d += 2) {
    if (n % d == 0) return false;
  }
  return true;
}

std::vector<int64_t> multipliers(const EngramConfig& engram, int layer) {
  const int64_t end = std::max<int64_t>(1, std::numeric_limits<int64_t>::max() / engram.n_classes / 2);
  NumpyRandom random(10007 * static_cast<uint32_t>(layer));
  std::vector<int64_t> out;
  for (int64_t i = 0; i < engram.n_gram; ++i)
    out.push_back(static_cast<int64_t>(random.below(static_cast<uint64_t>(end))) * 2 + 1);
  return out;
}

}  // namespace

NumpyRandom::NumpyRandom(uint32_t seed) {
  const Pool pool = seed_pool(seed);
  Hash hash(0x8B51F9DDu, 0x58F38DEDu);
  std::array<uint64_t, 4> words{};
  for (size_t i = 0; i < 2 * words.size(); ++i) {
    words[i / 2] |= uint64_t{hash(pool[i % pool.size()])} << (i % 2 * 32);
  }
  increment_ = joined(words[2], words[3]) << 1 | 1;
  next();
  state_ += joined(words[0], words[1]);
  next();
}

uint64_t NumpyRandom::next() {
  state_ = state_ * joined(2549297995355413924u, 4865540595714422341u) + increment_;
  const auto high = static_cast<uint64_t>(state_ >> 64), low = static_cast<uint64_t>(state_);
  const auto turn = static_cast<int>(high >> 58);
  return std::rotr(high ^ low, turn);
}

uint64_t NumpyRandom::below(uint64_t end) {
  LEVIN_CHECK(end > uint64_t{1} << 32, "a random number below {}", end);
  while (true) {  // Lemire: the high half of a product, the few low halves refused that would favour some
    const unsigned __int128 product = static_cast<unsigned __int128>(next()) * end;
    if (static_cast<uint64_t>(product) >= -end % end) return static_cast<uint64_t>(product >> 64);
  }
}

std::vector<EngramHash> engram_hashes(const EngramConfig& engram) {
  std::vector<EngramHash> out;
  std::set<int64_t> used;
  for (const int layer : engram.layers) {
    EngramHash& hash =
        out.emplace_back(EngramHash{.multipliers = multipliers(engram, layer), .primes = {}, .offsets = {}});
    int64_t n_rows = 0;
    for (int64_t column = 0; column < engram.n_columns(); ++column) {
      int64_t prime = column % engram.n_hashes == 0 ? engram.first_prime : hash.primes.back() + 1;
      while (!is_prime(prime) || used.contains(prime)) ++prime;
      used.insert(prime);
      hash.primes.push_back(prime);
      hash.offsets.push_back(n_rows);
      n_rows += prime;
    }
  }
  return out;
}

}  // namespace levin::deepseek_v41
