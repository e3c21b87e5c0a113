// Top-k indices that pass from layer to layer and from draft to draft (GLM-5.2): who selects, who reads, whose cache is written.
#include <gtest/gtest.h>

#include <cstring>

#include "arch/deepseek_v3/weights.h"
#include "engine/loaded_model.h"
#include "engine/step_loop.h"
#include "engine/trace.h"

namespace levin::test {
namespace {

constexpr int64_t kPrompt = 40;  // tokens; glm-shared selects 12

std::vector<int32_t> made_up_ids(int64_t n, int seed) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < n; ++i) ids.push_back(static_cast<int32_t>((i * i * 7 + i * 13 + seed) % 300 + 2));
  return ids;
}

std::unique_ptr<Model> glm(bool share_across_drafts) {
  return load_fixture("glm-shared",
                      {.change_config = [=](ModelConfig& c) { c.share_topk_across_drafts = share_across_drafts; }});
}

// A model with one sequence in its own caches, for looking at what a pass leaves there.
class Bench {
 public:
  explicit Bench(const Model& model)
      : model_(model),
        cpu_(pool_, arena_, Isa::kPlain),
        ctx_(op_context(cpu_)),
        pools_(model.cache_layout().page_kinds(), {.n_tokens = kTokens}),
        cache_(model.cache_layout(), pools_),
        pages_(pools_) {
    must(pages_.grow(kTokens));
  }

  ForwardRows trunk(std::span<const int32_t> tokens) {
    return model_.trunk(ctx_, step(tokens, 0, SlotRule::kAtPosition), cache_);
  }
  ForwardRows mtp(std::span<const int32_t> tokens, int32_t position, const MtpInput& in, const Probe* probe = nullptr,
                  std::optional<std::span<const int32_t>> wanted = std::nullopt) {
    return model_.mtp(ctx_, step(tokens, position, SlotRule::kAfterPosition, wanted), in, cache_, probe);
  }
  // The index keys of a layer's page, as bytes.
  std::vector<std::byte> index_page(int layer, int page) const {
    const int64_t n_bytes = cache_.format(layer).index->page_bytes();
    std::vector<std::byte> out(static_cast<size_t>(n_bytes));
    const View table = View::of(pages_.rows().data(), {1, std::ssize(pages_.rows())});
    std::memcpy(out.data(), cache_.index_rows(layer, table).page(0, page), out.size());
    return out;
  }
  const KvCache& cache() const { return cache_; }

 private:
  static constexpr int64_t kTokens = 2 * kPageTokens;

  Step step(std::span<const int32_t> tokens, int32_t position, SlotRule rule,
            std::optional<std::span<const int32_t>> wanted = std::nullopt) {
    const SequenceChunk chunk{.tokens = tokens, .first_position = position, .pages = &pages_};
    return build_step(arena_, {&chunk, 1}, rule, pools_.kinds(), wanted);
  }

  const Model& model_;
  ThreadPool pool_{1};
  Arena arena_;
  CpuBackend cpu_;
  OpContext ctx_;
  SequencePools pools_;
  KvCache cache_;
  SequencePages pages_;
};

std::vector<int32_t> row_of(View rows, int64_t r) {
  return std::vector<int32_t>(rows.row<int32_t>(r), rows.row<int32_t>(r) + rows.dim(1));
}

TEST(LayerSharing, LayersWithoutAnIndexerReadWhatTheNearestOneBelowPicked) {
  const std::unique_ptr<Model> model = load_fixture("glm-pattern");
  const TraceOptions options{.ids = made_up_ids(kPrompt, 1)};
  Runner runner(*model, runner_options(trace_cache_tokens(options)));
  const TraceResult result = must(trace(runner, options));
  const int source_of[] = {0, 0, 2, 2, 2, 5};  // FSFSSF
  for (int layer = 0; layer < 6; ++layer) EXPECT_EQ(result.topk[layer], result.topk[source_of[layer]]) << layer;
  EXPECT_NE(result.topk[0], result.topk[2]);
  EXPECT_NE(result.topk[2], result.topk[5]);
}

