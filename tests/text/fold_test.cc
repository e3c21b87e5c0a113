#include "text/fold.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <vector>

#include "io/safetensors.h"
#include "support/fixture.h"
#include "support/must.h"
#include "text/token_classes.h"

namespace levin::text {
namespace {

struct Folded {
  const char* what;
  const char* text;
  const char* folded;
};

// As Hugging Face tokenizers 0.23.3 have them.
const Folded kFolded[] = {
    {"case", "The QUICK", "the quick"},
    {"accents", "Éàçñ", "eacn"},
    {"a combining accent", "e\u0301", "e"},
    {"compatibility forms", "ﬁ Ａ ① ½", "fi a 1 1\u20442"},
    {"a syllable in its letters", "한", "\u1112\u1161\u11ab"},
    {"half-width kana", "ﾊ", "ハ"},
    {"kana without its voicing mark", "が", "か"},
    {"both sigmas", "Σς", "σς"},
    {"a dotted capital", "İ", "i"},
    {"long s, sharp s", "ſß", "sß"},
    {"white space of other kinds", "a\u3000b", "a b"},
    {"what has no case", "中文 123", "中文 123"},
    {"nothing", "", ""},
};

TEST(FoldTest, TextIsThatOfTheTokenizersLibrary) {
  for (const Folded& f : kFolded) EXPECT_EQ(fold_text(f.text), f.folded) << f.what;
}

TEST(FoldTest, RunsOfSpacesAreOneAndTheEndsAreCut) {
  EXPECT_EQ(fold_spaces(" a \t\r\n b\n"), "a b");
  EXPECT_EQ(fold_spaces("\n\n"), " ");
  EXPECT_EQ(fold_spaces("\u2028"), "");
  EXPECT_EQ(fold_spaces(" \u2028"), "");
  EXPECT_EQ(fold_spaces(""), "");
}

// Bytes, and words of which some are alike; what the library makes of them is in the fixture.
TEST(TokenClassesTest, AreThoseOfTheTokenizersLibrary) {
  const std::filesystem::path folder = test::fixture_folder("v41-flash");
  const TokenClasses classes = token_classes(test::must(Tokenizer::load(folder)));
  const io::Checkpoint oracle = test::must(io::Checkpoint::open(folder / "oracle.safetensors"));
  const io::StoredTensor* expected = oracle.find("token_classes");
  ASSERT_NE(expected, nullptr);
  std::vector<int64_t> of_token(expected->bytes.size() / sizeof(int64_t));
  std::memcpy(of_token.data(), expected->bytes.data(), expected->bytes.size());
  EXPECT_EQ(std::vector<int64_t>(classes.of_token.begin(), classes.of_token.end()), of_token);
  EXPECT_EQ(classes.count, *std::max_element(of_token.begin(), of_token.end()) + 1);
  EXPECT_LT(classes.count, std::ssize(of_token));
}

}  // namespace
}  // namespace levin::text
