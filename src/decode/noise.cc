#include "decode/noise.h"

#include "base/math.h"

namespace levin {

PhiloxBlock noise_bits(const NoisePlace& place, uint32_t token) {
  return philox4x32_10({token / 4, place.position, place.choice, 0},
                       {static_cast<uint32_t>(place.seed), static_cast<uint32_t>(place.seed >> 32)});
}

double gumbel_of(uint32_t x) {
  const double u = (static_cast<double>(x) + 0.5) * 0x1p-32;
  return -log_exact(-log_exact(u));
}

}  // namespace levin
