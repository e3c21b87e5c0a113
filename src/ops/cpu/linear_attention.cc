#include "ops/linear_attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/linear_attention.h"
#include "ops/cpu/row_loops.h"
#include "ops/cpu_backend.h"

namespace levin {
namespace {

constexpr int64_t kChannels = 64;  // of a convolution, that a thread takes at a time

// One sequence of a step: token i of it is row `begin + i` and stands at position `first + i`.
struct SequenceRows {
  const RecurrentRings& rings;
  int64_t seq, begin, n, first;

  SequenceRows(const ops::RecurrentTokens& a, int64_t s)
      : rings(a.rings),
        seq(s),
        begin(a.first_row.data<int32_t>()[s]),
        n(a.end_row.data<int32_t>()[s] - begin),
        first(a.first_position.data<int32_t>()[s]) {}

  // Whether a later step may look at token i of this one in the ring.
  bool is_kept(int64_t i) const { return i >= n - rings.n_rows(); }
};

// Channels c0 .. c0 + n - 1 of one sequence.
void convolve(const ops::ShortConv& a, const SequenceRows& rows, int64_t c0, int64_t n_channels) {
  const int64_t n_taps = a.weight.dim(1);
  const std::vector<float> zeros(static_cast<size_t>(n_channels));
  std::vector<const float*> taps(static_cast<size_t>(n_taps));
  const auto row_of = [&](int64_t i) -> const float* {  // of token i, which may stand before this step
    if (i >= 0) return a.x.row<float>(rows.begin + i) + c0;
    if (rows.first + i < 0) return zeros.data();
    return rows.rings.conv_row(rows.seq, rows.first + i) + a.first_channel + c0;
  };
  for (int64_t i = 0; i < rows.n; ++i) {
    for (int64_t tap = 0; tap < n_taps; ++tap) taps[static_cast<size_t>(tap)] = row_of(i - n_taps + 1 + tap);
    kernels::short_conv({.rows = taps.data(),
                         .weight = a.weight.row<float>(c0),
                         .n_taps = n_taps,
                         .n_channels = n_channels,
                         .out = a.out.row<float>(rows.begin + i) + c0});
  }
  for (int64_t i = 0; i < rows.n; ++i) {
    const float* x = a.x.row<float>(rows.begin + i) + c0;
    const int64_t position = rows.first + i, channel = a.first_channel + c0;
    if (rows.is_kept(i)) std::copy_n(x, n_channels, rows.rings.conv_row(rows.seq, position) + channel);
    if (float* end = rows.rings.end_conv_row(rows.seq, position)) std::copy_n(x, n_channels, end + channel);
  }
}

// What one head's state is updated with, k already of unit length.
struct HeadUpdate {
  float *k, *v, *decay, *beta;
};

// Its share of a ring's row: k, v and decay of all heads, then every head's beta.
HeadUpdate share_of(float* row, const RecurrentFormat& f, int64_t head) {
  float* k = row + head * f.d_head;
  return {.k = k, .v = k + f.d_heads(), .decay = k + 2 * f.d_heads(), .beta = row + 3 * f.d_heads() + head};
}

// One head of one sequence.
class HeadRecurrence {
 public:
  HeadRecurrence(const ops::DeltaRule& a, const SequenceRows& rows, int64_t head)
      : a_(a),
        rows_(rows),
        f_(rows.rings.format),
        head_(head),
        d_(f_.d_head),
        state_(static_cast<size_t>(d_ * d_)),
        scratch_(static_cast<size_t>(4 * d_ + 1)) {}

  void run() {
    go_back_to_state();
    float* row = scratch_.data();
    const HeadUpdate update{.k = row, .v = row + d_, .decay = row + 2 * d_, .beta = row + 4 * d_};
    for (int64_t i = 0; i < rows_.n; ++i) {
      prepare(i, update);
      apply(update, query(i), a_.out.row<float>(rows_.begin + i) + head_ * d_);
      keep(i, update);
    }
  }

 private:
  const RecurrentRings& rings() const { return rows_.rings; }
  int64_t state_offset() const { return head_ * d_ * d_; }
  const float* input(const View& x, int64_t i) const { return x.row<float>(rows_.begin + i) + head_ * d_; }

