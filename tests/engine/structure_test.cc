// Answers with a structure: they have it, drafts or not, and are the same; on dummy weights, whose answers are as random
// as can be, with the demonstration model's tokens.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <random>

#include "arch/load_config.h"
#include "engine/loaded_model.h"
#include "engine/step_loop.h"
#include "grammar/json_schema.h"
#include "io/json.h"
#include "text/tokenizer.h"

namespace levin::test {
namespace {

constexpr int32_t kEos = 1;

// A random schema whose strings and arrays are bounded.
std::string random_schema(std::mt19937& random, int depth) {
  const auto pick = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  switch (pick(depth > 0 ? 9 : 6)) {
    case 0:
      return fmt::format(R"({{"type": "string", "maxLength": {}}})", pick(12));
    case 1:
      return fmt::format(R"({{"type": "integer", "minimum": {}, "maximum": {}}})", -pick(300), pick(3000));
    case 2:
      return R"({"type": ["boolean", "null"]})";
    case 3:
      return R"({"enum": ["river", "stone", 7, null]})";
    case 4:
      return R"({"type": "string", "pattern": "^[A-Z][a-z]{1,6}( [a-z]{2,4})?$"})";
    case 5:
      return R"({"type": "number", "exclusiveMinimum": 0, "maximum": 1.5})";
    case 6:
      return fmt::format(R"({{"type": "array", "items": {}, "minItems": {}, "maxItems": {}}})",
                         random_schema(random, depth - 1), pick(2), 1 + pick(3));
    case 7:
      return fmt::format(R"({{"anyOf": [{}, {}]}})", random_schema(random, depth - 1),
                         random_schema(random, depth - 1));
    default:
      break;
  }
  std::string properties;
  const int n = 1 + pick(3);
  for (int i = 0; i < n; ++i) {
    properties += fmt::format(R"({}"k{}": {})", i > 0 ? ", " : "", i, random_schema(random, depth - 1));
  }
  return fmt::format(R"({{"type": "object", "properties": {{{}}}, "required": ["k{}"]}})", properties, n - 1);
}

class StructureTest : public testing::Test {
 protected:
  StructureTest() {
    const std::filesystem::path folder = demo_model_folder();
    tokenizer_ = std::make_unique<text::Tokenizer>(must(text::Tokenizer::load(folder)));
    ModelConfig config = must(load_model_config(folder)).config;
    config.n_layers = 2;  // enough to be no constant
    const Numerics numerics = numerics_of_family(must(make_numerics(NumericsMode::kFast, "auto")), *config.family);
    ThreadPool pool(2);
    ModelWeights weights = must(dummy_weights(config, numerics, pool));
    model_ = make_model(std::move(config), numerics, std::move(weights));
    vocabulary_ = must(grammar::Vocabulary::make(model_->config().n_vocab, [&](int32_t id) -> std::string_view {
      return tokenizer_->is_token(id) && !tokenizer_->is_added(id) ? tokenizer_->token_bytes(id) : std::string_view();
    }));
    runner_ = std::make_unique<Runner>(*model_, runner_options(2048, 1));
  }

  std::shared_ptr<grammar::Constraint> constraint(const std::string& schema) const {
    const io::JsonValue document = must(io::parse_json(schema, "schema"));
    grammar::RuleSet rules;
    grammar::JsonForms forms(rules);
    const grammar::Expression value = must(grammar::SchemaReader(rules, forms, document).value());
    const grammar::RuleId root = must(rules.add(value));
    return std::make_shared<grammar::Constraint>(must(std::move(rules).finish(root)), vocabulary_);
  }

  std::shared_ptr<grammar::Constraint> text_constraint(std::string_view text) const {
    grammar::RuleSet rules;
    const grammar::RuleId root = must(rules.add(grammar::literal(text)));
    return std::make_shared<grammar::Constraint>(must(std::move(rules).finish(root)), vocabulary_);
  }

  GenerateRequest request(const std::string& schema, int i) const {
    GenerateRequest out{.prompt = {0, 17 + i, 99}, .max_tokens = 900};
    out.sampling = {
        .temperature = i % 3 == 0 ? 0.0 : 0.9, .stop_tokens = {kEos}, .seed = 7u + static_cast<uint64_t>(i)};
    out.structure = {.constraint = constraint(schema)};
    return out;
  }

