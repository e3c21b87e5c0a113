#include "kv/cache.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace levin {
namespace {

// Of the ring, and of the ends of blocks that are kept after it.
int64_t state_rows(const StateFormat& state, const CacheLimits& limits, int64_t n_block_tokens) {
  return state.ring_rows(limits.n_undone) + limits.open_blocks(n_block_tokens) * state.n_before;
}

int64_t key_bytes(const IndexKeyFormat& format) {
  return format.key_bytes + (format.dtype == CacheDType::kFp8 ? 4 : 0);
}

// Calls f(page, row, n) for rows begin .. end-1 of a table: n of them from `row` on stand in the page of this id.
template <class F>
void for_each_page(const std::vector<int32_t>& table, int64_t begin, int64_t end, F f) {
  for (int64_t row = begin; row < end;) {
    const int64_t n = std::min(end - row, kPageTokens - row % kPageTokens);
    const int64_t page_number = row / kPageTokens;
    LEVIN_CHECK(page_number < std::ssize(table), "rows to {} of a block table with {} pages", end, table.size());
    f(int64_t{table[static_cast<size_t>(page_number)]}, row % kPageTokens, n);
    row += n;
  }
}

template <class F>
void for_each_latent(const LatentFormat& format, std::byte* pages, const std::vector<int32_t>& table, int64_t begin,
                     int64_t end, F f) {
  for_each_page(table, begin, end, [&](int64_t page, int64_t row, int64_t n) {
    f(pages + page * format.page_bytes() + row * format.row_bytes, n * format.row_bytes);
  });
}

template <class F>
void for_each_key(const IndexKeyFormat& format, std::byte* pages, const std::vector<int32_t>& table, int64_t begin,
                  int64_t end, F f) {
  for_each_page(table, begin, end, [&](int64_t page, int64_t row, int64_t n) {
    std::byte* keys = pages + page * format.page_bytes();
    f(keys + row * format.key_bytes, n * format.key_bytes);
    if (format.dtype == CacheDType::kFp8) f(keys + format.scale_offset + 4 * row, 4 * n);
  });
}

PagedRows rows_of(const Buffer& pages, int64_t page_bytes, const View& tables) {
  return {.pages = pages.data(), .page_bytes = page_bytes, .tables = tables, .n_pages = pages.n_bytes() / page_bytes};
}

}  // namespace

PageKinds CacheLayout::page_kinds() const {
  PageKinds kinds{.n_window = n_window, .ratios = {}};
  for (const LayerCacheFormat& layer : layers) {
    if (!layer.compressed) continue;
    kinds.ratios.push_back(layer.compressed->ratio);
    kinds.mtp_entries = kinds.mtp_entries || layer.compressed->after_position;
  }
  std::sort(kinds.ratios.begin(), kinds.ratios.end());
  kinds.ratios.erase(std::unique(kinds.ratios.begin(), kinds.ratios.end()), kinds.ratios.end());
  return kinds;
}

bool CacheLayout::keeps_all_rows() const {
  return n_window == 0 && std::none_of(layers.begin(), layers.end(), [](const LayerCacheFormat& l) {
           return l.compressed.has_value() || l.recurrent.has_value();
         });
}

int64_t CacheLayout::block_tokens() const {
  int64_t n = kPageTokens;
  for (const LayerCacheFormat& layer : layers) {
    if (layer.compressed) n = std::lcm(n, layer.compressed->ratio);
    if (layer.recurrent) n = std::lcm(n, layer.recurrent->n_block_tokens);
  }
  return n;
}

int64_t CacheLayout::block_bytes() const {
  const int64_t n_tokens = block_tokens(), n_rows = n_window > 0 ? std::min(n_window, n_tokens) : n_tokens;
  const auto state_bytes = [](const StateFormat& state) { return state.n_before * state.row_bytes(); };
  int64_t n_bytes = 0;
  for (const LayerCacheFormat& layer : layers) {
    n_bytes += n_rows * layer.latent.row_bytes;
    if (layer.recurrent) n_bytes += 4 * layer.recurrent->end_values();
    const int64_t n_keys = layer.compressed ? n_tokens / layer.compressed->ratio : n_tokens;
    if (layer.index) n_bytes += n_keys * key_bytes(*layer.index);
    if (!layer.compressed) continue;
    n_bytes += n_keys * layer.compressed->entries.row_bytes + state_bytes(layer.compressed->state);
    if (layer.compressed->index_state) n_bytes += state_bytes(*layer.compressed->index_state);
  }
  return n_bytes;
}

