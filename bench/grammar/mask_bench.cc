// What a mask costs, for a vocabulary of 128,000 tokens: one that is known, as in all but the first answers of a form,
// and the first of each kind of state.
//
// Tokens  those of the demonstration tokenizer and, drawn from a fixed seed, words of 3 to 12 letters with and without a
//         blank before them, and punctuation as program text has it: runs of blanks, quotes with commas, colons, brackets
#include <benchmark/benchmark.h>

#include <random>
#include <string>
#include <unordered_set>
#include <vector>

#include "grammar/json_schema.h"
#include "grammar/matcher.h"
#include "text/tokenizer.h"

namespace levin::grammar {
namespace {

constexpr size_t kTokens = 128'000;

std::shared_ptr<const Vocabulary> vocabulary() {
  static const std::shared_ptr<const Vocabulary> vocabulary = [] {
    const text::Tokenizer tokenizer = text::Tokenizer::load(LEVIN_SOURCE_DIR "/models/demo-v32").value();
    std::vector<std::string> texts;
    std::unordered_set<std::string> seen;
    const auto add = [&](std::string text) {
      if (texts.size() < kTokens && (text.empty() || seen.insert(text).second)) texts.push_back(std::move(text));
    };
    for (int32_t id = 0; id < tokenizer.n_ids(); ++id) {
      add(tokenizer.is_added(id) ? std::string() : std::string(tokenizer.token_bytes(id)));
    }
    std::mt19937 random(1);
    const std::string signs = "\"\"\"\"{}[]():;,.=+-*/<>&|!?_#$%'\\n";
    for (int i = 0; i < 4000; ++i) {
      std::string text(random() % 3, ' ');
      for (size_t n = 1 + random() % 4; n > 0; --n) text += signs[random() % signs.size()];
      add(text);
    }
    for (int n = 2; n <= 128; ++n) add(std::string(static_cast<size_t>(n), ' '));
    while (texts.size() < kTokens) {
      std::string text(random() % 2, ' ');
      for (size_t n = 3 + random() % 10; n > 0; --n) text += static_cast<char>('a' + random() % 26);
      add(text);
    }
    return Vocabulary::make(std::ssize(texts),
                            [&](int32_t id) { return std::string_view(texts[static_cast<size_t>(id)]); })
        .value();
  }();
  return vocabulary;
}

constexpr char kSchema[] = R"({"type": "object", "properties": {"name": {"type": "string"}, "city": {"type": "string",
    "maxLength": 40}, "code": {"type": "string", "pattern": "^[A-Z]{2}[0-9]{3,6}$"}, "n": {"type": "integer"},
    "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 9}, "more": {}},
    "required": ["name", "city", "code", "n", "tags", "more"], "additionalProperties": false})";

std::shared_ptr<Constraint> constraint() {
  const io::JsonValue schema = io::parse_json(kSchema, "schema").value();
  RuleSet rules;
  JsonForms forms(rules);
  const Expression value = SchemaReader(rules, forms, schema).value().value();
  const RuleId root = rules.add(value).value();
  return std::make_shared<Constraint>(std::move(rules).finish(root).value(), vocabulary());
}

struct Place {
  const char* name;
  std::string before;
};
const Place kPlaces[] = {
    {"at the start", ""},
    {"behind a brace", "{"},
    {"in a string", R"({"name": "Jo)"},
    {"in a string, 5 characters left", R"({"name": "Jo", "city": "12345678901234567890123456789012345)"},
    {"in a pattern", R"({"name": "Jo", "city": "x", "code": "AB1)"},
    {"in a number", R"({"name": "Jo", "city": "x", "code": "AB123", "n": 12)"},
    {"in a string of a list", R"({"name": "Jo", "city": "x", "code": "AB123", "n": 12, "tags": ["a", "b)"},
    {"in any value", R"({"name": "Jo", "city": "x", "code": "AB123", "n": 12, "tags": [], "more": {"a": [{"b": "c)"}};

void push_bytes(Matcher& matcher, std::string_view text) {
  const Vocabulary& tokens = *vocabulary();
  for (const char c : text) {
    for (const SortedTexts::Entry& entry : tokens.texts().entries()) {
      if (entry.text.size() == 1 && entry.text[0] == c) matcher.push(entry.token);
    }
  }
}

void known_mask(benchmark::State& state) {
  const Place& place = kPlaces[state.range(0)];
  state.SetLabel(place.name);
  Matcher matcher({.constraint = constraint()}, {});
  push_bytes(matcher, place.before);
  matcher.mask();
  for (auto _ : state) benchmark::DoNotOptimize(matcher.mask().data());
}

void first_mask(benchmark::State& state) {
  const Place& place = kPlaces[state.range(0)];
  state.SetLabel(place.name);
  for (auto _ : state) {
    state.PauseTiming();
    Matcher matcher({.constraint = constraint()}, {});
    push_bytes(matcher, place.before);
    state.ResumeTiming();
    benchmark::DoNotOptimize(matcher.mask().data());
  }
}

void compile(benchmark::State& state) {
  vocabulary();
  for (auto _ : state) benchmark::DoNotOptimize(constraint());
}

BENCHMARK(known_mask)->DenseRange(0, std::ssize(kPlaces) - 1)->Unit(benchmark::kMicrosecond);
BENCHMARK(first_mask)->DenseRange(0, std::ssize(kPlaces) - 1)->Unit(benchmark::kMicrosecond)->Iterations(3);
BENCHMARK(compile)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace levin::grammar

BENCHMARK_MAIN();
