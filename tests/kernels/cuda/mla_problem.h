// Random sparse-attention problems: cache rows, queries and indices on the host and the device, with an oracle in double.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "base/check.h"
#include "base/numbers.h"
#include "kernels/cuda/device_array.h"
#include "kernels/cuda/sparse_mla/sparse_mla.h"

namespace levin::cuda {

struct MlaProblemShape {
  int64_t n_rows = 1;
  int n_heads = 128;
  int n_topk = 2048;
  LatentRows format = LatentRows::kFp8;
  std::vector<int> n_valid;  // top-k indices of each row; empty: all
  float spread = 1;          // standard deviation of the scores in the log2 domain, about
  int least_scale = -9;      // of FP8 rows: their scales are its power of two and the six after it
  uint64_t seed = 1;
};

struct MlaProblem {
  static constexpr int64_t kSlots = 8192;
  int64_t n_rows;
  int n_heads, n_topk;
  LatentRows format;
  float scale;
  std::vector<uint16_t> q_latent, q_rope;  // bf16
  std::vector<int32_t> topk;
  std::vector<uint8_t> cache;
  std::vector<float> values;  // [slots, 576] as the cache rows mean

  int64_t row_bytes() const { return format == LatentRows::kFp8 ? 656 : 1152; }
  int64_t page_bytes() const { return 64 * row_bytes() + 64; }  // pages may be apart

  explicit MlaProblem(const MlaProblemShape& shape)
      : n_rows(shape.n_rows),
        n_heads(shape.n_heads),
        n_topk(shape.n_topk),
        format(shape.format),
        scale(shape.spread * std::log(2.0f) / 24.0f),
        q_latent(random_bf16(n_rows * n_heads * 512, shape.seed)),
        q_rope(random_bf16(n_rows * n_heads * 64, shape.seed + 1)),
        topk(static_cast<size_t>(n_rows * n_topk), -1),
        cache(static_cast<size_t>(kSlots / 64 * page_bytes()), 0x7F),
        values(static_cast<size_t>(kSlots) * 576) {
    std::mt19937_64 generator(shape.seed + 2);
    make_cache(generator, shape.least_scale);
    std::vector<int32_t> slots(kSlots);
    for (int32_t i = 0; i < kSlots; ++i) slots[i] = i;
    for (int64_t row = 0; row < n_rows; ++row) {
      const int n = shape.n_valid.empty() ? n_topk : shape.n_valid[row];
      std::shuffle(slots.begin(), slots.end(), generator);
      std::copy_n(slots.begin(), n, topk.begin() + row * n_topk);
      std::sort(topk.begin() + row * n_topk, topk.begin() + row * n_topk + n);
    }
  }

  struct Exact {
    std::vector<double> out;        // [512]
    std::vector<double> magnitude;  // sum of weight times absolute value
  };
  Exact exact(int64_t row, int head) const {
    std::vector<double> score;
    double highest = -INFINITY;
    for (const int32_t slot : row_topk(row)) {
      double dot = 0;
      for (int d = 0; d < 512; ++d)
        dot += double{bf16_to_f32(q_latent[(row * n_heads + head) * 512 + d])} * value(slot, d);
      for (int d = 0; d < 64; ++d)
        dot += double{bf16_to_f32(q_rope[(row * n_heads + head) * 64 + d])} * value(slot, 512 + d);
      score.push_back(dot * scale);
      highest = std::max(highest, score.back());
    }
    Exact e{std::vector<double>(512), std::vector<double>(512)};
    double sum = 0;
    for (double& s : score) sum += s = std::exp(s - highest);
    for (size_t i = 0; i < score.size(); ++i) {
      for (int d = 0; d < 512; ++d) {
        const double term = score[i] / sum * value(row_topk(row)[i], d);
        e.out[d] += term;
        e.magnitude[d] += std::fabs(term);
      }
    }
    return e;
  }

  std::vector<int32_t> row_topk(int64_t row) const {
    std::vector<int32_t> valid(topk.begin() + row * n_topk, topk.begin() + (row + 1) * n_topk);
    valid.erase(std::remove(valid.begin(), valid.end(), -1), valid.end());
    return valid;
  }
  double value(int32_t slot, int column) const { return double{values[int64_t{slot} * 576 + column]}; }

