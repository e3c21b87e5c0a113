// DeepSeek-V4's residual streams and compressors on the device against the CPU's plain kernels, bit for bit.
#include "ops/streams.h"

#include "kernels/cuda/plain/plain_test.h"
#include "kernels/cuda/plain/pool_windows.h"
#include "kernels/cuda/plain/streams.h"
#include "ops/pool_windows.h"

namespace levin::cuda::plain {
namespace {

using testing::i32_tensor;
using testing::Random;
using testing::random_tensor;
using testing::same_bits;
using testing::Tensor;

class PlainStreamsTest : public PlainTest {};

TEST_F(PlainStreamsTest, WeightsReadAndWrite) {
  for (const auto& [n_rows, m, d] : {std::array<int64_t, 3>{1, 1, 5}, {40, 4, 300}, {3, 16, 33}, {2, 4, 7168}}) {
    SCOPED_TRACE(fmt::format("{} streams of {}", m, d));
    Random random(static_cast<uint64_t>(d));
    const int64_t n_outputs = 2 * m + m * m;
    const Tensor projected = random_tensor(random, {n_rows, n_outputs}, 2.0f),
                 base = random_tensor(random, {n_outputs}, 1.0f);
    const Tensor scale = random_tensor(random, {3}, 1.0f), streams = random_tensor(random, {n_rows, m, d}, 1.0f);
    const Tensor y = random_tensor(random, {n_rows, d}, 1.0f);
    const Tensor read(DType::kF32, {n_rows, m}), write(DType::kF32, {n_rows, m}), mix(DType::kF32, {n_rows, m, m});
    const Tensor x(DType::kF32, {n_rows, d}), updated = copy_of(streams);
    ops::stream_weights(cpu(), {.projected = projected,
                                .base = base,
                                .scale = scale,
                                .n_sinkhorn_steps = 20,
                                .eps = 1e-6f,
                                .read = read,
                                .write = write,
                                .mix = mix});
    ops::read_streams(cpu(), {.streams = streams, .read = read, .out = x});
    ops::write_streams(cpu(), {.streams = updated, .y = y, .write = write, .mix = mix});

    Tensor read_out = unset(DType::kF32, {n_rows, m}), write_out = unset(DType::kF32, {n_rows, m});
    Tensor mix_out = unset(DType::kF32, {n_rows, m, m}), x_out = unset(DType::kF32, {n_rows, d}),
           updated_out = copy_of(streams);
    DeviceArgs args(*stream_);
    const StreamWeights weights{.projected = args.in<float>(projected),
                                .base = args.in<float>(base),
                                .scale = args.in<float>(scale),
                                .n_streams = m,
                                .n_sinkhorn_steps = 20,
                                .eps = 1e-6f,
                                .read = args.out<float>(read_out),
                                .write = args.out<float>(write_out),
                                .mix = args.out<float>(mix_out),
                                .n_rows = n_rows};
    stream_weights(weights, stream());
    float* device_streams = args.out<float>(updated_out);
    read_streams({.streams = device_streams,
                  .read = weights.read,
                  .out = args.out<float>(x_out),
                  .out_ld = d,
                  .n_rows = n_rows,
                  .n_streams = m,
                  .d = d},
                 stream());
    write_streams({.streams = device_streams,
                   .y = args.in<float>(y),
                   .y_ld = d,
                   .write = weights.write,
                   .mix = weights.mix,
                   .n_rows = n_rows,
                   .n_streams = m,
                   .d = d},
                  stream());
    args.fetch();
    EXPECT_TRUE(same_bits(read_out, read));
    EXPECT_TRUE(same_bits(write_out, write));
    EXPECT_TRUE(same_bits(mix_out, mix));
    EXPECT_TRUE(same_bits(x_out, x));
    EXPECT_TRUE(same_bits(updated_out, updated));
  }
}

TEST_F(PlainStreamsTest, TheMean) {
  for (const auto& [n_rows, m, d] : {std::array<int64_t, 3>{1, 1, 5}, {40, 4, 300}, {3, 3, 33}}) {
    Random random(static_cast<uint64_t>(d));
    const Tensor streams = random_tensor(random, {n_rows, m, d}, 1.0f), x(DType::kF32, {n_rows, d});
    ops::mean_streams(cpu(), {.streams = streams, .out = x});
    Tensor out = unset(DType::kF32, {n_rows, d});
    DeviceArgs args(*stream_);
    read_streams({.streams = args.in<float>(streams),
                  .read = nullptr,
                  .out = args.out<float>(out),
                  .out_ld = d,
                  .n_rows = n_rows,
                  .n_streams = m,
                  .d = d},
                 stream());
    args.fetch();
    EXPECT_TRUE(same_bits(out, x)) << m << " streams of " << d;
  }
}

TEST_F(PlainStreamsTest, ReadWeightsAlone) {
  Random random(2);
  const Tensor projected = random_tensor(random, {5, 4}, 2.0f), base = random_tensor(random, {4}, 1.0f);
  const Tensor scale = random_tensor(random, {1}, 1.0f), read(DType::kF32, {5, 4});
  ops::stream_weights(cpu(), {.projected = projected, .base = base, .scale = scale, .eps = 1e-6f, .read = read});
  Tensor out = unset(DType::kF32, {5, 4});
  DeviceArgs args(*stream_);
  stream_weights({.projected = args.in<float>(projected),
                  .base = args.in<float>(base),
                  .scale = args.in<float>(scale),
                  .n_streams = 4,
                  .eps = 1e-6f,
                  .read = args.out<float>(out),
                  .n_rows = 5},
                 stream());
  args.fetch();
  EXPECT_TRUE(same_bits(out, read));
}

struct PoolCase {
  int64_t ratio;
  bool overlap;
  int64_t d;
  int64_t n_undone;
  int32_t first_token = 0;
};

// Two sequences fed in steps of several lengths; after each step entries and rings are those of the CPU.
TEST_F(PlainStreamsTest, EntriesAndTheirStateStepByStep) {
  for (const PoolCase& c : {PoolCase{4, true, 40, 3}, PoolCase{8, false, 33, 0}, PoolCase{128, false, 16, 2},
                            PoolCase{4, false, 16, 3, -3}}) {
    SCOPED_TRACE(fmt::format("ratio {}", c.ratio));
    Random random(static_cast<uint64_t>(c.ratio));
    const int64_t n_channels = c.overlap ? 2 * c.d : c.d, n_block = 2 * c.ratio;
    const StateFormat format{.n_channels = n_channels,
                             .n_tokens = c.overlap ? 2 * c.ratio : c.ratio,
                             .n_before = c.overlap ? c.ratio : -c.first_token};
    const int64_t ring_rows = format.ring_rows(c.n_undone), n_ends = format.n_before > 0 ? 3 : 0;
    const int64_t n_ring = 3 * (ring_rows + n_ends * format.n_before);
    const Tensor rings(DType::kF32, {n_ring, 2 * n_channels}), ids = i32_tensor({2, 0});
    Tensor rings_out = copy_of(rings);
    const Tensor bias = random_tensor(random, {c.ratio, n_channels}, 1.0f);
    const int32_t least = c.first_token < 0 ? 1 : 0;  // the first slot and the first entry that there are
    std::vector<int32_t> length = {least, least};
    for (const auto& [first, second] :
         {std::pair{5, 1}, {3 * static_cast<int>(c.ratio), 2}, {1, 300}, {2, 1}, {0, 7}}) {
      const std::vector<int32_t> n_new = {first, second};
      const int64_t n_rows = first + second, n_padding = 2;
      const Tensor values = random_tensor(random, {n_rows + n_padding, n_channels}, 1.0f);
      const Tensor gates = random_tensor(random, {n_rows + n_padding, n_channels}, 2.0f);
      std::vector<int32_t> entry_seq, entry_slot, row_seq;
      for (int32_t s = 0; s < 2; ++s) {
        const int32_t begin = length[s] - c.first_token;
        for (int32_t w = begin / static_cast<int32_t>(c.ratio); w < (begin + n_new[s]) / c.ratio; ++w) {
          entry_seq.push_back(s), entry_slot.push_back(w);
        }
        row_seq.insert(row_seq.end(), n_new[s], s);
      }
      const int64_t n_entries = std::ssize(entry_seq);
      const Tensor seq_of_row = i32_tensor(row_seq), first_row = i32_tensor({0, first}),
                   end_row = i32_tensor({first, first + second}), position = i32_tensor(length);
      const ops::WindowTokens tokens{.values = View(values).slice_first(0, n_rows),
                                     .gates = View(gates).slice_first(0, n_rows),
                                     .seq = seq_of_row,
                                     .first_row = first_row,
                                     .end_row = end_row,
                                     .first_position = position,
                                     .state = {.rings = rings.view().bytes(),
                                               .n_rows = ring_rows,
                                               .n_ends = n_ends,
                                               .n_block_tokens = n_block,
                                               .format = format,
                                               .ids = ids}};
      const Tensor expected(DType::kF32, {std::max<int64_t>(n_entries, 1), c.d});
      if (n_entries > 0) {
        ops::pool_windows(cpu(), {.tokens = tokens,
                                  .bias = bias,
                                  .overlap = c.overlap,
                                  .first_token = c.first_token,
                                  .seq = i32_tensor(entry_seq),
                                  .slot = i32_tensor(entry_slot),
                                  .out = View(expected).slice_first(0, n_entries)});
      }
      ops::keep_state(cpu(), tokens);

      entry_seq.insert(entry_seq.end(), n_padding, 0), entry_slot.insert(entry_slot.end(), n_padding, -1);
      row_seq.insert(row_seq.end(), n_padding, -1);
      Tensor out = unset(DType::kF32, {n_entries + n_padding, c.d});
      DeviceArgs args(*stream_);
      const WindowTokens device{.values = args.in<float>(values),
                                .values_ld = n_channels,
                                .gates = args.in<float>(gates),
                                .gates_ld = n_channels,
                                .first_row = args.in<int32_t>(first_row),
                                .end_row = args.in<int32_t>(end_row),
                                .first_position = args.in<int32_t>(position),
                                .state = {.rings = args.out<std::byte>(rings_out),
                                          .n_rows = ring_rows,
                                          .n_ends = n_ends,
                                          .n_block_tokens = n_block,
                                          .format = format,
                                          .ids = args.in<int32_t>(ids)}};
      pool_windows({.tokens = device,
                    .bias = args.in<float>(bias),
                    .ratio = c.ratio,
                    .overlap = c.overlap,
                    .first_token = c.first_token,
                    .seq = args.in(entry_seq),
                    .slot = args.in(entry_slot),
                    .out = args.out<float>(out),
                    .out_ld = c.d,
                    .n_entries = n_entries + n_padding},
                   stream());
      keep_state({.tokens = device, .seq = args.in(row_seq), .n_rows = n_rows + n_padding}, stream());
      args.fetch();
      ASSERT_TRUE(n_entries == 0 ||
                  same_bits(View(out).slice_first(0, n_entries), View(expected).slice_first(0, n_entries)));
      ASSERT_TRUE(same_bits(rings_out, rings));
      const Tensor untouched = unset(DType::kF32, {n_padding, c.d});
      ASSERT_TRUE(same_bits(View(out).slice_first(n_entries, n_padding), untouched));
      for (int s = 0; s < 2; ++s) length[s] += n_new[s];
    }
  }
}

}  // namespace
}  // namespace levin::cuda::plain
