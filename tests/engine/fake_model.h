// A model without a checkpoint, for tests of whatever drives models: its next token is a function of all tokens so far, which
// it knows through the cache alone.
//
//   row of token t at slot s    h_s = mix(h_{s-1}, t), read at slot s - 1 of the sequence's pages and written at s. With a
//                               window of W tokens, h_s = mix(h_{s-1} ^ h_{s-W+1}, t) where slot s - W + 1 is not before 1
//   next token                  h_s mod V: its logit is 10, the others are in [0, 1)
//   MTP row of pair (i, i + 1)  mix(h_i, t_{i+1}), which is h_{i+1}; so its next token is the right one, unless it is told to err
//
// A page lent twice, a row of a rejected draft that is believed, a record put back to the wrong place: the next token is another.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "engine/fake_cuda.h"
#include "model/architecture.h"
#include "model/model.h"
#include "tensor/formats.h"

namespace levin::test {

constexpr int64_t kFakeVocab = 97;
constexpr int32_t kPoison = 96;  // a row of this token holds NaN

inline uint32_t fake_mix(uint32_t before, int32_t token) {
  const uint32_t mixed = (before ^ static_cast<uint32_t>(token + 1)) * 0x9E3779B1u;
  return (mixed ^ mixed >> 15) & 0xFFFFFF;  // a float holds it
}
constexpr uint32_t kFakeStart = 1;

// What a row mixes its token into: the row before it, and the first row of its window.
inline uint32_t fake_before(uint32_t last, uint32_t first_of_window) { return last ^ first_of_window; }

// Never kPoison.
inline int32_t fake_next(uint32_t hash) { return static_cast<int32_t>(hash % (kFakeVocab - 1)); }

class FakeModel : public Model {
 public:
  // Every wrong_every-th draft or so is wrong; 0: none, 1: all.
  explicit FakeModel(uint32_t wrong_every = 0, Device where = Device::kCpu, int64_t n_window = 0)
      : Model(config_of(n_window), Numerics{}, weights_of(where)), wrong_every_(wrong_every) {}

  bool has_mtp() const override { return true; }
  int64_t d_state() const override { return 1; }

  ForwardRows trunk(OpContext& ctx, const Step& step, const KvCache& cache, const Probe*) const override {
    const ForwardRows out = rows(ctx, step.n_tokens());
    run(ctx, [this, out, step = Seen(step), hashes = seen_rows(cache.latent_rows(0, step.tables))] {
      if (on_trunk) on_trunk();
      for (int64_t t = 0; t < step.n_tokens; ++t) {
        if (step.seq[t] < 0) continue;  // padding
        const uint32_t before = step.slot[t] == 0 ? kFakeStart : read(hashes, step.seq[t], step.slot[t] - 1);
        write_row(out, t, hashes, step,
                  fake_mix(fake_before(before, first_of_window(hashes, step, t)), step.tokens[t]));
        if (step.tokens[t] == kPoison) row_of(out.hidden, t)[0] = std::numeric_limits<float>::quiet_NaN();
        ++n_trunk_rows;
      }
    });
    return out;
  }

  ForwardRows mtp(OpContext& ctx, const Step& step, const MtpInput& in, const KvCache& cache,
                  const Probe*) const override {
    const ForwardRows all = rows(ctx, step.n_tokens());
    const ForwardRows some = step.wanted ? rows(ctx, step.wanted->dim(0)) : all;
    run(ctx, [this, in, all, some, step = Seen(step), hashes = seen_rows(cache.latent_rows(1, step.tables))] {
      bool has_pairs = false;  // and not padding alone
      for (int64_t t = 0; t < step.n_tokens; ++t) {
        if (step.seq[t] < 0) continue;
        has_pairs = true;
        run_pair(in, all, t, hashes, step);
      }
      for (int64_t i = 0; i < step.n_wanted; ++i) {
        std::copy_n(row_of(all.hidden, step.wanted[i]), kFakeVocab, row_of(some.hidden, i));
        *row_of(some.state, i) = *row_of(all.state, step.wanted[i]);
      }
      n_mtp_steps += has_pairs ? 1 : 0;
      n_padding_steps += has_pairs ? 0 : 1;
    });
    return some;
  }

  std::function<void()> on_trunk;  // called by every pass of the trunk; may throw
  mutable int64_t n_trunk_rows = 0;
  mutable int64_t n_mtp_steps = 0;
  mutable int64_t n_padding_steps = 0;  // MTP steps of padding alone
  mutable int64_t n_stale_rows = 0;     // MTP rows whose predecessor is not the one that the sequence has

 private:
  // What a pass reads of a step, wherever it runs.
  struct Seen {
    explicit Seen(const Step& step)
        : tokens(ids(step.tokens)),
          seq(ids(step.seq)),
          slot(ids(step.slot)),
          wanted(step.wanted ? ids(*step.wanted) : nullptr),
          n_tokens(step.n_tokens()),
          n_wanted(step.wanted ? step.wanted->dim(0) : 0),
          first_slot(step.first_slot) {}
    static const int32_t* ids(const View& view) { return reinterpret_cast<const int32_t*>(view.bytes()); }

    const int32_t *tokens, *seq, *slot, *wanted;
    int64_t n_tokens, n_wanted;
    int32_t first_slot;
  };

