// Blocks of a sequence as records (kv/cache.h): a sequence whose first blocks are put in continues with the bits of one
// that ran them itself, however it ran them, and nothing in a record is without effect.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "engine/loaded_model.h"
#include "model/memory_plan.h"

namespace levin::test {
namespace {

using Ids = std::vector<int32_t>;
using Record = std::vector<std::byte>;

constexpr int64_t kTokens = 700;
constexpr int64_t kMaxStep = 300;  // beyond twice a block

// What a run gives from position `begin` on.
struct Ran {
  int64_t begin = 0;
  std::vector<float> state, logits;  // of the trunk, by position
  std::vector<float> draft_logits;   // of the MTP layer, for the pairs (i, i + 1) from begin - 1 on
  std::vector<Record> records;       // of the blocks that end after begin

  bool operator==(const Ran&) const = default;
};

// What a run resumes from: blocks, and the trunk's state of the last of their tokens.
struct Blocks {
  std::vector<Record> records;
  std::vector<float> state;
};

void append(std::vector<float>* to, View rows) {
  to->insert(to->end(), rows.data<float>(), rows.data<float>() + rows.n_elements());
}

class Sequence {
 public:
  Sequence(const Model& model, Ids ids)
      : model_(model), ids_(std::move(ids)), runner_(model, options()), pages_(runner_.pools()) {
    // others have run here before
    SequencePages other(runner_.pools());
    must(other.grow(kPageTokens));
    must(pages_.grow(kTokens + 1));
  }

  // Puts the blocks in and runs the rest in steps of these sizes, over and over.
  Ran run(const Blocks& from, const std::vector<int64_t>& step_sizes) {
    for (size_t n = 0; n < from.records.size(); ++n) {
      runner_.set_block(pages_, static_cast<int64_t>(n), from.records[n]);
    }
    Ran out{.begin = std::ssize(from.records) * runner_.block_tokens()};
    std::vector<float> pending = from.state;  // of the trunk, that the MTP layer has yet to see
    int64_t begin = out.begin;
    for (size_t i = 0; begin < kTokens; ++i) {
      const int64_t end = std::min(kTokens, begin + step_sizes[i % step_sizes.size()]);
      step(begin, end, pending, out);
      begin = end;
    }
    return out;
  }
  // Of a run's positions up to this many tokens, as another may resume from it.
  Blocks blocks_of(const Ran& ran, size_t n_blocks) const {
    Blocks out{.records = {ran.records.begin(), ran.records.begin() + static_cast<int64_t>(n_blocks)}, .state = {}};
    const int64_t last = static_cast<int64_t>(n_blocks) * runner_.block_tokens() - 1, d_state = model_.d_state();
    out.state.assign(ran.state.begin() + last * d_state, ran.state.begin() + (last + 1) * d_state);
    return out;
  }
  // What a run that resumes after n blocks should give.
  Ran rest_of(const Ran& ran, size_t n_blocks) const {
    const int64_t begin = static_cast<int64_t>(n_blocks) * runner_.block_tokens();
    const int64_t d_state = model_.d_state(), n_vocab = model_.config().n_vocab;
    return {.begin = begin,
            .state = {ran.state.begin() + begin * d_state, ran.state.end()},
            .logits = {ran.logits.begin() + begin * n_vocab, ran.logits.end()},
            .draft_logits = {ran.draft_logits.begin() + (begin - 1) * n_vocab, ran.draft_logits.end()},
            .records = {ran.records.begin() + static_cast<int64_t>(n_blocks), ran.records.end()}};
  }

 private:
  static RunnerOptions options() {
    RunnerOptions out = runner_options(kTokens + 2 * kPageTokens, 1);
    out.n_sequences = 2;
    out.n_step_tokens = kMaxStep;
    out.n_undone_tokens = 3;
    return out;
  }
  SequenceChunk chunk(int64_t first_token, int64_t n, int64_t position) const {
    return {.tokens = std::span(ids_).subspan(static_cast<size_t>(first_token), static_cast<size_t>(n)),
            .first_position = static_cast<int32_t>(position),
            .pages = &pages_};
  }
  void step(int64_t begin, int64_t end, std::vector<float>& pending, Ran& out) {
    runner_.begin_step();
    const SequenceChunk tokens = chunk(begin, end - begin, begin);
    const ForwardRows rows = runner_.trunk({&tokens, 1});
    append(&out.state, rows.state);
    append(&out.logits, runner_.logits(rows.hidden));
    append(&pending, rows.state);
    const int64_t n_pending = std::ssize(pending) / model_.d_state();
    const int64_t n_pairs = end < kTokens ? n_pending : n_pending - 1;
    const SequenceChunk pairs = chunk(end - n_pending + 1, n_pairs, end - n_pending);
    const View state = View::of(pending.data(), {n_pairs, model_.d_state()});
    append(&out.draft_logits, runner_.draft_logits(runner_.mtp({&pairs, 1}, {.state = state}).hidden));
    pending.clear();
    const int64_t n_block = runner_.block_tokens();
    for (int64_t block = begin / n_block; block < end / n_block; ++block) {
      runner_.copy_block(pages_, block, out.records.emplace_back(static_cast<size_t>(runner_.block_bytes())));
    }
  }

