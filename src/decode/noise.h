// Gumbel noise for sampling, a pure function of (seed, position, token, choice): whatever else runs, the same place
// gets the same noise.
//
// Philox4x32-10 with the 64-bit seed as key and (token / 4, position, choice, 0) as counter; lane token mod 4.
//   u = (x + 1/2) / 2^32,  g = -ln(-ln u), in double precision with our own logarithm.
// Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
#pragma once

#include <array>
#include <cstdint>

namespace levin {

using PhiloxBlock = std::array<uint32_t, 4>;

PhiloxBlock philox4x32_10(PhiloxBlock counter, std::array<uint32_t, 2> key);

struct NoisePlace {
  uint64_t seed = 0;
  uint32_t position = 0;  // absolute position of the token to be chosen
  uint32_t choice = 0;    // index among the answers to one request (n > 1)
};

double gumbel_noise(const NoisePlace& place, uint32_t token);

// No noise is larger: g at the largest u.
constexpr double kMaxGumbelNoise = 22.8739;

}  // namespace levin