  static void run(OpContext& ctx, const std::function<void()>& pass) {
    if (auto* fake = dynamic_cast<FakeCuda*>(ctx.backend)) {
      fake->enqueue(pass);
    } else {
      pass();
    }
  }
  static float* row_of(const View& rows, int64_t t) { return seen_from_device(rows).row<float>(t); }
  static PagedRows seen_rows(PagedRows rows) {
    rows.tables = seen_from_device(rows.tables);
    return rows;
  }

  void run_pair(const MtpInput& in, const ForwardRows& out, int64_t t, const PagedRows& hashes,
                const Seen& step) const {
    const auto before = static_cast<uint32_t>(row_of(in.state, t)[0]);
    if (step.slot[t] > step.first_slot && read(hashes, step.seq[t], step.slot[t] - 1) != before) ++n_stale_rows;
    const uint32_t hash = fake_mix(fake_before(before, first_of_window(hashes, step, t)), step.tokens[t]);
    write_row(out, t, hashes, step, hash);
    if (wrong_every_ == 0 || hash % wrong_every_ != 0) return;
    float* logits = row_of(out.hidden, t);
    std::swap(logits[fake_next(hash)], logits[(fake_next(hash) + 1) % (kFakeVocab - 1)]);
  }

  static LayerCacheFormat layer_cache(const ModelConfig&, const Numerics&, int) {
    return {.latent = latent_format(CacheDType::kF32, 4, 2)};
  }
  static const Architecture& family() {
    static constexpr Architecture kFake{.name = "fake",
                                        .model_type = "fake",
                                        .class_name = "FakeForCausalLM",
                                        .keys = nullptr,
                                        .read_config = nullptr,
                                        .layer_prefix = nullptr,
                                        .weight_rows = nullptr,
                                        .layer_cache = layer_cache,
                                        .make_model = nullptr,
                                        .describe = nullptr,
                                        .describe_json = nullptr};
    return kFake;
  }
  static ModelConfig config_of(int64_t n_window) {
    ModelConfig c;
    c.n_window = n_window;
    c.family = &family();
    c.n_vocab = c.d_model = kFakeVocab;
    c.n_layers = 1, c.n_mtp_layers = 1, c.max_position = 1 << 20;
    c.owns_indexer = {false};
    return c;
  }
  // logits = hidden
  static ModelWeights weights_of(Device where) {
    static const std::vector<float> identity = [] {
      std::vector<float> matrix(kFakeVocab * kFakeVocab);
      for (int64_t i = 0; i < kFakeVocab; ++i) matrix[static_cast<size_t>(i * kFakeVocab + i)] = 1;
      return matrix;
    }();
    const auto* bytes = reinterpret_cast<const std::byte*>(identity.data());
    ModelWeights weights;
    weights.head.w =
        where == Device::kCpu
            ? pack_matrix({.data = identity.data(), .dtype = DType::kF32, .n = kFakeVocab, .k = kFakeVocab})
            : matrix_on_device({.dtype = DType::kF32,
                                .n = kFakeVocab,
                                .k = kFakeVocab,
                                .data = Buffer::borrowed(bytes, std::ssize(identity) * 4, where),
                                .scales = {}});
    return weights;
  }

  ForwardRows rows(OpContext& ctx, int64_t n) const {
    return {.hidden = ctx.arena->allocate(DType::kF32, {n, kFakeVocab}),
            .state = ctx.arena->allocate(DType::kF32, {n, 1}),
            .topk = {}};
  }
  static std::byte* place(const PagedRows& rows, int32_t seq, int32_t slot) {
    return rows.page(seq, slot / kPageTokens) + slot % kPageTokens * (rows.page_bytes / kPageTokens);
  }
  static uint32_t read(const PagedRows& rows, int32_t seq, int32_t slot) {
    uint32_t hash = 0;
    std::memcpy(&hash, place(rows, seq, slot), sizeof(hash));
    return hash;
  }
  uint32_t first_of_window(const PagedRows& rows, const Seen& step, int64_t t) const {
    const int64_t first = step.slot[t] + 1 - config().n_window;
    return config().n_window > 0 && first >= 1 ? read(rows, step.seq[t], static_cast<int32_t>(first)) : 0;
  }
  static void write_row(const ForwardRows& out, int64_t t, const PagedRows& rows, const Seen& step, uint32_t hash) {
    std::memcpy(place(rows, step.seq[t], step.slot[t]), &hash, sizeof(hash));
    *row_of(out.state, t) = static_cast<float>(hash);
    float* logits = row_of(out.hidden, t);
    for (int64_t v = 0; v < kFakeVocab; ++v)
      logits[v] = static_cast<float>(fake_mix(hash, static_cast<int32_t>(v)) % 1000) / 1000;
    logits[fake_next(hash)] = 10;
  }

  uint32_t wrong_every_;
};

// What a greedy request gets.
inline std::vector<int32_t> fake_answer(const std::vector<int32_t>& prompt, int64_t n, int64_t n_window = 0) {
  std::vector<uint32_t> hashes;
  const auto run = [&](int32_t token) {
    const int64_t first = std::ssize(hashes) + 1 - n_window;
    const uint32_t far = n_window > 0 && first >= 1 ? hashes[static_cast<size_t>(first)] : 0;
    hashes.push_back(fake_mix(fake_before(hashes.empty() ? kFakeStart : hashes.back(), far), token));
  };
  for (const int32_t token : prompt) run(token);
  std::vector<int32_t> out;
  for (int64_t i = 0; i < n; ++i) {
    out.push_back(fake_next(hashes.back()));
    run(out.back());
  }
  return out;
}

}  // namespace levin::test
