#include "decode/noise.h"

#include "base/math.h"

namespace levin {

PhiloxBlock philox4x32_10(PhiloxBlock c, std::array<uint32_t, 2> key) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = kMultiplier0 * c[0], p1 = kMultiplier1 * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ key[0], static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ key[1], static_cast<uint32_t>(p0)};
    key = {key[0] + kWeyl0, key[1] + kWeyl1};
  }
  return c;
}

PhiloxBlock noise_bits(const NoisePlace& place, uint32_t token) {
  return philox4x32_10({token / 4, place.position, place.choice, 0},
                       {static_cast<uint32_t>(place.seed), static_cast<uint32_t>(place.seed >> 32)});
}

double gumbel_of(uint32_t x) {
  const double u = (static_cast<double>(x) + 0.5) * 0x1p-32;
  return -log_exact(-log_exact(u));
}

}  // namespace levin
