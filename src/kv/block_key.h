// The name of a block of tokens (kv/cache.h): a digest of all tokens up to its end, so that equal names mean equal
// prefixes.
#pragma once

#include <span>

#include "base/digest.h"

namespace levin {

using BlockKey = Digest;

// Of the block with these tokens that follows the block `before`; first_key() of an index for the first.
inline BlockKey key_after(const BlockKey& before, std::span<const int32_t> tokens) {
  return Sha256().add(before).add(std::as_bytes(tokens)).finish();
}

}  // namespace levin
