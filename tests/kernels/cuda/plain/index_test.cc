// The indexer on the device against the CPU's plain kernels, bit for bit; rows with NaN.
#include "kernels/cuda/plain/index.h"

#include <limits>

#include "kernels/cuda/plain/plain_test.h"
#include "ops/cache_rows.h"
#include "ops/expand_topk.h"
#include "ops/index_topk.h"

namespace levin::cuda::plain {
namespace {

using testing::i32_tensor;
using testing::Random;
using testing::random_tensor;
using testing::same_bits;
using testing::Tensor;

DType query_type(CacheDType keys) {
  return keys == CacheDType::kF32 ? DType::kF32 : keys == CacheDType::kBF16 ? DType::kBF16 : DType::kF8E4M3;
}

// Queries of a few rows over two sequences of cached keys.
struct Problem {
  Problem(CacheDType dtype, int64_t n_heads, int64_t d, std::vector<int32_t> visible_slots, int32_t first_slot)
      : format(index_key_format(dtype, d)),
        n_rows(std::ssize(visible_slots)),
        n_slots(*std::max_element(visible_slots.begin(), visible_slots.end())),
        cache(format.page_bytes(), 2, n_slots, 3),
        q(query_type(dtype), {n_rows, n_heads, d}),
        w(DType::kF32, {n_rows, n_heads}),
        visible(i32_tensor(visible_slots)),
        first(first_slot) {
    Random random(static_cast<uint64_t>(n_heads * d + n_slots));
    q = testing::converted(random_tensor(random, {n_rows, n_heads, d}, 1.0f), query_type(dtype), {n_rows, n_heads, d});
    w = random_tensor(random, {n_rows, n_heads}, 0.3f);
    std::vector<int32_t> seqs;
    for (int64_t t = 0; t < n_rows; ++t) seqs.push_back(static_cast<int32_t>(t % 2));
    seq = i32_tensor(seqs);
    for (int64_t s = 0; s < 2; ++s) fill(s, random);
  }

  void fill(int64_t sequence, Random& random) {
    std::vector<int32_t> slots, seqs;
    for (int64_t s = 0; s < n_slots; ++s)
      slots.push_back(static_cast<int32_t>(s)), seqs.push_back(static_cast<int32_t>(sequence));
    const Tensor keys = random_tensor(random, {n_slots, format.d_index}, 1.0f);
    ops::append_index_keys(
        testing::plain_device().ctx(),
        {.keys = keys, .seq = i32_tensor(seqs), .slot = i32_tensor(slots), .format = format, .cache = cache.rows()});
  }

  ops::IndexQuery host() const {
    return {.q = q, .w = w, .seq = seq, .visible = visible, .first = first, .format = format, .cache = cache.rows()};
  }
  IndexQuery device(DeviceArgs& args) const {
    const int64_t n_heads = q.view().dim(1), d = q.view().dim(2);
    return {.q = args.in<std::byte>(q),
            .q_dtype = q.view().dtype(),
            .q_ld = n_heads * d,
            .q_head_ld = d,
            .w = args.in<float>(w),
            .w_ld = n_heads,
            .seq = args.in<int32_t>(seq),
            .visible = args.in<int32_t>(visible),
            .first = first,
            .format = format,
            .cache = args.in(cache.rows()),
            .n_rows = n_rows,
            .n_heads = n_heads};
  }

