#include "engine/near_plain.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <memory>
#include <numbers>
#include <span>

#include "engine/build_step.h"
#include "engine/input_pack.h"
#include "kv/cache.h"
#include "ops/index_topk.h"
#include "support/must.h"

namespace levin::test {
namespace {

constexpr size_t kChunkTokens = 512;
const double kRounding = std::sqrt(2.0 / 12) * std::exp2(-3.5);  // r

// What a layer has of the tokens of a chunk, on the host.
struct LayerRows {
  std::vector<float> x;          // [T, D]
  std::vector<int32_t> picks;    // [T, K]
  std::vector<float> scores;     // [T, S]; empty: every slot was taken, or the layer does not select
  std::vector<float> logits;     // [T, E]
  std::vector<int32_t> experts;  // [T, A]
  std::vector<float> weights;    // [T, A]
};

struct ChunkRows {
  int64_t first_position = 0, n_tokens = 0;
  std::vector<LayerRows> layers;
};

// A text on its way through the trunk of a model, on one of the sets.
class Run {
 public:
  Run(CudaBackend& cuda, const Model& model, Forced forced, int64_t n_text_tokens)
      : cuda_(cuda),
        model_(model),
        forced_(forced),
        pools_(model.cache_layout().page_kinds(), {.n_tokens = n_text_tokens + kPageTokens, .n_sequences = 1}),
        cache_(must(KvCache::on_device(cuda, model.cache_layout(), pools_))),
        pages_(pools_) {
    must(pages_.grow(n_text_tokens));
  }

  // The rows of the next tokens, before anything of `plain` took their place.
  ChunkRows next(std::span<const int32_t> tokens, const ChunkRows* plain) {
    rows_ = {.first_position = n_done_,
             .n_tokens = std::ssize(tokens),
             .layers = std::vector<LayerRows>(static_cast<size_t>(model_.config().n_layers))};
    plain_ = forced_ == Forced::kNothing ? nullptr : plain;
    const SequenceChunk chunk{.tokens = tokens, .first_position = static_cast<int32_t>(n_done_), .pages = &pages_};
    Arena arena;
    Step step = build_step(arena, {&chunk, 1}, SlotRule::kAtPosition, pools_.kinds());
    const ArenaScope scratch(cuda_.arena());
    InputPack pack;
    for_each_view(step, [&](View& view) { pack.add(view); });
    pack.send(cuda_);
    OpContext ctx = op_context(cuda_);
    const Probe probe = probe_of(ctx);
    model_.trunk(ctx, step, cache_, &probe);
    must(cuda_.synchronize());
    n_done_ += std::ssize(tokens);
    return std::move(rows_);
  }

 private:
  Probe probe_of(OpContext& ctx) {
    return {.on_layer_output =
                [this](int layer, View x) {
                  at(layer).x = values<float>(x);
                  if (plain_ != nullptr && forced_ == Forced::kChoicesAndInputs) put(x, plain_at(layer).x);
                },
            .on_topk =
                [this](int layer, View topk) {
                  layer_ = layer;
                  at(layer).picks = values<int32_t>(topk);
                  if (plain_ != nullptr) put(topk, plain_at(layer).picks);
                },
            .on_window_rows = {},
            .on_taps = {},
            .on_index_query = [this, &ctx](const ops::IndexQuery& query) { next_scores_ = scores(ctx, query); },
            .on_experts =
                [this](View logits, View experts, View weights) {
                  LayerRows& rows = at(layer_);
                  rows.logits = values<float>(logits);
                  rows.experts = values<int32_t>(experts);
                  rows.weights = values<float>(weights);
                  if (plain_ == nullptr) return;
                  put(experts, plain_at(layer_).experts);
                  put(weights, plain_at(layer_).weights);
                }};
  }

  std::vector<float> scores(OpContext& ctx, ops::IndexQuery query) {
    const ArenaScope scratch(*ctx.arena);
    query.plan = {};  // the step's leaves out rows that take every slot
    const View out = ctx.arena->allocate(DType::kF32, {query.q.dim(0), query.cache.tables.dim(1) * kPageTokens});
    ops::index_scores(ctx, {.query = query, .score = out});
    return values<float>(out);
  }

