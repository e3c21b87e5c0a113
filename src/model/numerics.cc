#include "model/numerics.h"

#include <fmt/core.h>

#include <array>
#include <utility>

#include "model/architecture.h"

namespace levin {
namespace {

constexpr std::array<std::pair<NumericsMode, std::string_view>, 3> kModes = {{
    {NumericsMode::kReference, "reference"},
    {NumericsMode::kOfficial, "official"},
    {NumericsMode::kFast, "fast"},
}};

std::string_view operand_name(ops::Operand operand) {
  switch (operand) {
    case ops::Operand::kF32:
      return "f32";
    case ops::Operand::kBF16:
      return "bf16";
    case ops::Operand::kFp8:
      return "fp8";
    case ops::Operand::kFp8By32:
      return "fp8 in groups of 32";
  }
  return "unknown";
}

Numerics fixed_numerics(NumericsMode mode) {
  using ops::Operand;
  switch (mode) {
    case NumericsMode::kReference:
      return {};
    case NumericsMode::kOfficial:
      return {.mode = mode,
              .fp8_input = Operand::kFp8,
              .input = Operand::kF32,
              .absorbed = Operand::kF32,
              .latent = CacheDType::kFp8,
              .index_keys = CacheDType::kFp8,
              .latent_norm_eps = std::nullopt};
    case NumericsMode::kFast:
      break;
  }
  return {.mode = mode,
          .fp8_input = Operand::kBF16,
          .input = Operand::kBF16,
          .absorbed = Operand::kBF16,
          .latent = CacheDType::kBF16,
          .index_keys = CacheDType::kBF16,
          .fp8_draft_head = true,
          .latent_norm_eps = std::nullopt};
}

}  // namespace

std::string_view numerics_mode_name(NumericsMode mode) {
  for (const auto& [value, name] : kModes) {
    if (value == mode) return name;
  }
  return "unknown";
}

namespace {

std::string_view rounding_text(const Numerics& n) {
  if (n.fp4_index && n.rounded_rows) return " rounded to fp4; rows of windows to fp8, entries to fp4";
  if (n.fp4_index) return " after a Hadamard rotation and rounding to fp4";
  return n.hadamard() ? " after a Hadamard rotation" : "";
}

}  // namespace

std::string Numerics::describe() const {
  return fmt::format("{}: products with FP8 matrices take {}, others {}; latent cache {}, index keys {}{}{}",
                     numerics_mode_name(mode), operand_name(fp8_input), operand_name(input), cache_dtype_name(latent),
                     cache_dtype_name(index_keys), rounding_text(*this),
                     weigh_hidden ? "; experts weighted before their down product" : "");
}

Numerics numerics_of_family(Numerics numerics, const Architecture& family) {
  return family.adjust_numerics != nullptr ? family.adjust_numerics(numerics) : numerics;
}

Result<Numerics> make_numerics(NumericsMode mode, std::string_view kv_cache_dtype) {
  Numerics numerics = fixed_numerics(mode);
  if (kv_cache_dtype == "auto") return numerics;
  if (kv_cache_dtype != "bf16" && kv_cache_dtype != "fp8") {
    return Error{ErrorKind::kUsage,
                 fmt::format("--kv-cache-dtype is '{}', expected one of auto, bf16, fp8", kv_cache_dtype)};
  }
  if (mode != NumericsMode::kFast) {
    return Error{
        ErrorKind::kUsage,
        fmt::format("--kv-cache-dtype {} works only with --numerics fast: {} has caches of {}; omit one of the two",
                    kv_cache_dtype, numerics_mode_name(mode), cache_dtype_name(numerics.latent))};
  }
  if (kv_cache_dtype == "fp8") numerics.latent = numerics.index_keys = CacheDType::kFp8;
  return numerics;
}

}  // namespace levin
