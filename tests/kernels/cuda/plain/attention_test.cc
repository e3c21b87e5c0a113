// Sparse attention on the device against the CPU's plain kernels, bit for bit.
#include "kernels/cuda/plain/attention.h"

#include "kernels/cuda/plain/plain_test.h"
#include "ops/cache_rows.h"
#include "ops/sparse_attention.h"

namespace levin::cuda::plain {
namespace {

using testing::i32_tensor;
using testing::Random;
using testing::random_tensor;
using testing::same_bits;
using testing::Tensor;

struct Shape {
  LatentFormat format;
  int64_t n_heads;
  int64_t n_slots;
  DType q_dtype = DType::kF32;
};

// What rows see: of two sequences, filled to n_slots each.
struct Problem {
  Problem(const Shape& s, int64_t n)
      : shape(s),
        n_rows(n),
        cache(s.format.page_bytes(), 2, s.n_slots, 7),
        other(s.format.page_bytes(), 2, s.n_slots, 8),
        q_latent(s.q_dtype, {n_rows, s.n_heads, s.format.d_latent}),
        q_rope(s.q_dtype, {n_rows, s.n_heads, s.format.d_rope}),
        sink(DType::kF32, {s.n_heads}) {
    Random random(static_cast<uint64_t>(s.format.row_bytes + s.n_heads + s.n_slots));
    const auto query = [&](int64_t d) {
      return testing::converted(random_tensor(random, {n_rows, s.n_heads, d}, 1.0f), s.q_dtype, {n_rows, s.n_heads, d});
    };
    q_latent = query(s.format.d_latent), q_rope = query(s.format.d_rope);
    sink = random_tensor(random, {s.n_heads}, 2.0f);
    fill(cache, random), fill(other, random);
    std::vector<int32_t> of_row;
    for (int64_t t = 0; t < n_rows; ++t) of_row.push_back(static_cast<int32_t>(t % 2));
    seq = i32_tensor(of_row);
  }

  void fill(testing::PagedCache& to, Random& random) const {
    std::vector<int32_t> slots, seqs;
    for (int64_t i = 0; i < 2 * shape.n_slots; ++i) {
      seqs.push_back(static_cast<int32_t>(i / shape.n_slots)), slots.push_back(static_cast<int32_t>(i % shape.n_slots));
    }
    const int64_t n = std::ssize(slots);
    ops::append_latent(testing::plain_device().ctx(), {.c_kv = random_tensor(random, {n, shape.format.d_latent}, 1.0f),
                                                       .k_rope = random_tensor(random, {n, shape.format.d_rope}, 1.0f),
                                                       .seq = i32_tensor(seqs),
                                                       .slot = i32_tensor(slots),
                                                       .format = shape.format,
                                                       .cache = to.rows()});
  }

  Shape shape;
  int64_t n_rows;
  testing::PagedCache cache, other;
  Tensor q_latent, q_rope, sink;
  Tensor seq = i32_tensor({0});
};

// Ascending top-k indices of each row, n[t] of them, the rest -1.
Tensor random_topk(Random& random, const std::vector<int64_t>& n, int64_t n_topk, int64_t n_slots) {
  Tensor topk(DType::kI32, {std::ssize(n), n_topk});
  for (int64_t t = 0; t < std::ssize(n); ++t) {
    int64_t left = n[static_cast<size_t>(t)], at = 0;
    for (int64_t s = 0; s < n_slots && left > 0; ++s) {
      if (random.below(n_slots - s) >= left) continue;
      topk.view().row<int32_t>(t)[at++] = static_cast<int32_t>(s), --left;
    }
    std::fill(topk.view().row<int32_t>(t) + at, topk.view().row<int32_t>(t) + n_topk, -1);
  }
  return topk;
}

class PlainAttentionTest : public PlainTest {
 protected:
  // The call on the device for rows first .. first + n - 1.
  static SparseAttention upload(DeviceArgs& args, const Problem& p, const ops::SparseAttention& host, int64_t first,
                                int64_t n) {
    const LatentFormat& f = p.shape.format;
    const int64_t h = p.shape.n_heads, width = dtype_bytes(p.shape.q_dtype);
    const auto rows = [&](const ops::AttentionRows& r) {
      AttentionRows out;
      if (r.empty()) return out;
      out.cache = args.in(r.cache);
      if (!r.topk.empty()) {
        out.n_topk = r.topk.dim(1);
        out.topk = args.in<int32_t>(r.topk) + first * out.n_topk;
      } else {
        if (!r.begin.empty()) out.begin = args.in<int32_t>(r.begin) + first;
        out.end = args.in<int32_t>(r.end) + first;
      }
      return out;
    };
    return {.q_latent = args.in<std::byte>(p.q_latent) + first * h * f.d_latent * width,
            .q_rope = args.in<std::byte>(p.q_rope) + first * h * f.d_rope * width,
            .q_dtype = p.shape.q_dtype,
            .q_latent_ld = h * f.d_latent,
            .q_latent_head_ld = f.d_latent,
            .q_rope_ld = h * f.d_rope,
            .q_rope_head_ld = f.d_rope,
            .seq = args.in<int32_t>(p.seq) + first,
            .scale = host.scale,
            .format = f,
            .rows = rows(host.rows),
            .more = rows(host.more),
            .sink = host.sink.empty() ? nullptr : args.in<float>(host.sink),
            .out_ld = h * f.d_value(),
            .out_head_ld = f.d_value(),
            .n_rows = n,
            .n_heads = h};
  }