  static std::vector<uint16_t> random_bf16(int64_t n, uint64_t seed) {
    std::mt19937_64 generator(seed);
    std::normal_distribution<float> normal;
    std::vector<uint16_t> table(4096), out(static_cast<size_t>(n));
    for (uint16_t& v : table) v = f32_to_bf16(normal(generator));
    uint64_t state = seed * 2 + 1;
    for (uint16_t& v : out) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      v = table[state >> 52];
    }
    return out;
  }

 private:
  void make_cache(std::mt19937_64& generator, int least_scale) {
    const std::vector<uint16_t> source = random_bf16(kSlots * 576, generator());
    for (int64_t slot = 0; slot < kSlots; ++slot) {
      uint8_t* row = cache.data() + slot / 64 * page_bytes() + slot % 64 * row_bytes();
      float* meant = values.data() + slot * 576;
      const uint16_t* from = source.data() + slot * 576;
      if (format == LatentRows::kBF16) {
        std::memcpy(row, from, 1152);
        for (int d = 0; d < 576; ++d) meant[d] = bf16_to_f32(from[d]);
        continue;
      }
      for (int block = 0; block < 4; ++block) {
        const float s = std::ldexp(1.0f, static_cast<int>(generator() % 7) + least_scale);
        std::memcpy(row + 512 + block * 4, &s, 4);
        for (int d = block * 128; d < block * 128 + 128; ++d) {
          row[d] = f32_to_e4m3(bf16_to_f32(from[d]) * 128.0f);
          meant[d] = e4m3_to_f32(row[d]) * s;
        }
      }
      std::memcpy(row + 528, from + 512, 128);
      for (int d = 512; d < 576; ++d) meant[d] = bf16_to_f32(from[d]);
    }
  }
};

class MlaOnDevice {
 public:
  MlaOnDevice(const Stream& stream, const MlaProblem& problem)
      : p(problem),
        stream_(stream),
        q_latent_(stream, problem.q_latent),
        q_rope_(stream, problem.q_rope),
        topk_(stream, problem.topk),
        cache_(stream, problem.cache),
        scratch_(stream, sparse_mla_scratch_bytes()) {
    clear_sparse_mla_scratch(reinterpret_cast<std::byte*>(scratch_.data()), stream.handle());
  }

  SparseMla args(void* out, bool f32) const {
    return {.q_latent = q_latent_.data(),
            .q_rope = q_rope_.data(),
            .q_latent_row_stride = int64_t{p.n_heads} * 512,
            .q_rope_row_stride = int64_t{p.n_heads} * 64,
            .topk = topk_.data(),
            .format = p.format,
            .cache = reinterpret_cast<const std::byte*>(cache_.data()),
            .page_bytes = p.page_bytes(),
            .out = out,
            .out_f32 = f32,
            .scratch = reinterpret_cast<std::byte*>(scratch_.data()),
            .n_rows = p.n_rows,
            .n_heads = p.n_heads,
            .n_topk = p.n_topk,
            .scale = p.scale};
  }

  // [rows, heads, 512], with a guard row after that must stay NaN.
  std::vector<float> run(MlaSplit split) const {
    const int64_t n = p.n_rows * p.n_heads * 512;
    const DeviceArray<float> out(stream_, n + 64 * 512);
    out.fill(0xFF);
    sparse_mla(args(out.data(), true), stream_.handle(), split);
    std::vector<float> all = out.host();
    for (int64_t i = n; i < static_cast<int64_t>(all.size()); ++i)
      LEVIN_CHECK(std::isnan(all[i]), "wrote after the output at {}", i - n);
    all.resize(static_cast<size_t>(n));
    return all;
  }

  const MlaProblem& p;

 private:
  const Stream& stream_;
  DeviceArray<uint16_t> q_latent_, q_rope_;
  DeviceArray<int32_t> topk_;
  DeviceArray<uint8_t> cache_, scratch_;
};

}  // namespace levin::cuda
