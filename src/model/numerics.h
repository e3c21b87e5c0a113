// How numbers are rounded between the equations: chosen once at load, printed at start, never seen by a kernel.
//
//   reference  f32 activations and caches, nothing rounded; the norms of the two latents with transformers' epsilon
//              of 1e-6, whatever rms_norm_eps says                   equality with transformers in float32
//   official   what DeepSeek's code does: e4m3 activations (1 x 128, power-of-two scales) into every product with an
//              FP8-stored matrix but kv_b_proj; indexer queries and keys Hadamard-rotated, then e4m3; latent cache e4m3
//              with a bf16 rotated part. DeepSeek-V4: index queries and keys rotated, then e2m1; key-value rows e4m3
//              in blocks of 64; experts' weights multiply the input of their down product, before it is rounded.
//              DeepSeek-V4.1: activations 1 x 32, index queries and keys e2m1 without rotation, key-value rows e4m3 in
//              blocks of 32, entries e2m1 in blocks of 16
//   fast       bf16 activations into matrix units, bf16 caches (or fp8 by --kv-cache-dtype); router and indexer head
//              weights f32
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "model/config.h"
#include "ops/moe.h"
#include "tensor/formats.h"

namespace levin {

enum class NumericsMode : uint8_t { kReference, kOfficial, kFast };

struct Numerics {
  NumericsMode mode = NumericsMode::kReference;
  ops::Operand fp8_input = ops::Operand::kF32;  // input of products with FP8-stored matrices
  ops::Operand input = ops::Operand::kF32;      // input of products with other matrices
  ops::Operand absorbed = ops::Operand::kF32;   // input of the products with the absorbed kv_b_proj
  CacheDType latent = CacheDType::kF32;
  CacheDType index_keys = CacheDType::kF32;
  bool fp4_index = false;       // index queries and keys are rounded to FP4 before they are stored
  bool rotate_index = true;     // index values in 8 bits or less are Hadamard-rotated first
  bool rounded_rows = false;    // of DeepSeek-V4.1: rows of the window are rounded to FP8, entries to FP4
  bool weigh_hidden = false;    // experts' weights multiply the input of the down product instead of its output
  bool fp8_draft_head = false;  // drafts are chosen with the head's weights in e4m3, tokens with the head as stored
  // Of the norms of the query and key-value latents; empty: the model's rms_norm_eps. GLM-5 was published without
  // saying which of the two it was trained with (model_spec.md 3.1).
  std::optional<float> latent_norm_eps = 1e-6f;

  // Index values in 8 bits or less are rotated first, so that no single column decides the scale.
  bool hadamard() const { return rotate_index && (index_keys == CacheDType::kFp8 || fp4_index); }
  std::string describe() const;  // one line for the start-up print
};

std::string_view numerics_mode_name(NumericsMode mode);

// `kv_cache_dtype` is "auto", "bf16" or "fp8"; other than auto it is for `fast` alone (the other modes fix their
// caches).
Result<Numerics> make_numerics(NumericsMode mode, std::string_view kv_cache_dtype);
// The same mode for a family, as its own code has it.
Numerics numerics_of_family(Numerics numerics, const Architecture& family);

}  // namespace levin