  std::vector<std::unique_ptr<Generation>> run(const std::vector<GenerateRequest>& requests, int n_spec_steps) {
    StepLoop loop(*runner_, {.n_spec_steps = n_spec_steps, .max_context_tokens = 1024, .share_prefixes = false});
    std::vector<RequestId> ids;
    for (const GenerateRequest& r : requests) ids.push_back(must(loop.submit(r)));
    while (loop.step()) continue;
    std::vector<std::unique_ptr<Generation>> out;
    for (const RequestId id : ids) out.push_back(loop.take(id));
    return out;
  }

  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::unique_ptr<Model> model_;
  std::shared_ptr<const grammar::Vocabulary> vocabulary_;
  std::unique_ptr<Runner> runner_;
};

std::vector<int32_t> ids_of(const Generation& generation) {
  std::vector<int32_t> ids;
  for (const TokenEvent& event : generation.tokens) ids.push_back(event.token);
  return ids;
}

TEST_F(StructureTest, HoldsWithDraftsAndWithout) {
  std::mt19937 random(11);
  std::vector<GenerateRequest> requests;
  std::vector<std::string> schemas;
  for (int i = 0; i < 24; ++i) {
    schemas.push_back(random_schema(random, 2));
    requests.push_back(request(schemas.back(), i));
  }
  const auto plain = run(requests, 0);
  const auto drafted = run(requests, 3);
  int64_t n_accepted = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    const std::vector<int32_t> ids = ids_of(*plain[i]);
    EXPECT_EQ(ids, ids_of(*drafted[i])) << schemas[i];
    const std::string text = tokenizer_->decode(ids);
    EXPECT_EQ(plain[i]->finish_reason, FinishReason::kStop) << schemas[i] << "\n" << text;
    EXPECT_TRUE(io::parse_json(text, "the answer").ok()) << schemas[i] << "\n" << text;
    n_accepted += drafted[i]->speculation.n_accepted;
  }
  EXPECT_GT(n_accepted, 0);
}

TEST_F(StructureTest, BeginsBehindTheReasoning) {
  const int32_t think_end = *tokenizer_->added_id("</think>");
  GenerateRequest what = request(R"({"const": "yes"})", 0);
  what.structure->begins_after = think_end;
  what.sampling.logit_bias = {{think_end, 9}};
  what.max_tokens = 200;
  for (const int n_drafts : {0, 3}) {
    std::vector<int32_t> ids = ids_of(*run({what}, n_drafts).front());
    const auto end = std::find(ids.begin(), ids.end(), think_end);
    ASSERT_NE(end, ids.end());
    EXPECT_EQ(tokenizer_->decode(std::vector(end + 1, ids.end())), "\"yes\"");
  }
}

// Nothing but the empty text meets it: the first token is one that ends the answer.
TEST_F(StructureTest, MayBeMetBeforeTheFirstToken) {
  GenerateRequest what = request("{}", 0);
  what.structure = {.constraint = text_constraint("")};
  for (const double temperature : {0.0, 2.0}) {
    for (const int n_drafts : {0, 3}) {
      what.sampling.temperature = temperature;
      const auto answers = run({what, request(R"({"const": "yes"})", 1)}, n_drafts);
      EXPECT_EQ(ids_of(*answers[0]), std::vector<int32_t>{kEos});
      EXPECT_EQ(answers[0]->finish_reason, FinishReason::kStop);
      EXPECT_EQ(tokenizer_->decode(ids_of(*answers[1])), "\"yes\"");
    }
  }
  what.sampling.stop_tokens = {};
  EXPECT_NE(run({what}, 0).front()->error->message.find("no token is left at position 3"), std::string::npos);
}

// The choice fails, and it can be told from one for which no token is left.
TEST_F(StructureTest, ThatTakesTooManyStepsSaysSo) {
  const auto n_vocab = static_cast<int32_t>(model_->config().n_vocab);
  const std::vector<int32_t> prompt = {0, 17}, ends = {kEos};
  const std::vector<float> logits(static_cast<size_t>(n_vocab), 0.0F);
  const grammar::Structure structure{.constraint = text_constraint("river stone")};
  for (const size_t max_steps : {size_t{1}, grammar::kMaxSteps}) {
    TokenChooser chooser(must(SamplingPlan::make({.temperature = 0}, n_vocab)), prompt,
                         std::make_unique<grammar::Matcher>(structure, ends, max_steps), false);
    const Choice choice = chooser.choose({.logits = logits, .chosen = {}});
    EXPECT_EQ(choice.ok(), max_steps > 1);
    EXPECT_EQ(chooser.over_limit(), max_steps == 1);
  }
}

TEST_F(StructureTest, RefusesWhatContradictsIt) {
  StepLoop loop(*runner_, {.max_context_tokens = 64});
  GenerateRequest what = request("{}", 0);
  what.sampling.allowed_tokens = {5};
  EXPECT_FALSE(loop.check(what).ok());
  EXPECT_TRUE(loop.check(request("{}", 0)).ok());
}

}  // namespace
}  // namespace levin::test
