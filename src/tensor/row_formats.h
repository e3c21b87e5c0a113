// The byte layout of cache rows, in one place.
//
// Every cache is an array of pages of kPageTokens tokens; a block table maps a sequence's page number to a page id, and
// one id names the same page in every layer's array. Within a page:
//
//   latent     kPageTokens rows, each: latent (Rk values), for fp8 then its scales, then the rotated key part (Dr)
//                f32    Rk f32, Dr f32
//                bf16   Rk bf16, Dr f32                                  1280 bytes for 512 + 64
//                fp8    Rk e4m3, ceil(Rk / 128) f32 scales, Dr bf16      656 bytes, as DeepSeek's kernels have it
//              The rotated part decides which positions match: rounding it to bf16 changed one top token in 200 on the
//              demonstration model, rounding the latent one in 400; so the bf16 row keeps it f32.
//   key-value  the same for DeepSeek-V4, whose rows are both key and value: the whole row is the value, its first
//              Dh - Dr columns take the place of the latent, and fp8 scales cover 64 columns. Rows of the window and
//              entries have this form; a page of entries has kPageTokens entries
//                fp8    448 e4m3, 7 f32 scales, 64 bf16                  604 bytes for 448 + 64
//   index key  all keys of the page, then for fp8 all scales
//                f32    kPageTokens x Di f32
//                bf16   kPageTokens x Di bf16
//                fp8    kPageTokens x Di e4m3, kPageTokens f32 scales    8192 + 256 bytes for Di = 128, 132 a token
//
// value = code * scale. There is one latent scale per row and 128 columns and one index-key scale per key; all are
// powers of two (base/numbers.h, e4m3_pow2_scale).
//
//   state      the values and gates of the last tokens in a compressor of DeepSeek-V4, until their entry is complete
//              and can no longer be undone: per sequence one ring of rows, token p in row p mod n_rows; each row has C
//              values, then C gates, f32. They are not rounded, because they are inputs of sums. Where entries overlap,
//              the rows at the ends of the last n_ends blocks of tokens (kv/cache.h) are also kept, after the ring: a
//              long step overwrites them in the ring before they can be copied.
//
//   recurrent  what a layer with a recurrent state caches instead of rows by token: per sequence one ring with rows of the
//              last tokens, for the short convolution (its inputs) and for the state (its updates), and the state itself
//              after the last multiples of kStateTokens. Then the ends of the last n_ends blocks: the convolution's last
//              rows and the state. All f32, never rounded
//
// The structs below have only plain members, because CPU kernels, which are compiled for newer processors, may include
// few headers (kernels/cpu/simd.h). tensor/formats.h fills them and describes whole caches.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace levin {

constexpr int64_t kPageTokens = 64;     // P
constexpr int64_t kQuantBlock = 128;    // columns that share an activation or latent scale
constexpr int64_t kKeyValueBlock = 64;  // columns that share a scale of a key-value row

enum class CacheDType : uint8_t { kF32, kBF16, kFp8 };

struct LatentFormat {
  CacheDType dtype = CacheDType::kF32;
  int64_t d_latent = 0;                 // Rk
  int64_t d_rope = 0;                   // Dr
  int64_t scale_columns = kQuantBlock;  // that share a scale; fp8 only
  bool rope_in_value = false;           // the value is the whole row instead of its latent part
  int64_t scale_offset = 0;             // bytes from the row's start; fp8 only
  int64_t rope_offset = 0;              // bytes from the row's start
  int64_t row_bytes = 0;

  LEVIN_HOST_DEVICE bool rope_is_f32() const { return dtype != CacheDType::kFp8; }  // otherwise bf16
  LEVIN_HOST_DEVICE int64_t d_value() const { return rope_in_value ? d_latent + d_rope : d_latent; }
  LEVIN_HOST_DEVICE int64_t n_scales() const { return (d_latent + scale_columns - 1) / scale_columns; }
  LEVIN_HOST_DEVICE int64_t page_bytes() const { return row_bytes * kPageTokens; }
};

struct IndexKeyFormat {
  CacheDType dtype = CacheDType::kF32;
  int64_t d_index = 0;       // Di
  int64_t key_bytes = 0;     // one key, without its scale
  int64_t scale_offset = 0;  // bytes from the page's start; fp8 only

  LEVIN_HOST_DEVICE int64_t page_bytes() const {
    return scale_offset + (dtype == CacheDType::kFp8 ? kPageTokens * 4 : 0);
  }
};

struct StateFormat {
  int64_t n_channels = 0;  // C
  int64_t n_tokens = 0;    // that an entry pools
  int64_t n_before = 0;    // of these, tokens before the entry's own; above 0 if entries overlap

  LEVIN_HOST_DEVICE int64_t row_bytes() const { return 8 * n_channels; }
  // Rows of a ring in which an entry can be recomputed after up to n_undone tokens were undone.
  LEVIN_HOST_DEVICE int64_t ring_rows(int64_t n_undone) const { return n_tokens + n_undone; }
};

constexpr int64_t kStateTokens = 16;  // between two states that are kept; divides kPageTokens

struct RecurrentFormat {
  int64_t n_heads = 0;         // Hl
  int64_t d_head = 0;          // Dl, of queries, keys and values
  int64_t n_taps = 0;          // of the short convolution, at most kStateTokens
  int64_t n_block_tokens = 0;  // least block of tokens at whose end a state is worth keeping

  LEVIN_HOST_DEVICE int64_t d_heads() const { return n_heads * d_head; }
  LEVIN_HOST_DEVICE int64_t conv_values() const { return 3 * d_heads(); }              // of a row: q, k, v
  LEVIN_HOST_DEVICE int64_t update_values() const { return 3 * d_heads() + n_heads; }  // of a row: k, v, decay, beta
  LEVIN_HOST_DEVICE int64_t state_values() const { return d_heads() * d_head; }        // [Hl, Dl, Dl]
  LEVIN_HOST_DEVICE int64_t end_values() const { return (n_taps - 1) * conv_values() + state_values(); }
  // Rows that keep every token since the last state before any that may be run anew; and as many states.
  LEVIN_HOST_DEVICE int64_t ring_rows(int64_t n_undone) const { return n_undone + kStateTokens; }
  LEVIN_HOST_DEVICE int64_t ring_states(int64_t n_undone) const { return n_undone / kStateTokens + 2; }
  LEVIN_HOST_DEVICE int64_t ring_bytes(int64_t n_undone, int64_t n_ends) const {
    return 4 * (ring_rows(n_undone) * (conv_values() + update_values()) + ring_states(n_undone) * state_values() +
                n_ends * end_values());
  }
};

}  // namespace levin