TEST(LayerSharing, LayersWithoutAnIndexerCacheNoKeys) {
  const std::unique_ptr<Model> model = load_fixture("glm-pattern");
  const std::vector<LayerCacheFormat> formats = model->cache_layout().layers;
  ASSERT_EQ(formats.size(), 7u);
  for (int layer = 0; layer < 7; ++layer) {
    EXPECT_EQ(formats[static_cast<size_t>(layer)].index.has_value(), model->config().has_indexer(layer)) << layer;
  }
}

TEST(LayerSharingDeathTest, ALayerWithoutPicksIsNamed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        const std::unique_ptr<Model> model = load_fixture(
            "glm-pattern", {.change_weights = [](ModelWeights& w) { mla::own(w).layers[0].indexer.reset(); }});
        Bench bench(*model);
        bench.trunk(made_up_ids(4, 1));
      },
      "layer 0 has no indexer, and no layer below has selected in this step");
}

// The extend step of a round over a prompt, and one draft after it.
struct Round {
  std::vector<int32_t> first_topk;  // [K] of the last row
  std::vector<int32_t> next_topk;
  std::vector<int32_t> next_probed;  // what the draft's attention was given
};

Round draft_twice(Bench& bench, int64_t n_prompt, bool share) {
  const std::vector<int32_t> ids = made_up_ids(n_prompt + 2, 3);
  const View state = bench.trunk(std::span(ids).first(n_prompt)).state;
  const ForwardRows first = bench.mtp(std::span(ids).subspan(1, n_prompt), 0, {.state = state});
  Round round{.first_topk = row_of(first.topk, n_prompt - 1)};
  const Probe probe{.on_layer_output = {}, .on_topk = [&](int, View topk) { round.next_probed = row_of(topk, 0); }};
  const ForwardRows next = bench.mtp(std::span(ids).subspan(n_prompt + 1, 1), static_cast<int32_t>(n_prompt),
                                     {.state = first.state.slice_first(n_prompt - 1, 1),
                                      .topk = share ? first.topk.slice_first(n_prompt - 1, 1) : View()},
                                     &probe);
  round.next_topk = row_of(next.topk, 0);
  return round;
}

TEST(DraftSharing, TheNextDraftAttendsToTheFirstOnesPicksUnchanged) {
  const std::unique_ptr<Model> model = glm(true);
  Bench sharing(*model), selecting(*model);
  const Round shared = draft_twice(sharing, kPrompt, true), own = draft_twice(selecting, kPrompt, false);
  EXPECT_EQ(shared.first_topk, own.first_topk);
  EXPECT_EQ(shared.next_topk, shared.first_topk);
  EXPECT_EQ(shared.next_probed, shared.first_topk);
  EXPECT_NE(own.next_topk, own.first_topk);
}

// Of a prompt only the last row's selects are asked for; they are those of the whole pass.
TEST(DraftSharing, ARowAskedForAloneHasThePicksOfAll) {
  const std::unique_ptr<Model> model = glm(true);
  Bench whole(*model), alone(*model);
  const std::vector<int32_t> ids = made_up_ids(kPrompt + 1, 3);
  const std::vector<int32_t> rows = {3, kPrompt - 1};
  const auto extend = [&](Bench& bench, std::optional<std::span<const int32_t>> wanted) {
    const View state = bench.trunk(std::span(ids).first(kPrompt)).state;
    return bench.mtp(std::span(ids).subspan(1, kPrompt), 0, {.state = state}, nullptr, wanted);
  };
  const ForwardRows all = extend(whole, std::nullopt), some = extend(alone, rows);
  ASSERT_EQ(some.topk.dim(0), std::ssize(rows));
  for (int64_t i = 0; i < std::ssize(rows); ++i) {
    EXPECT_EQ(row_of(some.topk, i), row_of(all.topk, rows[static_cast<size_t>(i)])) << i;
  }
  const int mtp_layer = model->config().n_layers;
  EXPECT_EQ(alone.index_page(mtp_layer, 0), whole.index_page(mtp_layer, 0));
}

