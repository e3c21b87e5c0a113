// run, eval and bench on the other families: GLM with the demonstration model, DeepSeek-V4 and GLM-5.3-Flash with
// random weights.
#include <gtest/gtest.h>

#include <filesystem>
#include <optional>

#include "apps/run_levin.h"
#include "io/json.h"
#include "io/mapped_file.h"
#include "support/must.h"
#include "support/temp_checkpoint.h"

namespace levin::test {
namespace {

using Arguments = std::vector<std::string>;

const std::string kModels = std::string(LEVIN_SOURCE_DIR) + "/models/";

struct FamilyCase {
  const char* name;
  const char* fixture;  // null: demo-glm
  const char* vocab_key;
  const char* tokenizer;
};

// Fixtures have room for the tokens of a demonstration model.
class FamilyTest : public testing::TestWithParam<FamilyCase> {
 protected:
  FamilyTest() {
    if (GetParam().fixture == nullptr) return;
    checkpoint_.emplace(TempCheckpoint::from_fixture(GetParam().fixture));
    checkpoint_->set_config(GetParam().vocab_key, 4096);
    checkpoint_->write();
    for (const char* file : {"tokenizer.json", "tokenizer_config.json"})
      std::filesystem::copy_file(kModels + GetParam().tokenizer + "/" + file, checkpoint_->path() / file);
  }
  ProgramResult run(std::string command, const Arguments& more) const {
    Arguments arguments = {std::move(command), checkpoint_ ? checkpoint_->path().string() : kModels + "demo-glm"};
    if (checkpoint_) arguments.insert(arguments.end(), {"--load-format", "dummy"});
    arguments.insert(arguments.end(), more.begin(), more.end());
    ProgramResult result = run_levin(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result;
  }

  std::optional<TempCheckpoint> checkpoint_;
};

INSTANTIATE_TEST_SUITE_P(Families, FamilyTest,
                         testing::Values(FamilyCase{"Glm", nullptr, nullptr, "demo-glm"},
                                         FamilyCase{"DeepSeekV4", "v4-flash", "vocab_size", "demo-v32"},
                                         FamilyCase{"DeepSeekV4WithABlockDrafter", "v4-dspark", "vocab_size",
                                                    "demo-v32"},
                                         FamilyCase{"Glm53Flash", "glm-next", "text_config.vocab_size", "demo-glm"}),
                         [](const auto& family) { return family.param.name; });

TEST_P(FamilyTest, DraftsThreadsAndChunksDoNotChangeTheAnswer) {
  const Arguments prompt = {"-p", "Write a line about rivers, stones and apples.", "-n", "24", "--ignore-eos", "--seed",
                            "3"};
  const auto answer = [&](Arguments more) {
    more.insert(more.end(), prompt.begin(), prompt.end());
    return run("run", more).out;
  };
  const std::string plain = answer({"--spec", "off", "--threads", "1"});
  EXPECT_GT(plain.size(), 10u);
  EXPECT_EQ(answer({"--spec", "mtp", "--spec-steps", "3", "--threads", "2"}), plain);
  EXPECT_EQ(answer({"--spec", "mtp", "--spec-steps", "1", "--chunk", "5"}), plain);
}

TEST_P(FamilyTest, TextsHaveAPerplexity) {
  const TempDir dir;
  must(io::write_file_atomically((dir / "text").string(), "def read_file(name):\n    return open(name).read()\n"));
  const ProgramResult result = run("eval", {"--perplexity", (dir / "text").string(), "--json"});
  const io::JsonValue document = must(io::parse_json(result.out, "the output"));
  EXPECT_GT(must(must(io::JsonFields::of(document, "the output")).get<double>("perplexity")), 1);
}

// A tokenizer of another model: its ids are input, not a mistake of the program.
TEST(FamilyErrorsTest, TokensOutsideTheVocabularyAreAnError) {
  TempCheckpoint checkpoint = TempCheckpoint::from_fixture("v4-flash");
  checkpoint.write();
  for (const char* file : {"tokenizer.json", "tokenizer_config.json"})
    std::filesystem::copy_file(kModels + "demo-v32/" + file, checkpoint.path() / file);
  const TempDir dir;
  must(io::write_file_atomically((dir / "text").string(), "Rivers, stones and apples."));
  const std::string model = checkpoint.path().string();
  for (const Arguments& arguments : {Arguments{"eval", model, "--perplexity", (dir / "text").string()},
                                     Arguments{"run", model, "-p", "Rivers, stones and apples."}}) {
    const ProgramResult result = run_levin(arguments);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_NE(result.err.find("is outside the vocabulary of 320 tokens"), std::string::npos) << result.err;
  }
}

TEST_P(FamilyTest, BatchesAreMeasured) {
  const ProgramResult result = run("bench", {"--depths", "0,200", "--batch", "1,3", "--decode-tokens", "4", "--chunk",
                                             "64", "--repetitions", "1", "--json"});
  const io::JsonValue document = must(io::parse_json(result.out, "the output"));
  ASSERT_EQ(document.as_array()->size(), 8u);
  for (const io::JsonValue& row : *document.as_array())
    EXPECT_GT(must(must(io::JsonFields::of(row, "a row")).get<double>("decode_tokens_per_s")), 0);
}

}  // namespace
}  // namespace levin::test