int64_t CacheLayout::latent_bytes_per_token() const {
  int64_t page_bytes = 0;
  for (const LayerCacheFormat& layer : layers) {
    if (n_window == 0) page_bytes += layer.latent.page_bytes();
    if (layer.compressed) page_bytes += layer.compressed->entries.page_bytes() / layer.compressed->ratio;
  }
  return page_bytes / kPageTokens;
}

int64_t CacheLayout::index_bytes_per_token() const {
  int64_t page_bytes = 0;
  for (const LayerCacheFormat& layer : layers) {
    if (layer.index) page_bytes += layer.index->page_bytes() / (layer.compressed ? layer.compressed->ratio : 1);
  }
  return page_bytes / kPageTokens;
}

int64_t CacheLayout::bytes_per_sequence(const CacheLimits& limits) const {
  const auto ring_bytes = [&, n_block = block_tokens()](const StateFormat& state) {
    return state_rows(state, limits, n_block) * state.row_bytes();
  };
  int64_t n_bytes = 0;
  for (const LayerCacheFormat& layer : layers) {
    if (n_window > 0) n_bytes += limits.ring_pages(n_window) * layer.latent.page_bytes();
    if (layer.recurrent) n_bytes += layer.recurrent->ring_bytes(limits.n_undone, limits.open_blocks(block_tokens()));
    if (!layer.compressed) continue;
    n_bytes += ring_bytes(layer.compressed->state);
    if (layer.compressed->index_state) n_bytes += ring_bytes(*layer.compressed->index_state);
  }
  return n_bytes;
}

int64_t CacheLayout::spare_bytes(const CacheLimits& limits) const {
  const int64_t n_pages = limits.n_sequences - 1 + (page_kinds().mtp_entries ? limits.n_sequences / kPageTokens : 0);
  int64_t page_bytes = 0;
  for (const LayerCacheFormat& layer : layers) {
    if (!layer.compressed) continue;
    page_bytes += layer.compressed->entries.page_bytes() + (layer.index ? layer.index->page_bytes() : 0);
  }
  return n_pages * page_bytes;
}

KvCache::KvCache(const CacheLayout& layout, const SequencePools& pools) {
  const Status status = allocate(layout, pools, [](int64_t n_bytes) -> Result<Buffer> { return Buffer(n_bytes); });
  LEVIN_CHECK(status.ok(), "caches on the host: {}", status.error().message);
}

Result<KvCache> KvCache::on_device(DeviceMemory& memory, const CacheLayout& layout, const SequencePools& pools) {
  KvCache cache;
  cache.memory_ = &memory;
  LEVIN_TRY(cache.allocate(layout, pools, [&memory](int64_t n_bytes) { return memory.allocate(n_bytes); }));
  LEVIN_ASSIGN(std::unique_ptr<CopyStream> stream, memory.open_copy_stream());
  if (stream != nullptr) cache.copies_ = std::make_unique<BlockCopies>(memory, std::move(stream), cache.block_bytes());
  return cache;
}