// Nothing is selected, but the key of the drafted token is there for a later selection.
TEST(DraftSharing, IndexKeysAreWrittenAllTheSame) {
  const std::unique_ptr<Model> model = glm(true);
  Bench sharing(*model), selecting(*model);
  draft_twice(sharing, kPrompt, true);
  draft_twice(selecting, kPrompt, false);
  EXPECT_EQ(sharing.index_page(model->config().n_layers, 0), selecting.index_page(model->config().n_layers, 0));
}

// Also when fewer slots than top-k indices were there: the row keeps its room, and the drafted position does not join it.
TEST(DraftSharing, ARowWithRoomLeftStaysAsItWas) {
  const std::unique_ptr<Model> model = glm(true);
  constexpr int64_t kShort = 6;
  Bench sharing(*model), selecting(*model);
  const Round shared = draft_twice(sharing, kShort, true), own = draft_twice(selecting, kShort, false);
  EXPECT_EQ(shared.next_topk, (std::vector<int32_t>{1, 2, 3, 4, 5, 6, -1, -1, -1, -1, -1, -1}));
  EXPECT_EQ(shared.next_probed, shared.next_topk);
  EXPECT_EQ(own.next_topk, (std::vector<int32_t>{1, 2, 3, 4, 5, 6, 7, -1, -1, -1, -1, -1}));
}

// ---- in the step loop --------------------------------------------------------------------------------------------

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<int64_t> accepted;  // per position
  int64_t n_drafted = 0;
  bool operator==(const Answer&) const = default;
};

Answer answer_of(const Generation& generation) {
  Answer answer{.accepted = generation.speculation.accepted_per_position,
                .n_drafted = generation.speculation.n_drafted};
  for (const TokenEvent& event : generation.tokens) answer.tokens.push_back(event.token);
  return answer;
}

// Requests that join one after the other, `apart` steps between them.
std::vector<Answer> run(const Model& model, const std::vector<std::vector<int32_t>>& prompts, int apart, int n_drafts) {
  Runner runner(model, runner_options(2048));
  StepLoop loop(runner, {.chunk_tokens = 16, .n_spec_steps = n_drafts, .max_context_tokens = 256});
  std::vector<RequestId> ids;
  for (const std::vector<int32_t>& prompt : prompts) {
    GenerateRequest request{.prompt = prompt, .max_tokens = 24};
    request.sampling.temperature = 0;
    ids.push_back(must(loop.submit(std::move(request))));
    for (int i = 0; i < apart; ++i) loop.step();
  }
  while (loop.step()) continue;
  std::vector<Answer> out;
  for (const RequestId id : ids) out.push_back(answer_of(*loop.take(id)));
  return out;
}

// A draft that read another request's top-k indices, or those of an earlier round, would be accepted elsewhere.
TEST(DraftSharing, EachRequestHasItsOwnPicksWhoeverElseIsThere) {
  const std::unique_ptr<Model> model = glm(true);
  std::vector<std::vector<int32_t>> prompts;
  for (int i = 0; i < 5; ++i) prompts.push_back(made_up_ids(9 + 23 * i, i));
  std::vector<Answer> alone;
  for (const std::vector<int32_t>& prompt : prompts) alone.push_back(run(*model, {prompt}, 0, 4).front());
  for (const int apart : {0, 1, 3}) EXPECT_EQ(run(*model, prompts, apart, 4), alone) << apart;
}

TEST(DraftSharing, NeverChangesAToken) {
  const std::unique_ptr<Model> sharing = glm(true), selecting = glm(false);
  for (int i = 0; i < 4; ++i) {
    const std::vector<std::vector<int32_t>> prompt = {made_up_ids(20 + 15 * i, 40 + i)};
    const std::vector<int32_t> plain = run(*sharing, prompt, 0, 0).front().tokens;
    EXPECT_EQ(run(*sharing, prompt, 0, 4).front().tokens, plain);
    EXPECT_EQ(run(*selecting, prompt, 0, 4).front().tokens, plain);
  }
}

}  // namespace
}  // namespace levin::test
