#include "ops/cache_rows.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/cpu/kernels.h"
#include "ops/cpu/row_loops.h"
#include "ops/cpu_backend.h"

namespace levin {
namespace {

// Rows are cut over threads in runs of this many, so that a decode step does not wake threads for a kilobyte.
constexpr int64_t kRowsPerThread = 8;

struct Place {
  std::byte* page = nullptr;
  int64_t row = 0;  // of the page
};

// Where the token goes; a null page means nowhere.
Place place_of(std::string_view op, const PagedRows& cache, int64_t seq, int64_t slot) {
  if (slot < 0) return {};
  LEVIN_CHECK(seq >= 0 && seq < cache.tables.dim(0) && slot / kPageTokens < cache.tables.dim(1),
              "{}: seq {} slot {} lies outside cache.tables {}", op, seq, slot, cache.tables.describe());
  return {cache.page(seq, slot / kPageTokens), slot % kPageTokens};
}

void store_f32(const float* x, int64_t n, std::byte* out) { std::memcpy(out, x, static_cast<size_t>(n) * 4); }

void store_bf16(const CpuBackend& cpu, const float* x, int64_t n, std::byte* out) {
  cpu.kernels().matmul.round_to_bf16({.x = x, .out = out, .n_rows = 1, .k = n});
}

void store_fp8(const CpuBackend& cpu, const float* x, int64_t n, std::byte* out, std::byte* scales) {
  cpu.kernels().matmul.quantize_fp8(
      {.x = x, .out = out, .scale = reinterpret_cast<float*>(scales), .n_rows = 1, .k = n});
}

// With one scale per `scale_columns`, which is not above the width that the kernel gives a scale to.
void store_fp8_blocks(const CpuBackend& cpu, const LatentFormat& format, const float* c_kv, std::byte* row) {
  for (int64_t block = 0; block < format.n_scales(); ++block) {
    const int64_t begin = block * format.scale_columns;
    store_fp8(cpu, c_kv + begin, std::min(format.scale_columns, format.d_latent - begin), row + begin,
              row + format.scale_offset + 4 * block);
  }
}

void store_latent(const CpuBackend& cpu, const LatentFormat& format, const float* c_kv, const float* k_rope,
                  std::byte* row) {
  switch (format.dtype) {
    case CacheDType::kF32:
      store_f32(c_kv, format.d_latent, row);
      return store_f32(k_rope, format.d_rope, row + format.rope_offset);
    case CacheDType::kBF16:
      store_bf16(cpu, c_kv, format.d_latent, row);
      return store_f32(k_rope, format.d_rope, row + format.rope_offset);
    case CacheDType::kFp8:
      store_fp8_blocks(cpu, format, c_kv, row);
      return store_bf16(cpu, k_rope, format.d_rope, row + format.rope_offset);
  }
}

void store_index_key(const CpuBackend& cpu, const IndexKeyFormat& format, const float* key, const Place& place) {
  std::byte* out = place.page + place.row * format.key_bytes;
  switch (format.dtype) {
    case CacheDType::kF32:
      return store_f32(key, format.d_index, out);
    case CacheDType::kBF16:
      return store_bf16(cpu, key, format.d_index, out);
    case CacheDType::kFp8:
      return store_fp8(cpu, key, format.d_index, out, place.page + format.scale_offset + place.row * 4);
  }
}

}  // namespace

void CpuBackend::append_latent(const ops::AppendLatent& a) {
  const int64_t n_rows = a.slot.dim(0);
  pool_.parallel_for(n_rows, kRowsPerThread, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const Place place = place_of("append_latent", a.cache, a.seq.data<int32_t>()[t], a.slot.data<int32_t>()[t]);
      if (place.page == nullptr) continue;
      store_latent(*this, a.format, a.c_kv.row<float>(t), a.k_rope.row<float>(t),
                   place.page + place.row * a.format.row_bytes);
    }
  });
}

void CpuBackend::append_index_keys(const ops::AppendIndexKeys& a) {
  const int64_t n_rows = a.slot.dim(0);
  LEVIN_CHECK(a.format.dtype != CacheDType::kFp8 || a.format.d_index <= kQuantBlock,
              "append_index_keys: fp8 keys of width {} with one scale, at most {} share one", a.format.d_index,
              kQuantBlock);
  pool_.parallel_for(n_rows, kRowsPerThread, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const Place place = place_of("append_index_keys", a.cache, a.seq.data<int32_t>()[t], a.slot.data<int32_t>()[t]);
      if (place.page != nullptr) store_index_key(*this, a.format, a.keys.row<float>(t), place);
    }
  });
}

}  // namespace levin
