// Fault words: what went wrong in a row of a step. One i32 a row, which the caller clears; kernels only set bits.
#pragma once

#include <cstdint>

namespace levin::cuda::plain {

enum Fault : int32_t {
  kNanIndexScore = 1,   // the row selected its lowest candidates
  kNanExpertScore = 2,  // the row goes to the experts with the lowest ids, with weight 0
  kNanLogit = 4,        // the row chose token 0
  kNotFinite = 8,       // a value of the row is NaN or infinite
};

}  // namespace levin::cuda::plain
