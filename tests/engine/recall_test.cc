// Recall on the demonstration models: share of the digit tokens of planted numbers that the model puts first,
// teacher-forced, at about 3,500 to 4,000 tokens. What is expected stands in the models' READMEs, measured in float32
// by another program on documents of the same kind.
#include "engine/recall_test.h"

#include <string_view>

#include "engine/digit_tokens.h"
#include "engine/loaded_model.h"
#include "engine/passkey.h"
#include "text/tokenizer.h"

namespace levin::test {
namespace {

constexpr size_t kCharacters = 13000;

struct Published {
  double recall;
  double most_recent_at_most;  // when the last tokens are selected instead
};
Published published(const RecallCase& c) {
  return std::string_view(c.model) == "demo-glm" ? Published{0.986, 0.25} : Published{0.990, 0.15};
}

struct Score {
  int64_t n_right = 0;
  int64_t n_tokens = 0;
  double share() const { return static_cast<double>(n_right) / static_cast<double>(n_tokens); }
};

void score_document(const Model& model, const text::Tokenizer& tokenizer, const PasskeyDocument& document,
                    Score* score) {
  const DigitTokens digits = digit_tokens(tokenizer, document);
  const std::vector<int32_t>& ids = digits.ids;
  Runner runner(model, runner_options(static_cast<int64_t>(ids.size())));
  SequencePages pages(runner.pools());
  must(pages.grow(static_cast<int64_t>(ids.size())));
  constexpr size_t kChunk = 512;
  for (size_t begin = 0; begin < ids.size(); begin += kChunk) {
    const size_t count = std::min(kChunk, ids.size() - begin);
    runner.begin_step();
    const SequenceChunk chunk{
        .tokens = std::span(ids).subspan(begin, count), .first_position = static_cast<int32_t>(begin), .pages = &pages};
    const View hidden = runner.trunk({&chunk, 1}).hidden;
    for (const auto& [first, end] : digits.answers) {
      for (size_t position = first; position < end; ++position) {
        if (position - 1 < begin || position - 1 >= begin + count) continue;
        const View row = hidden.slice_first(static_cast<int64_t>(position - 1 - begin), 1);
        score->n_right += runner.argmax(runner.logits(row)).front() == ids[position];
        ++score->n_tokens;
      }
    }
  }
}

double recall(const RecallCase& c, const ModelChoices& choices) {
  const std::unique_ptr<Model> model = load_model(demo_model_folder(c.model), choices);
  const text::Tokenizer tokenizer = must(text::Tokenizer::load(demo_model_folder(c.model)));
  Score score;
  for (const PasskeyDocument& document :
       passkey_documents({.first_seed = 100, .n_drawn = kMaxDocuments, .n = c.n_documents}, kCharacters))
    score_document(*model, tokenizer, document, &score);
  std::printf("recall %.3f over %ld digit tokens\n", score.share(), static_cast<long>(score.n_tokens));
  return score.share();
}

}  // namespace

TEST_P(RecallTest, IsThePublishedFigureInReference) {
  EXPECT_NEAR(recall(GetParam(), {}), published(GetParam()).recall, 0.04);
}

TEST_P(RecallTest, IsThePublishedFigureInFast) {
  EXPECT_NEAR(recall(GetParam(), {.numerics = NumericsMode::kFast}), published(GetParam()).recall, 0.04);
}

TEST_P(RecallTest, CollapsesWhenTheMostRecentTokensAreSelected) {
  EXPECT_LE(recall(GetParam(), {.selection = Selection::kMostRecent}), published(GetParam()).most_recent_at_most);
}

// GLM's demonstration model hardly notices; glm-shared in oracle_test.cc does.
TEST_P(RecallOfV32Test, FallsWhenTheIndexersRopePairingIsFlipped) {
  const double share =
      recall({"demo-v32", GetParam()},
             {.change_config = [](ModelConfig& c) { c.index_rope_pairing = ops::RopePairing::kInterleaved; }});
  EXPECT_LE(share, 0.60);
}

}  // namespace levin::test