  template <class T>
  std::vector<T> values(View rows) {
    std::vector<T> out(static_cast<size_t>(rows.n_elements()));
    must(cuda_.copy_out(View::of(out.data(), {rows.dim(0), rows.dim(1)}), rows));
    return out;
  }
  template <class T>
  void put(View to, const std::vector<T>& from) {
    cuda_.copy_in(to, View::of(from.data(), {to.dim(0), to.dim(1)}));
  }

  LayerRows& at(int layer) {
    LayerRows& rows = rows_.layers[static_cast<size_t>(layer)];
    if (!next_scores_.empty()) rows.scores = std::move(next_scores_);
    next_scores_.clear();
    return rows;
  }
  const LayerRows& plain_at(int layer) const { return plain_->layers[static_cast<size_t>(layer)]; }

  CudaBackend& cuda_;
  const Model& model_;
  Forced forced_;
  SequencePools pools_;
  KvCache cache_;
  SequencePages pages_;
  int64_t n_done_ = 0;
  ChunkRows rows_;
  const ChunkRows* plain_ = nullptr;
  std::vector<float> next_scores_;  // of the layer whose picks come next
  int layer_ = 0;
};

template <class T>
std::span<const T> row_of(const std::vector<T>& rows, int64_t row, int64_t n_rows) {
  const size_t d = rows.size() / static_cast<size_t>(n_rows);
  return std::span(rows).subspan(static_cast<size_t>(row) * d, d);
}

// |found - expected| / |expected - center|.
double error_share(std::span<const float> found, std::span<const float> expected, double center = 0) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    error += std::pow(double{found[i]} - expected[i], 2);
    norm += std::pow(double{expected[i]} - center, 2);
  }
  return std::sqrt(error / norm);
}

// The same over all rows of a chunk.
double sum_of_errors(const std::vector<float>& found, const std::vector<float>& expected, int64_t n_rows) {
  LEVIN_CHECK(found.size() == expected.size(), "{} values, {} expected", found.size(), expected.size());
  double sum = 0;
  for (int64_t row = 0; row < n_rows; ++row)
    sum += error_share(row_of(found, row, n_rows), row_of(expected, row, n_rows));
  return sum;
}

double mean_of(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

// Of `found`, what is not in `expected`.
std::vector<int32_t> others(std::span<const int32_t> found, std::span<const int32_t> expected) {
  std::vector<int32_t> a(found.begin(), found.end()), b(expected.begin(), expected.end()), out;
  std::sort(a.begin(), a.end());
  std::sort(b.begin(), b.end());
  std::set_difference(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(out));
  return out;
}

// Adds up what the chunks of a layer differ by; LayerDifference has means in the end.
class DifferenceSums {
 public:
  void add(const LayerRows& found, const LayerRows& plain, int64_t first_position, int64_t n_tokens) {
    n_rows_ += n_tokens;
    sums_.row_error += sum_of_errors(found.x, plain.x, n_tokens);
    for (int64_t t = 0; !plain.scores.empty() && t < n_tokens; ++t) {
      add_selection(found, plain, t, n_tokens, first_position + t + 1);
    }
    if (plain.logits.empty()) return;
    sums_.logit_error += sum_of_errors(found.logits, plain.logits, n_tokens);
    for (int64_t t = 0; t < n_tokens; ++t)
      sums_.n_other_experts +=
          std::ssize(others(row_of(found.experts, t, n_tokens), row_of(plain.experts, t, n_tokens)));
    sums_.n_experts += std::ssize(plain.experts);
  }

  LayerDifference means() const {
    LayerDifference out = sums_;
    out.row_error /= static_cast<double>(n_rows_);
    out.logit_error /= static_cast<double>(n_rows_);
    if (n_selecting_ > 0) out.score_error /= static_cast<double>(n_selecting_);
    return out;
  }

 private:
  void add_selection(const LayerRows& found, const LayerRows& plain, int64_t t, int64_t n_tokens, int64_t n_visible) {
    const std::span<const int32_t> picks = row_of(found.picks, t, n_tokens),
                                   plain_picks = row_of(plain.picks, t, n_tokens);
    if (n_visible <= std::ssize(picks)) return;
    const auto seen = [&](const LayerRows& rows) {
      return row_of(rows.scores, t, n_tokens).first(static_cast<size_t>(n_visible));
    };
    const std::span<const float> scores = seen(found), plain_scores = seen(plain);
    sums_.score_error += error_share(scores, plain_scores, mean_of(plain_scores));
    ++n_selecting_;
    double largest = 0;  // difference
    for (size_t s = 0; s < scores.size(); ++s)
      largest = std::max(largest, std::abs(double{scores[s]} - plain_scores[s]));
    const auto plain_score = [&](int32_t slot) { return double{plain_scores[static_cast<size_t>(slot)]}; };
    double least = std::numeric_limits<double>::infinity();  // score that was selected
    for (const int32_t slot : plain_picks) least = std::min(least, plain_score(slot));
    const std::vector<int32_t> added = others(picks, plain_picks), missing = others(plain_picks, picks);
    for (const std::vector<int32_t>* changed : {&added, &missing}) {
      for (const int32_t slot : *changed)
        sums_.n_unexplained_picks += std::abs(plain_score(slot) - least) > 2 * largest;
    }
    sums_.n_picks += std::ssize(picks);
    sums_.n_other_picks += std::ssize(added);
  }

  LayerDifference sums_;
  int64_t n_rows_ = 0, n_selecting_ = 0;
};

}  // namespace