  // The state before the step's first token: the last one kept, and the updates since.
  void go_back_to_state() {
    const int64_t kept = rows_.first / kStateTokens * kStateTokens;
    if (kept > 0) std::copy_n(rings().state(rows_.seq, kept) + state_offset(), d_ * d_, state_.data());
    for (int64_t p = kept; p < rows_.first; ++p)
      apply(share_of(rings().update_row(rows_.seq, p), f_, head_), nullptr, nullptr);
  }

  void prepare(int64_t i, const HeadUpdate& update) {
    kernels::unit_row({.x = input(a_.k, i), .d = d_, .out = update.k});
    std::copy_n(input(a_.v, i), d_, update.v);
    kernels::decay_row({.x = input(a_.decay, i),
                        .bias = a_.decay_bias.data<float>() + head_ * d_,
                        .log_rate = a_.log_rate.data<float>()[head_],
                        .lower = a_.lower,
                        .d = d_,
                        .out = update.decay});
    *update.beta = kernels::sigmoid_of(a_.beta.row<float>(rows_.begin + i)[head_]);
  }

  const float* query(int64_t i) {
    float* q = scratch_.data() + 3 * d_;
    const float factor = 1 / std::sqrt(static_cast<float>(d_));
    kernels::unit_row({.x = input(a_.q, i), .d = d_, .factor = factor, .out = q});
    return q;
  }

  void apply(const HeadUpdate& update, const float* q, float* out) {
    kernels::delta_step({.k = update.k,
                         .v = update.v,
                         .decay = update.decay,
                         .beta = *update.beta,
                         .d = d_,
                         .state = state_.data(),
                         .q = q,
                         .out = out});
  }

  void keep(int64_t i, const HeadUpdate& update) {
    const int64_t n_tokens = rows_.first + i + 1;
    if (rows_.is_kept(i)) {
      const HeadUpdate kept = share_of(rings().update_row(rows_.seq, n_tokens - 1), f_, head_);
      std::copy_n(update.k, d_, kept.k);
      std::copy_n(update.v, d_, kept.v);
      std::copy_n(update.decay, d_, kept.decay);
      *kept.beta = *update.beta;
    }
    if (n_tokens % kStateTokens != 0) return;
    std::copy_n(state_.data(), d_ * d_, rings().state(rows_.seq, n_tokens) + state_offset());
    float* end = rings().end_state(rows_.seq, n_tokens);
    if (end != nullptr) std::copy_n(state_.data(), d_ * d_, end + state_offset());
  }

  const ops::DeltaRule& a_;
  const SequenceRows& rows_;
  const RecurrentFormat& f_;
  const int64_t head_, d_;
  std::vector<float> state_;    // [Dl, Dl]
  std::vector<float> scratch_;  // k, v, decay, q, beta of the token at hand
};

}  // namespace

void CpuBackend::short_conv(const ops::ShortConv& a) {
  const int64_t n_channels = a.x.dim(1), n_blocks = (n_channels + kChannels - 1) / kChannels;
  pool_.parallel_for(a.tokens.first_row.dim(0) * n_blocks, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t c0 = i % n_blocks * kChannels;
      convolve(a, SequenceRows(a.tokens, i / n_blocks), c0, std::min(kChannels, n_channels - c0));
    }
  });
}

void CpuBackend::delta_rule(const ops::DeltaRule& a) {
  const int64_t n_heads = a.tokens.rings.format.n_heads;
  pool_.parallel_for(a.tokens.first_row.dim(0) * n_heads, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const SequenceRows rows(a.tokens, i / n_heads);
      HeadRecurrence(a, rows, i % n_heads).run();
    }
  });
}

void CpuBackend::sigmoid_mul(const ops::SigmoidMul& a) {
  const int64_t n_rows = a.x.dim(0), d = a.x.dim(1);
  pool_.parallel_for(n_rows, row_grain(n_rows, d), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const float *x = a.x.row<float>(t), *gate = a.gate.row<float>(t);
      float* out = a.out.row<float>(t);
      for (int64_t c = 0; c < d; ++c) out[c] = x[c] * kernels::sigmoid_of(gate[c]);
    }
  });
}

}  // namespace levin
