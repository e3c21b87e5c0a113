// Paged caches for op tests: pages in any order, every byte that was not written set to ones, so that reading it shows.
#pragma once

#include <cstring>
#include <numeric>
#include <vector>

#include "base/numbers.h"
#include "ops/support.h"
#include "tensor/formats.h"

namespace levin::testing {

class PagedCache {
 public:
  // Room for n_tokens in each of n_seqs sequences. Page ids are drawn from `order`; the same tokens in another order
  // are the same cache.
  PagedCache(int64_t page_bytes, int64_t n_seqs, int64_t n_tokens, uint64_t order)
      : n_pages_((n_tokens + kPageTokens - 1) / kPageTokens),
        pages_(page_bytes * n_seqs * n_pages_),
        tables_(DType::kI32, {n_seqs, n_pages_}) {
    std::memset(pages_.data(), 0xFF, static_cast<size_t>(pages_.n_bytes()));
    std::vector<int32_t> ids(static_cast<size_t>(n_seqs * n_pages_));
    std::iota(ids.begin(), ids.end(), 0);
    Random random(order);
    for (size_t i = ids.size() - 1; order != 0 && i > 0; --i) {
      std::swap(ids[i], ids[static_cast<size_t>(random.below(static_cast<int64_t>(i) + 1))]);
    }
    std::copy(ids.begin(), ids.end(), tables_.view().data<int32_t>());
    rows_ = {.pages = pages_.data(), .page_bytes = page_bytes, .tables = tables_, .n_pages = n_seqs * n_pages_};
  }

  const PagedRows& rows() const { return rows_; }
  bool same_bytes(const PagedCache& other) const {
    return pages_.n_bytes() == other.pages_.n_bytes() &&
           std::memcmp(pages_.data(), other.pages_.data(), static_cast<size_t>(pages_.n_bytes())) == 0;
  }

 private:
  int64_t n_pages_;
  Buffer pages_;
  Tensor tables_;
  PagedRows rows_;
};

template <class T>
T read_as(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

// The value at index i of `dtype` values at p.
inline double decode(CacheDType dtype, const std::byte* p, int64_t i) {
  if (dtype == CacheDType::kF32) return read_as<float>(p + 4 * i);
  if (dtype == CacheDType::kBF16) return bf16_to_f32(read_as<uint16_t>(p + 2 * i));
  return e4m3_to_f32(read_as<uint8_t>(p + i));
}

// A cached row as numbers: latent, then rope.
inline std::vector<double> decode_latent(const LatentFormat& f, const PagedRows& cache, int64_t seq, int64_t slot) {
  const std::byte* row = cache.page(seq, slot / kPageTokens) + slot % kPageTokens * f.row_bytes;
  std::vector<double> values;
  for (int64_t i = 0; i < f.d_latent; ++i) {
    const double scale =
        f.dtype == CacheDType::kFp8 ? read_as<float>(row + f.scale_offset + 4 * (i / f.scale_columns)) : 1.0;
    values.push_back(decode(f.dtype, row, i) * scale);
  }
  const CacheDType rope = f.dtype == CacheDType::kFp8 ? CacheDType::kBF16 : CacheDType::kF32;
  for (int64_t i = 0; i < f.d_rope; ++i) values.push_back(decode(rope, row + f.rope_offset, i));
  return values;
}

// A cached index key with its scale applied.
inline std::vector<double> decode_index_key(const IndexKeyFormat& f, const PagedRows& cache, int64_t seq,
                                            int64_t slot) {
  const std::byte* page = cache.page(seq, slot / kPageTokens);
  const int64_t key = slot % kPageTokens;
  const double scale = f.dtype == CacheDType::kFp8 ? read_as<float>(page + f.scale_offset + 4 * key) : 1.0;
  std::vector<double> values;
  for (int64_t i = 0; i < f.d_index; ++i) values.push_back(decode(f.dtype, page + key * f.key_bytes, i) * scale);
  return values;
}

inline Tensor i32_tensor(const std::vector<int32_t>& values) {
  return Tensor::of(values, {static_cast<int64_t>(values.size())});
}

// x rounded to dtype: f32, bf16 or e4m3.
inline Tensor converted(const Tensor& x, DType dtype, std::initializer_list<int64_t> shape) {
  Tensor out(dtype, shape);
  for (int64_t i = 0; i < out.view().n_elements(); ++i) {
    if (dtype == DType::kF32) out.at(i) = x.at(i);
    if (dtype == DType::kBF16) out.view().data<uint16_t>()[i] = f32_to_bf16(x.at(i));
    if (dtype == DType::kF8E4M3) out.view().data<uint8_t>()[i] = f32_to_e4m3(x.at(i));
  }
  return out;
}

inline double value_of(const View& x, int64_t i) {
  if (x.dtype() == DType::kF32) return x.data<float>()[i];
  if (x.dtype() == DType::kBF16) return bf16_to_f32(x.data<uint16_t>()[i]);
  return e4m3_to_f32(x.data<uint8_t>()[i]);
}

}  // namespace levin::testing
