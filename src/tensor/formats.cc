#include "tensor/formats.h"

namespace levin {

std::string_view cache_dtype_name(CacheDType dtype) {
  switch (dtype) {
    case CacheDType::kF32:
      return "f32";
    case CacheDType::kBF16:
      return "bf16";
    case CacheDType::kFp8:
      return "fp8";
  }
  return "unknown";
}

LatentFormat latent_format(CacheDType dtype, int64_t d_latent, int64_t d_rope) {
  LatentFormat f{.dtype = dtype, .d_latent = d_latent, .d_rope = d_rope};
  switch (dtype) {
    case CacheDType::kF32:
      f.rope_offset = 4 * d_latent;
      f.row_bytes = f.rope_offset + 4 * d_rope;
      break;
    case CacheDType::kBF16:
      f.rope_offset = (2 * d_latent + 3) / 4 * 4;
      f.row_bytes = f.rope_offset + 4 * d_rope;
      break;
    case CacheDType::kFp8:
      f.scale_offset = (d_latent + 3) / 4 * 4;
      f.rope_offset = f.scale_offset + 4 * f.n_scales();
      f.row_bytes = (f.rope_offset + 2 * d_rope + 3) / 4 * 4;
      break;
  }
  return f;
}

IndexKeyFormat index_key_format(CacheDType dtype, int64_t d_index) {
  const int64_t element = dtype == CacheDType::kF32 ? 4 : dtype == CacheDType::kBF16 ? 2 : 1;
  return {.dtype = dtype,
          .d_index = d_index,
          .key_bytes = element * d_index,
          .scale_offset = element * d_index * kPageTokens};
}

}  // namespace levin
