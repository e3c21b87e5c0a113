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

// One layer's rings of a recurrent state (tensor/row_formats.h), for the sequences of a step. What is kept of a position is
// found by the position alone, so to undo tokens is to run others in their place.
struct RecurrentRings {
  std::byte* rings = nullptr;
  int64_t n_undone = 0;
  int64_t n_ends = 0;
  int64_t n_block_tokens = 1;  // of a block: a multiple of kStateTokens
  RecurrentFormat format;
  View ids;  // [B] i32: ring of each sequence

  float* conv_row(int64_t seq, int64_t position) const {
    return ring(seq) + position % n_rows() * format.conv_values();
  }
  float* update_row(int64_t seq, int64_t position) const {
    return updates(seq) + position % n_rows() * format.update_values();
  }
  // The state after n_tokens tokens, a multiple of kStateTokens.
  float* state(int64_t seq, int64_t n_tokens) const {
    return states(seq) + n_tokens / kStateTokens % n_states() * format.state_values();
  }
  // The same where they stand with the end of a block; null for a row that the next block does not look back at, and for
  // a state that ends none.
  float* end_conv_row(int64_t seq, int64_t position) const {
    const int64_t row = position % n_block_tokens - (n_block_tokens - (format.n_taps - 1));
    return row < 0 ? nullptr : end(seq, position / n_block_tokens) + row * format.conv_values();
  }
  float* end_state(int64_t seq, int64_t n_tokens) const {
    if (n_tokens % n_block_tokens != 0) return nullptr;
    return end(seq, n_tokens / n_block_tokens - 1) + (format.n_taps - 1) * format.conv_values();
  }

  int64_t n_rows() const { return format.ring_rows(n_undone); }

 private:
  int64_t n_states() const { return format.ring_states(n_undone); }
  float* ring(int64_t seq) const {
    return reinterpret_cast<float*>(rings + ids.data<int32_t>()[seq] * format.ring_bytes(n_undone, n_ends));
  }
  float* updates(int64_t seq) const { return ring(seq) + n_rows() * format.conv_values(); }
  float* states(int64_t seq) const { return updates(seq) + n_rows() * format.update_values(); }
  float* end(int64_t seq, int64_t block) const {
    return states(seq) + n_states() * format.state_values() + block % n_ends * format.end_values();
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
