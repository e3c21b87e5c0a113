// How DeepSeek-V4.1 chooses rows of its n-gram memory (model_spec.md 11.6): multipliers, primes and offsets follow from the
// config alone.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "arch/deepseek_v41/config.h"

namespace levin::deepseek_v41 {

// The numbers of numpy.random.default_rng(seed): PCG64 seeded by SeedSequence.
class NumpyRandom {
 public:
  explicit NumpyRandom(uint32_t seed);

  uint64_t next();
  // As integers(0, end) of a 64-bit type; end - 1 is above 2^32, below which numpy draws otherwise.
  uint64_t below(uint64_t end);

 private:
  unsigned __int128 state_ = 0;
  unsigned __int128 increment_ = 0;
};

struct EngramHash {
  std::vector<int64_t> multipliers;  // Ne
  std::vector<int64_t> primes;       // (Ne - 1) He
  std::vector<int64_t> offsets;      // the same
  int64_t n_rows() const { return offsets.back() + primes.back(); }
};

// Of every layer of `engram`, in order: primes are not used twice.
std::vector<EngramHash> engram_hashes(const EngramConfig& engram);

}  // namespace levin::deepseek_v41
