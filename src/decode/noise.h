// Gumbel noise for sampling, a pure function of (seed, position, token, choice): whatever else runs, the same place
// gets the same noise.
//
// Philox4x32-10 with the 64-bit seed as key and (token / 4, position, choice, 0) as counter; lane token mod 4.
//   u = (x + 1/2) / 2^32,  g = -ln(-ln u), in double precision with our own logarithm.
#pragma once

#include <bit>
#include <cstdint>

#include "base/philox.h"

namespace levin {

struct NoisePlace {
  uint64_t seed = 0;
  uint32_t position = 0;  // absolute position of the token to be chosen
  uint32_t choice = 0;    // index among the answers to one request (n > 1)
};

// x of the tokens 4 * (token / 4) and the three after it.
PhiloxBlock noise_bits(const NoisePlace& place, uint32_t token);
double gumbel_of(uint32_t x);  // g; of a token, x is lane token % 4 of its noise_bits()

// No noise is larger: g at the largest u.
constexpr double kMaxGumbelNoise = 22.8739;

// Not less than gumbel_of(x), and much cheaper: as -ln u >= 1 - u = (y + 1/2) / 2^32 with y = ~x, and y has 32 bits less
// its leading zeros.
inline double gumbel_bound(uint32_t x) { return 0.693148 * (std::countl_zero(~x) + 1); }

}  // namespace levin