Status KvCache::allocate(const CacheLayout& layout, const SequencePools& pools, const Allocate& allocate) {
  limits_ = pools.limits();
  n_window_ = layout.n_window;
  n_block_tokens_ = layout.block_tokens();
  n_block_bytes_ = layout.block_bytes();
  const std::vector<int64_t>& ratios = pools.kinds().ratios;
  const auto rings = [&](const StateFormat& state) {
    return allocate(pools.rings().n_pages() * state_rows(state, limits_, n_block_tokens_) * state.row_bytes());
  };
  layers_.reserve(layout.layers.size());
  for (const LayerCacheFormat& format : layout.layers) {
    Layer layer;
    layer.format = format;
    int64_t n_index_pages = pools.rows().n_pages();
    LEVIN_ASSIGN(layer.latent, allocate(format.latent.page_bytes() * n_index_pages));
    if (format.compressed) {
      const auto kind = std::find(ratios.begin(), ratios.end(), format.compressed->ratio) - ratios.begin();
      layer.kind = static_cast<size_t>(kind);
      n_index_pages = pools.entries(layer.kind).n_pages();
      LEVIN_ASSIGN(layer.entries, allocate(format.compressed->entries.page_bytes() * n_index_pages));
      LEVIN_ASSIGN(layer.state, rings(format.compressed->state));
      if (format.compressed->index_state) {
        LEVIN_ASSIGN(layer.index_state, rings(*format.compressed->index_state));
      }
    }
    if (format.recurrent) {
      const int64_t n_ends = limits_.open_blocks(n_block_tokens_);
      LEVIN_ASSIGN(layer.recurrent,
                   allocate(pools.rings().n_pages() * format.recurrent->ring_bytes(limits_.n_undone, n_ends)));
    }
    if (format.index) {
      LEVIN_ASSIGN(layer.index, allocate(format.index->page_bytes() * n_index_pages));
    }
    layers_.push_back(std::move(layer));
  }
  return {};
}

PagedRows KvCache::latent_rows(int layer, View tables) const {
  const Layer& l = layers_[layer];
  return rows_of(l.latent, l.format.latent.page_bytes(), tables);
}

PagedRows KvCache::index_rows(int layer, View tables) const {
  const Layer& l = layers_[layer];
  LEVIN_CHECK(l.format.index.has_value(), "layer {} has no index-key cache", layer);
  return rows_of(l.index, l.format.index->page_bytes(), tables);
}

PagedRows KvCache::entry_rows(int layer, View tables) const {
  const Layer& l = layers_[layer];
  LEVIN_CHECK(l.format.compressed.has_value(), "layer {} has no entries", layer);
  return rows_of(l.entries, l.format.compressed->entries.page_bytes(), tables);
}

StateRings KvCache::state(int layer, View rings) const {
  const Layer& l = layers_[layer];
  LEVIN_CHECK(l.format.compressed.has_value(), "layer {} has no compressor", layer);
  return rings_of(l.state, l.format.compressed->state, rings);
}

StateRings KvCache::index_state(int layer, View rings) const {
  const Layer& l = layers_[layer];
  LEVIN_CHECK(l.format.compressed && l.format.compressed->index_state, "layer {} has no index compressor", layer);
  return rings_of(l.index_state, *l.format.compressed->index_state, rings);
}

RecurrentRings KvCache::recurrent(int layer, View rings) const {
  const Layer& l = layers_[layer];
  LEVIN_CHECK(l.format.recurrent.has_value(), "layer {} has no recurrent state", layer);
  return recurrent_of(l.recurrent, *l.format.recurrent, rings);
}

RecurrentRings KvCache::recurrent_of(const Buffer& state, const RecurrentFormat& format, View ids) const {
  return {.rings = state.data(),
          .n_undone = limits_.n_undone,
          .n_ends = limits_.open_blocks(n_block_tokens_),
          .n_block_tokens = n_block_tokens_,
          .format = format,
          .ids = ids};
}

StateRings KvCache::rings_of(const Buffer& state, const StateFormat& format, View ids) const {
  return {.rings = state.data(),
          .n_rows = format.ring_rows(limits_.n_undone),
          .n_ends = limits_.open_blocks(n_block_tokens_),
          .n_block_tokens = n_block_tokens_,
          .format = format,
          .ids = ids};
}

template <class F>
void KvCache::for_each_recurrent(const RecurrentRings& rings, int64_t n_tokens, StatePlace place, F f) const {
  const bool ring = place == StatePlace::kRing;
  const RecurrentFormat& format = rings.format;
  for (int64_t p = n_tokens - (format.n_taps - 1); p < n_tokens; ++p) {
    float* row = ring ? rings.conv_row(0, p) : rings.end_conv_row(0, p);
    f(reinterpret_cast<std::byte*>(row), 4 * format.conv_values());
  }
  float* state = ring ? rings.state(0, n_tokens) : rings.end_state(0, n_tokens);
  f(reinterpret_cast<std::byte*>(state), 4 * format.state_values());
}

