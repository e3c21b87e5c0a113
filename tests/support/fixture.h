// Fixtures: tiny checkpoints kept as `config.json`, a recipe `weights.json` and the right answers `oracle.safetensors`;
// `tokenizer.json` where the model depends on it.
// The weights are drawn from the recipe when they are needed.
//
//   weights.json  {"seed": u64, "sha256": hex, "tensors": [{"name", "dtype", "shape", "kind", ...}]}
//   word i        splitmix64's mix of (fnv1a64(name) ^ seed) + (i + 1) * 0x9E3779B97F4A7C15; i is the flat row-major
//                 index of the stored element, top(b) the word's top b bits
//   kind          uniform     (2 * top(8) - 255) * 2^exp                      BF16 or F32
//                 around_one  1 + (top(4) - 8) / 32                           BF16 or F32
//                 pow2        2^(exp + top(1))                                BF16 or F32
//                 fp8         the byte (top(8) & 0x80) | (0x58 + (top(8) & 0x1F))
//                 e8m0        the byte 127 + exp + top(1)
//                 fp4         the byte top(8): two e2m1 codes, low nibble first
//                 experts     row t: (word t mod n + j) mod n for j = 0, 1, ...  I64, two dimensions
//   sha256        of the stored bytes of all tensors in ascending order of name
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "io/safetensors.h"

namespace levin::test {

struct DrawnTensor {
  std::string name;
  io::StoredDtype dtype = io::StoredDtype::kF32;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
};

// The folder of a fixture in the repository: tests/fixtures/<name>.
std::filesystem::path fixture_folder(std::string_view name);

// All tensors of a recipe, ascending by name. A checksum that differs is an error.
Result<std::vector<DrawnTensor>> draw_tensors(const std::filesystem::path& weights_json);

// Writes `config.json`, `model.safetensors` and the fixture's `tokenizer.json`, if it has one, into `out`, which is made if it is not there.
Status materialise(const std::filesystem::path& fixture, const std::filesystem::path& out);

// Lower-case hex.
std::string sha256_hex(std::span<const DrawnTensor> tensors);

}  // namespace levin::test
