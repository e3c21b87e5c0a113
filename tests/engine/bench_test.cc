#include "engine/bench.h"

#include <gtest/gtest.h>

#include "engine/loaded_model.h"
#include "support/must.h"

namespace levin::test {
namespace {

class BenchTest : public testing::Test {
 protected:
  static constexpr BenchOptions kOptions{.chunk_tokens = 32, .decode_tokens = 6};

  Result<BenchRow> run(const BenchCase& what, int64_t n_cache_tokens, const BenchOptions& options = kOptions) {
    Runner runner(*model_, {.cuda = tested_cuda(),
                            .isa = cpu_info().preferred_isa(),
                            .n_cache_tokens = n_cache_tokens,
                            .n_sequences = what.batch,
                            .n_step_tokens = kOptions.chunk_tokens,
                            .n_undone_tokens = 3});
    return run_bench(runner, what, options);
  }

  std::unique_ptr<Model> model_ = load_model(demo_model_folder("demo-v32"), {.numerics = NumericsMode::kFast});
};

// Prompts take steps of their own, more than an answer has tokens: decoding waits for the last of them.
TEST_F(BenchTest, DecodesAllSequencesInTheSameSteps) {
  for (const BenchCase& what : {BenchCase{.depth_tokens = 150, .batch = 4}, BenchCase{.depth_tokens = 0, .batch = 12},
                                BenchCase{.depth_tokens = 63, .batch = 3}}) {
    const BenchRow row = must(run(what, bench_cache_tokens(what, kOptions)));
    EXPECT_NEAR(row.decode_tokens_per_s * row.decode_step_s, static_cast<double>(what.batch), 1e-6);  // tokens per step
  }
}

TEST_F(BenchTest, HasRoomForDraftsToo) {
  for (int64_t depth = 50; depth < 60; ++depth) {  // the drafts of the last rows are in a page of their own
    const BenchCase what{.depth_tokens = depth, .batch = 4, .n_spec_steps = 3};
    EXPECT_GE(must(run(what, bench_cache_tokens(what, kOptions))).mean_accept_length, 1);
  }
}

// The noise of a position is the same for its draft and its token.
TEST_F(BenchTest, DraftsAreRightAtAHighTemperature) {
  const BenchCase what{.depth_tokens = 20, .batch = 4, .n_spec_steps = 3};
  BenchOptions options{.chunk_tokens = 32, .decode_tokens = 24, .min_confidence = 0};
  const double cold = must(run(what, bench_cache_tokens(what, options), options)).mean_accept_length;
  options.temperature = 100;
  const double hot = must(run(what, bench_cache_tokens(what, options), options)).mean_accept_length;
  EXPECT_LT(cold, 2);
  EXPECT_GT(hot, 3);
}

// Every sequence has rows of its own: a cache of fewer pages than that is refused as ever.
TEST_F(BenchTest, FillsContextsInsteadOfComputingThem) {
  BenchOptions options = kOptions;
  options.fill_context = true;
  const BenchCase what{.depth_tokens = 1500, .batch = 4, .n_spec_steps = 3};
  const BenchRow row = must(run(what, bench_cache_tokens(what, options), options));
  EXPECT_EQ(row.prompt_s, 0);
  EXPECT_GT(row.prefill_tokens_per_s, 0);
  EXPECT_GE(row.mean_accept_length, 1);
  EXPECT_FALSE(run(what, 2 * bench_cache_tokens(what, options) / what.batch, options).ok());
}

TEST_F(BenchTest, RefusesWhatTheCacheHasNoRoomFor) {
  const BenchCase what{.depth_tokens = 150, .batch = 4};
  for (const int64_t n_cache_tokens : {int64_t{256}, int64_t{512}}) {  // of one sequence, of two
    const Result<BenchRow> row = run(what, n_cache_tokens);
    ASSERT_FALSE(row.ok()) << n_cache_tokens;
    EXPECT_NE(row.error().message.find("decoding 4 sequences at a depth of 150 needs a cache of "), std::string::npos)
        << row.error().message;
    EXPECT_NE(row.error().message.find("give a smaller --batch"), std::string::npos) << row.error().message;
  }
}

}  // namespace
}  // namespace levin::test