template <class F>
void KvCache::for_each_piece(const SequencePages& pages, int64_t block, StatePlace place, F f) const {
  const int64_t begin = block * n_block_tokens_, end = begin + n_block_tokens_;
  const int64_t first_row = n_window_ > 0 ? std::max(begin, end - n_window_) : begin;
  int32_t ring = pages.ring();
  const auto for_each_state = [&](const StateRings& rings) {
    for (int64_t p = end - rings.format.n_before; p < end; ++p) {
      float* row = place == StatePlace::kRing ? rings.row(0, p) : rings.end_row(0, p);
      f(reinterpret_cast<std::byte*>(row), rings.format.row_bytes());
    }
  };
  for (const Layer& l : layers_) {
    for_each_latent(l.format.latent, l.latent.data(), pages.rows(), first_row, end, f);
    if (l.format.recurrent)
      for_each_recurrent(recurrent_of(l.recurrent, *l.format.recurrent, View::of(&ring, {1})), end, place, f);
    if (!l.format.compressed) {
      if (l.format.index) for_each_key(*l.format.index, l.index.data(), pages.rows(), begin, end, f);
      continue;
    }
    const CompressedFormat& compressed = *l.format.compressed;
    const std::vector<int32_t>& entries = pages.entries(l.kind);
    const int64_t first = begin / compressed.ratio, last = end / compressed.ratio;
    for_each_latent(compressed.entries, l.entries.data(), entries, first, last, f);
    if (l.format.index) for_each_key(*l.format.index, l.index.data(), entries, first, last, f);
    const View ids = View::of(&ring, {1});
    for_each_state(rings_of(l.state, compressed.state, ids));
    if (compressed.index_state) for_each_state(rings_of(l.index_state, *compressed.index_state, ids));
  }
}

void KvCache::copy_block(const SequencePages& pages, int64_t block, std::span<std::byte> out) const {
  std::byte* to = out.data();
  for_each_piece(pages, block, StatePlace::kEnd, [&](const std::byte* from, int64_t n_bytes) {
    LEVIN_CHECK(out.data() + out.size() - to >= n_bytes, "{} bytes are too few for a block's record", out.size());
    if (memory_ != nullptr) {
      memory_->copy_bytes_out(to, from, n_bytes);
    } else {
      std::copy_n(from, n_bytes, to);
    }
    to += n_bytes;
  });
  if (memory_ != nullptr) wait_for(*memory_);
}

std::unique_ptr<BlockCopy> KvCache::start_copy(const SequencePages& pages, int64_t block,
                                               std::span<std::byte> out) const {
  if (copies_ != nullptr) {
    std::vector<BlockCopies::Piece> pieces;
    for_each_piece(pages, block, StatePlace::kEnd, [&](const std::byte* from, int64_t n_bytes) {
      pieces.push_back({.from = from, .n_bytes = n_bytes});
    });
    if (std::unique_ptr<BlockCopy> copy = copies_->start(pieces, out)) return copy;
  }
  copy_block(pages, block, out);
  return nullptr;
}

void KvCache::follow_steps() const {
  if (copies_ != nullptr) copies_->follow();
}

void KvCache::hold_steps() const {
  if (copies_ != nullptr) copies_->hold();
}

void KvCache::set_block(const SequencePages& pages, int64_t block, std::span<const std::byte> record) {
  const std::byte* from = record.data();
  for_each_piece(pages, block, StatePlace::kRing, [&](std::byte* to, int64_t n_bytes) {
    LEVIN_CHECK(record.data() + record.size() - from >= n_bytes, "{} bytes are too few for a block's record",
                record.size());
    if (memory_ != nullptr) {
      memory_->copy_bytes_in(to, from, n_bytes);
    } else {
      std::copy_n(from, n_bytes, to);
    }
    from += n_bytes;
  });
}

int64_t KvCache::n_bytes() const {
  int64_t n = 0;
  for (const Layer& l : layers_) {
    for (const Buffer* buffer : {&l.latent, &l.index, &l.entries, &l.state, &l.index_state, &l.recurrent})
      n += buffer->n_bytes();
  }
  return n;
}

}  // namespace levin
