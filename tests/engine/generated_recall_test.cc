// Recall by generation: every answer to the questions of a passkey document is generated, greedily, after the document
// and the true text of the questions and answers before it; the share of the answers' digit tokens that come out. The
// answers before are put back by writing over the generated tokens: undo is shortening.
//
// models/demo-v32/README.md has 0.990 at 13000 characters and 0.949 at 26000, teacher-forced.
#include "engine/digit_tokens.h"
#include "engine/loaded_model.h"
#include "engine/passkey.h"
#include "engine/recall_test.h"
#include "text/tokenizer.h"

namespace levin::test {
namespace {

// A sequence that is run piece by piece.
class Reader {
 public:
  Reader(Runner& runner, int64_t n_tokens) : runner_(runner), pages_(runner.pools()) { must(pages_.grow(n_tokens)); }

  // Runs tokens at a position, over whatever was there; -> the most likely token after them.
  int32_t read(std::span<const int32_t> tokens, size_t position) {
    constexpr size_t kChunk = 512;
    int32_t next = -1;
    for (size_t begin = 0; begin < tokens.size(); begin += kChunk) {
      const size_t count = std::min(kChunk, tokens.size() - begin);
      const SequenceChunk chunk{.tokens = tokens.subspan(begin, count),
                                .first_position = static_cast<int32_t>(position + begin),
                                .pages = &pages_};
      runner_.begin_step();
      const View hidden = runner_.trunk({&chunk, 1}).hidden;
      next = runner_.argmax(runner_.logits(hidden.slice_first(static_cast<int64_t>(count) - 1, 1))).front();
    }
    return next;
  }

 private:
  Runner& runner_;
  SequencePages pages_;
};

struct Score {
  int64_t n_right = 0;
  int64_t n_tokens = 0;
};

// Digit tokens of the generated answer that stand where the true one has them.
void score_document(Runner& runner, const text::Tokenizer& tokenizer, const PasskeyDocument& document, Score* score) {
  const DigitTokens digits = digit_tokens(tokenizer, document);
  Reader reader(runner, std::ssize(digits.ids) + 1);
  size_t n_read = 0;
  for (const auto& [begin, end] : digits.answers) {
    const std::span<const int32_t> ids(digits.ids);
    int32_t token = reader.read(ids.subspan(n_read, begin - n_read), n_read);
    for (size_t i = begin; i < end; ++i) {
      score->n_right += token == ids[i];
      ++score->n_tokens;
      if (i + 1 < end) token = reader.read({&token, 1}, i);
    }
    n_read = begin;
  }
}

double generated_recall(size_t n_characters, const PasskeyChoice& documents) {
  const std::unique_ptr<Model> model = load_model(demo_model_folder(), {.numerics = NumericsMode::kFast});
  const text::Tokenizer tokenizer = must(text::Tokenizer::load(demo_model_folder()));
  Runner runner(*model, runner_options(10000));
  Score score;
  for (const PasskeyDocument& document : passkey_documents(documents, n_characters))
    score_document(runner, tokenizer, document, &score);
  const double share = static_cast<double>(score.n_right) / static_cast<double>(score.n_tokens);
  std::printf("%zu characters: %.3f of %ld digit tokens\n", n_characters, share, static_cast<long>(score.n_tokens));
  return share;
}

}  // namespace

TEST_P(RecallOfV32Test, ByGenerationIsTheTeacherForcedFigureAtAbout4kTokens) {
  const PasskeyChoice documents{.first_seed = 200, .n_drawn = kMaxDocuments, .n = GetParam()};
  EXPECT_NEAR(generated_recall(13000, documents), 0.990, 0.08);
}

TEST_P(RecallOfV32Test, ByGenerationIsTheTeacherForcedFigureAtAbout8kTokens) {
  const PasskeyChoice documents{.first_seed = 200, .n_drawn = kMaxDocuments / 2, .n = GetParam() / 2};
  EXPECT_NEAR(generated_recall(26000, documents), 0.949, 0.08);
}

}  // namespace levin::test