  void check(const Problem& p, ops::SparseAttention host) {
    const int64_t h = p.shape.n_heads, d = p.shape.format.d_value();
    const Tensor expected(DType::kF32, {p.n_rows, h, d});
    host.q_latent = p.q_latent, host.q_rope = p.q_rope, host.seq = p.seq;
    host.scale = 0.7f / std::sqrt(static_cast<float>(d)), host.format = p.shape.format, host.out = expected;
    ops::sparse_attention(cpu(), host);
    for (const auto& [first, n] : {std::pair<int64_t, int64_t>{0, p.n_rows}, {p.n_rows - 1, 1}}) {
      Tensor out = unset(DType::kF32, {n, h, d});
      DeviceArgs args(*stream_);
      SparseAttention call = upload(args, p, host, first, n);
      call.out = args.out<float>(out);
      const Graph graph = must(Graph::capture(*stream_, [&] { sparse_attention(call, stream()); }));
      graph.launch(*stream_);
      args.fetch();
      const View rows(const_cast<float*>(expected.view().row<float>(first, 0)), DType::kF32, {n, h, d});
      ASSERT_TRUE(same_bits(out, rows)) << n << " rows from " << first;
    }
  }
};

TEST_F(PlainAttentionTest, PicksInEveryFormat) {
  for (const CacheDType dtype : {CacheDType::kF32, CacheDType::kBF16, CacheDType::kFp8}) {
    for (const auto& [d_latent, d_rope, n_heads] :
         {std::array<int64_t, 3>{512, 64, 6}, {33, 6, 1}, {130, 10, 4}, {64, 32, 5}}) {
      for (const DType q : {DType::kF32, DType::kBF16}) {
        if (q == DType::kBF16 && dtype == CacheDType::kF32) continue;
        SCOPED_TRACE(fmt::format("{} {} + {}", cache_dtype_name(dtype), d_latent, d_rope));
        const Problem p({latent_format(dtype, d_latent, d_rope), n_heads, 300, q}, 6);
        Random random(5);
        const Tensor topk = random_topk(random, {200, 0, 1, 64, 65, 129}, 200, 300);
        check(p, {.rows = {.cache = p.cache.rows(), .topk = topk}});
      }
    }
  }
}

TEST_F(PlainAttentionTest, WindowsEntriesAndSinks) {
  for (const CacheDType dtype : {CacheDType::kF32, CacheDType::kBF16, CacheDType::kFp8}) {
    for (const auto& [d_head, d_rope, n_heads] : {std::array<int64_t, 3>{512, 64, 3}, {80, 10, 7}}) {
      SCOPED_TRACE(fmt::format("{} {}", cache_dtype_name(dtype), d_head));
      const Problem p({key_value_format(dtype, d_head, d_rope), n_heads, 400}, 6);
      Random random(6);
      const Tensor begin = i32_tensor({0, 0, 5, 272, 300, 72}), end = i32_tensor({0, 1, 64, 400, 300, 200});
      const Tensor entries = i32_tensor({0, 0, 31, 400, 5, 64});
      const Tensor topk = random_topk(random, {0, 3, 64, 150, 0, 31}, 150, 400);
      check(p, {.rows = {.cache = p.cache.rows(), .begin = begin, .end = end}, .sink = p.sink});
      check(p, {.rows = {.cache = p.cache.rows(), .end = end}});
      check(p, {.rows = {.cache = p.cache.rows(), .begin = begin, .end = end},
                .more = {.cache = p.other.rows(), .end = entries},
                .sink = p.sink});
      check(p, {.rows = {.cache = p.cache.rows(), .begin = begin, .end = end},
                .more = {.cache = p.other.rows(), .topk = topk},
                .sink = p.sink});
    }
  }
}

// Whatever it picks.
TEST_F(PlainAttentionTest, PaddingHasNoCandidates) {
  Problem p({latent_format(CacheDType::kF32, 64, 16), 5, 300}, 4);
  p.seq = i32_tensor({0, -1, 1, -1});
  Random random(8);
  const Tensor topk = random_topk(random, {200, 200, 65, 3}, 200, 300), end = i32_tensor({5, 5, 70, 0});
  check(p, {.rows = {.cache = p.cache.rows(), .topk = topk}});
  check(
      p,
      {.rows = {.cache = p.cache.rows(), .end = end}, .more = {.cache = p.other.rows(), .topk = topk}, .sink = p.sink});
}

TEST_F(PlainAttentionTest, TheModelsWidths) {
  const Problem p({latent_format(CacheDType::kFp8, 512, 64), 128, 2500}, 2);
  Random random(7);
  const Tensor topk = random_topk(random, {2048, 1999}, 2048, 2500);
  check(p, {.rows = {.cache = p.cache.rows(), .topk = topk}});
}

}  // namespace
}  // namespace levin::cuda::plain