  IndexKeyFormat format;
  int64_t n_rows, n_slots;
  testing::PagedCache cache;
  Tensor q, w;
  Tensor visible;
  Tensor seq = i32_tensor({0});
  int32_t first;
};

class PlainIndexTest : public PlainTest {};

TEST_F(PlainIndexTest, ScoresAndPicksEqualTheCpus) {
  for (const CacheDType dtype : {CacheDType::kF32, CacheDType::kBF16, CacheDType::kFp8}) {
    for (const auto& [n_heads, d] : {std::pair<int64_t, int64_t>{1, 8}, {5, 64}, {64, 128}, {33, 100}}) {
      SCOPED_TRACE(fmt::format("{}, {} heads of {}", cache_dtype_name(dtype), n_heads, d));
      const Problem p(dtype, n_heads, d, {1, 0, 700, 63, 64, 65, 333, 699}, 1);
      Tensor expected = unset(DType::kF32, {p.n_rows, p.n_slots}), out = unset(DType::kF32, {p.n_rows, p.n_slots});
      ops::index_scores(cpu(), {.query = p.host(), .score = expected});
      DeviceArgs args(*stream_);
      const IndexQuery query = p.device(args);
      index_scores({.query = query, .score = args.out<float>(out), .score_ld = p.n_slots, .n_slots = p.n_slots},
                   stream());
      args.fetch();
      ASSERT_TRUE(same_bits(out, expected));
      for (const int64_t k : {1, 64, 300}) {
        const Tensor topk(DType::kI32, {p.n_rows, k});
        Tensor topk_out = unset(DType::kI32, {p.n_rows, k});
        ops::index_topk(cpu(), {.query = p.host(), .topk = topk});
        DeviceArgs more(*stream_);
        index_topk({.query = query,
                    .score = reinterpret_cast<float*>(more.scratch(p.n_rows * p.n_slots * 4)),
                    .n_slots = p.n_slots,
                    .topk = more.out<int32_t>(topk_out),
                    .n_topk = k},
                   stream());
        more.fetch();
        ASSERT_TRUE(same_bits(topk_out, topk)) << k << " top-k indices";
      }
    }
  }
}

// Scores with many ties, of both signs, zeros of both, infinities.
Tensor hard_scores(Random& random, int64_t n_rows, int64_t n_slots) {
  Tensor score(DType::kF32, {n_rows, n_slots});
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float values[] = {0.0f, -0.0f, 1.0f, -1.0f, 1e-40f, -1e-40f, kInfinity, -kInfinity};
  for (int64_t i = 0; i < n_rows * n_slots; ++i) {
    score.at(i) = i / n_slots % 2 == 0 ? random.normal() : values[random.below(8)];
  }
  return score;
}

TEST_F(PlainIndexTest, SelectionEqualsTheCpus) {
  for (const auto& [n_slots, k] :
       {std::pair<int64_t, int64_t>{1, 1}, {300, 7}, {5000, 2048}, {257, 256}, {100, 200}, {70000, 100}}) {
    SCOPED_TRACE(fmt::format("{} of {}", k, n_slots));
    Random random(static_cast<uint64_t>(n_slots));
    const int64_t n_rows = 6;
    Tensor score = hard_scores(random, n_rows, n_slots);
    std::vector<int32_t> begins, ends;
    for (int64_t t = 0; t < n_rows; ++t) {
      begins.push_back(static_cast<int32_t>(t < 2 ? 0 : random.below(n_slots)));
      ends.push_back(static_cast<int32_t>(t < 2 ? n_slots : random.below(n_slots + 1)));
    }
    const Tensor begin = i32_tensor(begins), end = i32_tensor(ends), expected(DType::kI32, {n_rows, k});
    ops::select_topk(cpu(), {.score = score, .begin = begin, .end = end, .topk = expected});
    const auto select = [&](const Tensor& scores, Tensor& out, Tensor& fault) {
      DeviceArgs args(*stream_);
      select_topk({.score = args.in<float>(scores),
                   .score_ld = n_slots,
                   .begin = args.in<int32_t>(begin),
                   .end = args.in<int32_t>(end),
                   .topk = args.out<int32_t>(out),
                   .n_topk = k,
                   .n_rows = n_rows,
                   .fault = args.out<int32_t>(fault)},
                  stream());
      args.fetch();
    };
    Tensor out = unset(DType::kI32, {n_rows, k}), fault = i32_tensor({0, 0, 0, 0, 0, 0});
    select(score, out, fault);
    ASSERT_TRUE(same_bits(out, expected));
    ASSERT_TRUE(same_bits(fault, i32_tensor({0, 0, 0, 0, 0, 0})));

    // A NaN of either sign in row 1: its lowest candidates, and a fault of its own; neighbours as before.
    for (const float sign : {1.0f, -1.0f}) {
      Tensor poisoned = copy_of(score), faulty = i32_tensor({0, 0, 0, 0, 0, 0});
      poisoned.at(n_slots + n_slots / 2) = std::copysign(std::numeric_limits<float>::quiet_NaN(), sign);
      Tensor topk = unset(DType::kI32, {n_rows, k});
      select(poisoned, topk, faulty);
      ASSERT_TRUE(same_bits(faulty, i32_tensor({0, kNanIndexScore, 0, 0, 0, 0})));
      for (int64_t t = 0; t < n_rows; ++t) {
        for (int64_t i = 0; i < k; ++i) {
          const int32_t lowest = i < n_slots ? static_cast<int32_t>(i) : -1;
          ASSERT_EQ(topk.view().row<int32_t>(t)[i], t == 1 ? lowest : expected.view().row<int32_t>(t)[i]) << t;
        }
      }
    }
  }
}

TEST_F(PlainIndexTest, PicksWithoutScores) {
  const Tensor visible = i32_tensor({0, 1, 2, 9, 5});
  const auto topk_of = [&](auto call, const Tensor& before) {
    Tensor out = copy_of(before);
    DeviceArgs args(*stream_);
    call(
        TakeAll{
            .visible = args.in<int32_t>(visible), .first = 1, .topk = args.out<int32_t>(out), .n_topk = 4, .n_rows = 5},
        stream());
    args.fetch();
    return out;
  };
  const auto rows = [](const std::vector<int32_t>& values) { return Tensor::of(values, {5, 4}); };
  const Tensor nothing = unset(DType::kI32, {5, 4});
  EXPECT_TRUE(same_bits(topk_of(take_all, nothing),
                        rows({-1, -1, -1, -1, -1, -1, -1, -1, 1, -1, -1, -1, 1, 2, 3, 4, 1, 2, 3, 4})));
  EXPECT_TRUE(same_bits(topk_of(take_most_recent, nothing),
                        rows({-1, -1, -1, -1, -1, -1, -1, -1, 1, -1, -1, -1, 5, 6, 7, 8, 1, 2, 3, 4})));
}

// Rows with all, some and no entries, tails of every length, and a row of padding at the end, which sees nothing.
TEST_F(PlainIndexTest, TheTokensOfEntriesEqualTheCpus) {
  for (const auto& [n_entries, ratio, first_token] :
       {std::array<int64_t, 3>{1, 4, 0}, {5, 4, -3}, {200, 4, 0}, {3, 1, 0}}) {
    SCOPED_TRACE(fmt::format("{} entries of {} tokens from {} on", n_entries, ratio, first_token));
    const int64_t n_rows = 6, width = n_entries * ratio + ratio - 1;
    const int32_t least = first_token < 0 ? 1 : 0;  // the first entry that there is
    std::vector<int32_t> entries, end, visible;
    for (int32_t t = 0; t < n_rows; ++t) {
      const auto n = static_cast<int32_t>(t + 1 < n_rows ? t * n_entries / (n_rows - 2) : 0);
      for (int32_t i = 0; i < n_entries; ++i) entries.push_back(i < n ? least + 2 * i : -1);
      end.push_back(least + 2 * n);
      const auto n_open = static_cast<int32_t>(t + 1 < n_rows ? t % ratio : 0);
      visible.push_back(static_cast<int32_t>(first_token + end.back() * ratio) + n_open);
    }
    const Tensor entry_rows = Tensor::of(entries, {n_rows, n_entries}), ends = i32_tensor(end),
                 seen = i32_tensor(visible), expected(DType::kI32, {n_rows, width});
    ops::expand_topk(cpu(), {.entries = entry_rows,
                             .end = ends,
                             .visible = seen,
                             .ratio = ratio,
                             .first_token = static_cast<int32_t>(first_token),
                             .topk = expected});
    Tensor out = unset(DType::kI32, {n_rows, width});
    DeviceArgs args(*stream_);
    expand_topk({.entries = args.in<int32_t>(entry_rows),
                 .n_entries = n_entries,
                 .end = args.in<int32_t>(ends),
                 .visible = args.in<int32_t>(seen),
                 .ratio = ratio,
                 .first_token = static_cast<int32_t>(first_token),
                 .topk = args.out<int32_t>(out),
                 .n_rows = n_rows},
                stream());
    args.fetch();
    EXPECT_TRUE(same_bits(out, expected));
  }
}

TEST_F(PlainIndexTest, AGraphReadsLengthsFromTheDevice) {
  const Problem p(CacheDType::kFp8, 16, 128, {70, 10, 640, 200}, 0);
  const int64_t k = 32;
  DeviceArgs args(*stream_);
  Tensor out = unset(DType::kI32, {p.n_rows, k});
  const IndexTopk call{.query = p.device(args),
                       .score = reinterpret_cast<float*>(args.scratch(p.n_rows * p.n_slots * 4)),
                       .n_slots = p.n_slots,
                       .topk = args.out<int32_t>(out),
                       .n_topk = k};
  const Graph graph = must(Graph::capture(*stream_, [&] { index_topk(call, stream()); }));
  for (const std::vector<int32_t>& lengths : {std::vector<int32_t>{70, 10, 640, 200}, {0, 640, 33, 31}}) {
    const Tensor visible = i32_tensor(lengths), expected(DType::kI32, {p.n_rows, k});
    ops::IndexQuery query = p.host();
    query.visible = visible;
    ops::index_topk(cpu(), {.query = query, .topk = expected});
    copy_to_device(*stream_, reinterpret_cast<std::byte*>(const_cast<int32_t*>(call.query.visible)), lengths.data(),
                   4 * p.n_rows);
    graph.launch(*stream_);
    args.fetch();
    EXPECT_TRUE(same_bits(out, expected));
  }
}

}  // namespace
}  // namespace levin::cuda::plain
