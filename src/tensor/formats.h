// Formats of cache rows (tensor/row_formats.h has their bytes), and the caches of one layer for the sequences of a step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tensor/row_formats.h"
#include "tensor/view.h"

namespace levin {

std::string_view cache_dtype_name(CacheDType dtype);  // "f32", "bf16", "fp8"

LatentFormat latent_format(CacheDType dtype, int64_t d_latent, int64_t d_rope);
LatentFormat key_value_format(CacheDType dtype, int64_t d_head, int64_t d_rope);
IndexKeyFormat index_key_format(CacheDType dtype, int64_t d_index);

// One layer's rings of compressor state, for the sequences of a step.
struct StateRings {
  std::byte* rings = nullptr;  // ring i at rings + i * (n_rows + n_ends * format.n_before) * format.row_bytes()
  int64_t n_rows = 0;
  int64_t n_ends = 0;          // of blocks; 0: they are not kept
  int64_t n_block_tokens = 1;  // of a block
  StateFormat format;
  View ids;  // [B] i32: ring of each sequence

  // Values of a token; its gates follow them.
  float* row(int64_t seq, int64_t position) const { return at(seq, position % n_rows); }
  // The same where they stand with the end of the token's block; null for a token that no later block looks back at.
  float* end_row(int64_t seq, int64_t position) const {
    const int64_t row = position % n_block_tokens - (n_block_tokens - format.n_before);
    if (n_ends == 0 || row < 0) return nullptr;
    return at(seq, n_rows + position / n_block_tokens % n_ends * format.n_before + row);
  }

 private:
  float* at(int64_t seq, int64_t row) const {
    const int64_t ring = int64_t{ids.data<int32_t>()[seq]} * (n_rows + n_ends * format.n_before);
    return reinterpret_cast<float*>(rings + (ring + row) * format.row_bytes());
  }
};

// One layer's cached rows of one kind, for the sequences of a step.
struct PagedRows {
  std::byte* pages = nullptr;  // page id p starts at pages + p * page_bytes
  int64_t page_bytes = 0;
  // [B, max pages] i32: page id of each sequence's page number; unused entries are never read
  View tables;
  int64_t n_pages = 0;  // of the array; needed on CUDA alone

  std::byte* page(int64_t seq, int64_t page_number) const {
    return pages + int64_t{tables.row<int32_t>(seq)[page_number]} * page_bytes;
  }
};

}  // namespace levin