  const Model& model_;
  Ids ids_;
  Runner runner_;
  SequencePages pages_;
};

Ids random_ids(const Model& model) {
  std::mt19937 random(9);
  Ids ids(kTokens);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % static_cast<uint32_t>(model.config().n_vocab));
  return ids;
}

class BlocksTest : public ::testing::TestWithParam<std::tuple<std::string, NumericsMode>> {
 protected:
  const std::unique_ptr<Model> model_ = load_fixture(std::get<0>(GetParam()), {.numerics = std::get<1>(GetParam())});
  const Ids ids_ = random_ids(*model_);
};

TEST_P(BlocksTest, ASequenceGoesOnFromThemAsIfItHadRunThemItself) {
  Sequence cold(*model_, ids_);
  const Ran right = cold.run({}, {kMaxStep});
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{1, 5, 64}, std::vector<int64_t>{130, 1, 1}}) {
    EXPECT_TRUE(Sequence(*model_, ids_).run({}, sizes) == right) << "steps of " << sizes[0];
  }
  for (size_t n = 1; n <= right.records.size(); ++n) {
    const Ran found = Sequence(*model_, ids_).run(cold.blocks_of(right, n), {static_cast<int64_t>(17 + 90 * (n % 3))});
    EXPECT_TRUE(found == cold.rest_of(right, n)) << "after " << n << " blocks";
  }
}

// A part of a record, and where it lies.
struct Part {
  std::string name;
  int64_t begin, end;
};

// In the order that kv/cache.h gives.
std::vector<Part> parts_of(const CacheLayout& layout) {
  std::vector<Part> out;
  int64_t at = 0;
  const int64_t n_tokens = layout.block_tokens();
  const int64_t n_rows = layout.n_window > 0 ? std::min(layout.n_window, n_tokens) : n_tokens;
  for (size_t i = 0; i < layout.layers.size(); ++i) {
    const auto add = [&](const char* name, int64_t n_bytes) {
      if (n_bytes == 0) return;
      out.push_back({fmt::format("{} of layer {}", name, i), at, at + n_bytes});
      at += n_bytes;
    };
    const LayerCacheFormat& l = layout.layers[i];
    const int64_t n_keys = l.compressed ? n_tokens / l.compressed->ratio : n_tokens;
    add("latent rows", n_rows * l.latent.row_bytes);
    if (l.recurrent) {
      add("convolution rows", 4 * (l.recurrent->n_taps - 1) * l.recurrent->conv_values());
      add("recurrent state", 4 * l.recurrent->state_values());
    }
    if (l.compressed) add("entries", n_keys * l.compressed->entries.row_bytes);
    if (l.index) add("index keys", n_keys * l.index->page_bytes() / kPageTokens);
    if (!l.compressed) continue;
    if (l.compressed->state.n_before > 0) add("state", l.compressed->state.n_before * l.compressed->state.row_bytes());
    if (l.compressed->index_state) {
      add("index state", l.compressed->index_state->n_before * l.compressed->index_state->row_bytes());
    }
  }
  EXPECT_EQ(at, layout.block_bytes());
  return out;
}

TEST_P(BlocksTest, EveryPartOfARecordIsNeeded) {
  Sequence cold(*model_, ids_);
  const Ran right = cold.run({}, {kMaxStep});
  const size_t n_blocks = right.records.size() - 1;
  const Ran rest = cold.rest_of(right, n_blocks);
  const Blocks whole = cold.blocks_of(right, n_blocks);
  for (const Part& part : parts_of(model_->cache_layout())) {
    Blocks lacking = whole;
    for (Record& record : lacking.records)
      std::fill(record.begin() + part.begin, record.begin() + part.end, std::byte{0});
    EXPECT_FALSE(Sequence(*model_, ids_).run(lacking, {kMaxStep}) == rest) << part.name;
  }
  Blocks turned = whole;  // norms make nothing of a scale
  for (float& x : turned.state) x = -x;
  EXPECT_FALSE(Sequence(*model_, ids_).run(turned, {kMaxStep}) == rest) << "state of the last token";
}

TEST_P(BlocksTest, ThePlanCountsARecordWithTheStateAfterIt) {
  const CacheLayout layout = model_->cache_layout();
  const MemoryPlan plan = plan_memory(model_->config(), model_->numerics(), nullptr, {.n_undone = 1});
  EXPECT_EQ(plan.block_bytes, layout.keeps_all_rows() ? 0 : layout.block_bytes() + 4 * model_->d_state());
}

INSTANTIATE_TEST_SUITE_P(
    Fixtures, BlocksTest,
    ::testing::Combine(::testing::Values("v4-flash", "v4-fp4", "v32-fp8", "glm-pattern", "glm-next"),
                       ::testing::Values(NumericsMode::kReference, NumericsMode::kOfficial, NumericsMode::kFast)),
    [](const auto& test) {
      return test_name(fmt::format("{}_{}", std::get<0>(test.param), numerics_mode_name(std::get<1>(test.param))));
    });

}  // namespace
}  // namespace levin::test