std::string LayerDifference::describe() const {
  return fmt::format(
      "rows {:.5f}; index scores {:.5f}, {} of {} picks others, {} without a reason; router logits {:.5f}, {} of {} "
      "experts others",
      row_error, score_error, n_other_picks, n_picks, n_unexplained_picks, logit_error, n_other_experts, n_experts);
}

std::vector<std::vector<LayerDifference>> differences_of_layers(CudaBackend& tuned, CudaBackend& plain,
                                                                const Model& model, const Ids& text,
                                                                const std::vector<Forced>& ways) {
  Run plain_run(plain, model, Forced::kNothing, std::ssize(text));
  std::vector<std::unique_ptr<Run>> runs;
  for (const Forced way : ways) runs.push_back(std::make_unique<Run>(tuned, model, way, std::ssize(text)));
  const auto n_layers = static_cast<size_t>(model.config().n_layers);
  std::vector<std::vector<DifferenceSums>> sums(ways.size(), std::vector<DifferenceSums>(n_layers));
  for (size_t begin = 0; begin < text.size(); begin += kChunkTokens) {
    const auto tokens = std::span(text).subspan(begin, std::min(kChunkTokens, text.size() - begin));
    const ChunkRows expected = plain_run.next(tokens, nullptr);
    for (size_t way = 0; way < ways.size(); ++way) {
      const ChunkRows found = runs[way]->next(tokens, &expected);
      for (size_t layer = 0; layer < n_layers; ++layer)
        sums[way][layer].add(found.layers[layer], expected.layers[layer], found.first_position, found.n_tokens);
    }
  }
  std::vector<std::vector<LayerDifference>> out(ways.size());
  for (size_t way = 0; way < ways.size(); ++way) {
    for (const DifferenceSums& layer : sums[way]) out[way].push_back(layer.means());
  }
  return out;
}

double row_tolerance(int n_layers) { return kRounding * std::sqrt(9 * (std::exp2(n_layers) - 1)); }

double score_tolerance() {
  const double of_spread = std::sqrt(0.5 / (0.5 - 0.5 / std::numbers::pi));
  return of_spread * std::sqrt(3) * kRounding;
}

double logit_tolerance() { return std::sqrt(3) * kRounding; }

void expect_near_plain(const std::vector<LayerDifference>& layers, Forced forced) {
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    const LayerDifference& found = layers[layer];
    fmt::print("layer {}: {}\n", layer, found.describe());
    SCOPED_TRACE(fmt::format("layer {}", layer));
    if (forced == Forced::kChoicesAndInputs) {
      EXPECT_LE(found.row_error, row_tolerance(1));
      EXPECT_LE(found.score_error, score_tolerance());
      EXPECT_LE(found.logit_error, logit_tolerance());
    } else {
      EXPECT_LE(found.row_error, row_tolerance(static_cast<int>(layer) + 1));
    }
    EXPECT_EQ(found.n_unexplained_picks, 0);
    EXPECT_GT(found.n_picks, 0) << "no row selected";
    EXPECT_GT(found.row_error, 0) << "the tuned kernels were not used";
  }
}

}  // namespace levin::test
