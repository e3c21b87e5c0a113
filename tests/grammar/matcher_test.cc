// Masks against what may be pushed, undoing, reasoning before the structure, ends, ambiguity and the limit of steps.
#include "grammar/matcher.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <random>

#include "grammar/byte_tokens.h"
#include "grammar/json_schema.h"
#include "grammar/regex.h"

namespace levin::test {
namespace {

using grammar::Matcher;

const std::vector<int32_t> kEnds = {kEndMark};

std::shared_ptr<grammar::Constraint> json_constraint(const std::string& schema) {
  const io::JsonValue document = must(io::parse_json(schema, "schema"));
  grammar::RuleSet rules;
  grammar::JsonForms forms(rules);
  const grammar::Expression value = must(grammar::SchemaReader(rules, forms, document).value());
  const grammar::RuleId root = must(rules.add(value));
  return constraint_of(must(std::move(rules).finish(root)));
}

// Arrays of arrays, each of n kinds whose items are of one kind: n^k stacks at a depth of k, which only the end tells apart.
std::string ambiguous_arrays(int n) {
  std::string kinds;
  for (int i = 0; i < n; ++i) {
    std::string arrays;
    for (int j = 0; j < n; ++j) {
      arrays +=
          fmt::format(R"({}{{"type": "array", "items": {{"$ref": "#/$defs/d{}"}}}})", j > 0 ? ", " : "", (i + j) % n);
    }
    kinds += fmt::format(R"({}"d{}": {{"anyOf": [{}]}})", i > 0 ? ", " : "", i, arrays);
  }
  return fmt::format(R"({{"$defs": {{{}}}, "$ref": "#/$defs/d0"}})", kinds);
}

bool allows(std::span<const uint64_t> mask, int32_t token) {
  return ((mask[static_cast<size_t>(token) / 64] >> (token % 64)) & 1) != 0;
}

std::vector<int32_t> allowed_tokens(Matcher& matcher) {
  std::vector<int32_t> out;
  const std::span<const uint64_t> mask = matcher.mask();
  for (int32_t token = 0; token < byte_tokens()->n_tokens(); ++token) {
    if (allows(mask, token)) out.push_back(token);
  }
  return out;
}

std::vector<int32_t> pushable_tokens(Matcher& matcher) {
  std::vector<int32_t> out;
  for (int32_t token = 0; token < byte_tokens()->n_tokens(); ++token) {
    if (!matcher.push(token)) continue;
    out.push_back(token);
    matcher.pop();
  }
  return out;
}

// Along random answers: a token is in the mask if and only if it may be pushed, and no token leads to where none is;
// pop() undoes.
TEST(Matcher, MasksAreWhatMayBePushed) {
  const std::string schemas[] = {
      "true",
      R"({"type": "object", "properties": {"a": {"type": "string", "maxLength": 4, "minLength": 2},
          "abc": {"type": "array", "items": {"type": "number", "minimum": -3, "maximum": 12}, "maxItems": 3},
          "é": {"enum": ["the", "日本", 12]}}})",
      R"({"type": "array", "items": {"anyOf": [{"$ref": "#"}, {"type": "string", "pattern": "a+\"?b"}, {"type": "null"}]},
          "minItems": 1, "maxItems": 2})",
      R"({"type": "object", "properties": {"ab": {"type": "boolean"}}, "additionalProperties": {"type": "integer"}})",
      R"({"type": "string", "minLength": 2, "maxLength": 4})",
      R"({"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4})",
      ambiguous_arrays(4),
  };
  std::mt19937 random(5);
  for (const std::string& schema : schemas) {
    const auto constraint = json_constraint(schema);
    for (int round = 0; round < 12; ++round) {
      Matcher matcher({.constraint = constraint}, kEnds);
      for (int step = 0; step < 30 && !matcher.is_complete(); ++step) {
        const std::vector<int32_t> allowed = allowed_tokens(matcher);
        ASSERT_FALSE(allowed.empty());
        ASSERT_EQ(allowed, pushable_tokens(matcher)) << schema << " at step " << step;
        const int32_t next = allowed[random() % allowed.size()];
        if (next == kEndMark) break;
        ASSERT_TRUE(matcher.push(next));
      }
    }
  }
}

TEST(Matcher, UndoesManyPushes) {
  Matcher matcher({.constraint = json_constraint(R"({"type": "array", "items": {"type": "array"}, "maxItems": 4})")},
                  kEnds);
  const std::vector<int32_t> at_start = allowed_tokens(matcher);
  const std::string text = "[[1, 2], [[[]], 3";
  std::vector<std::vector<int32_t>> seen;
  for (const char c : text) {
    seen.push_back(allowed_tokens(matcher));
    ASSERT_TRUE(matcher.push(c));
  }
  for (size_t i = text.size(); i-- > 0;) {
    matcher.pop();
    EXPECT_EQ(allowed_tokens(matcher), seen[i]) << i;
  }
  EXPECT_EQ(allowed_tokens(matcher), at_start);
}

TEST(Matcher, EndsOnlyWhereTheStructureMay) {
  Matcher matcher({.constraint = json_constraint(R"({"type": "integer", "minimum": 5, "maximum": 40})")}, kEnds);
  EXPECT_FALSE(matcher.push(kEndMark));
  EXPECT_FALSE(matcher.push(kOtherMark));
  ASSERT_TRUE(matcher.push('1'));
  EXPECT_FALSE(matcher.push(kEndMark));  // 1 is too small
  ASSERT_TRUE(matcher.push('2'));
  EXPECT_TRUE(matcher.is_complete());  // no third digit is in range
  EXPECT_EQ(allowed_tokens(matcher), kEnds);
  ASSERT_TRUE(matcher.push(kEndMark));
  EXPECT_TRUE(matcher.mask().empty());  // drafts after an end are thrown away
  EXPECT_TRUE(matcher.push('x'));
  matcher.pop();
  matcher.pop();
  matcher.pop();
  EXPECT_FALSE(matcher.is_complete());
}

// A stop token that is text is an ordinary token of the structure, and no way out of it.
TEST(Matcher, TextNeverEnds) {
  const std::vector<int32_t> ends = {kEndMark, 'x'};
  Matcher matcher({.constraint = json_constraint(R"({"type": "integer"})")}, ends);
  ASSERT_TRUE(matcher.push('1'));
  EXPECT_FALSE(allows(matcher.mask(), 'x'));
  EXPECT_TRUE(allows(matcher.mask(), kEndMark));
}

TEST(Matcher, BeginsBehindTheReasoning) {
  Matcher matcher({.constraint = json_constraint(R"({"const": 12})"), .begins_after = kOtherMark, .not_before = {'~'}},
                  kEnds);
  const std::string thought = "any{ thing";
  for (const char c : thought) {
    EXPECT_TRUE(allows(matcher.mask(), c));
    ASSERT_TRUE(matcher.push(c));
  }
  EXPECT_FALSE(allows(matcher.mask(), kEndMark));
  EXPECT_FALSE(allows(matcher.mask(), '~'));
  EXPECT_FALSE(matcher.is_complete());
  ASSERT_TRUE(matcher.push(kOtherMark));
  EXPECT_EQ(allowed_tokens(matcher), (std::vector<int32_t>{'1', 256 + 2 + 15}));  // "1" and "12"
  matcher.pop();
  EXPECT_TRUE(allows(matcher.mask(), 'a'));
}

TEST(Matcher, TokensThatAreNoTextAreMatchedWhole) {
  grammar::RuleSet rules;
  const grammar::RuleId body =
      must(rules.add(grammar::sequence({grammar::repeat(grammar::bytes(0, 255, grammar::EdgeKind::kCounts), 0),
                                        grammar::guarded("</"), grammar::token(kOtherMark)}),
                     {.min = 1, .max = 3}));
  const grammar::RuleId root =
      must(rules.add(grammar::sequence({grammar::token(kOtherMark), grammar::call(body), grammar::literal("!")})));
  const auto constraint = constraint_of(must(std::move(rules).finish(root)));
  const auto read = [&](const std::vector<int32_t>& tokens) {
    Matcher matcher({.constraint = constraint}, kEnds);
    for (const int32_t token : tokens) {
      if (!allows(matcher.mask(), token) || !matcher.push(token)) return false;
    }
    return matcher.is_complete();
  };
  EXPECT_TRUE(read({kOtherMark, 'a', '<', '/', kOtherMark, '!'}));
  EXPECT_TRUE(read({kOtherMark, '<', '/', '<', '<', '/', kOtherMark, '!'}));  // the text may be like the way out
  EXPECT_FALSE(read({kOtherMark, '<', '/', kOtherMark, '!'}));                // nothing before it
  EXPECT_FALSE(read({kOtherMark, 'a', 'b', 'c', 'd'}));
  EXPECT_FALSE(read({'a'}));
}

TEST(Matcher, ATokenWaitsForTheLeastCountToo) {
  grammar::RuleSet rules;
  const grammar::Expression letters = grammar::repeat(grammar::bytes('a', 'z', grammar::EdgeKind::kCounts), 0);
  const grammar::RuleId root = must(rules.add(
      grammar::sequence({letters, grammar::token(kOtherMark, grammar::EdgeKind::kGuarded)}), {.min = 2, .max = 2}));
  Matcher matcher({.constraint = constraint_of(must(std::move(rules).finish(root)))}, kEnds);
  ASSERT_TRUE(matcher.push('a'));
  EXPECT_FALSE(allows(matcher.mask(), kOtherMark));
  EXPECT_FALSE(matcher.push(kOtherMark));
  ASSERT_TRUE(matcher.push('b'));
  EXPECT_EQ(allowed_tokens(matcher), std::vector<int32_t>{kOtherMark});
}

// The work grows with the square of the kinds, as the places do, and not with the depth.
TEST(Matcher, AmbiguousRecursionIsPolynomial) {
  constexpr size_t kKinds = 48, kPlaces = kKinds * kKinds;
  Matcher matcher({.constraint = json_constraint(ambiguous_arrays(kKinds))}, kEnds);
  const std::string text = "[[[[], []], [[[ ]]]]]";
  for (const char c : text) {
    ASSERT_TRUE(allows(matcher.mask(), c));
    EXPECT_LT(matcher.n_steps(), 1000 * kPlaces) << c;
    ASSERT_TRUE(matcher.push(c));
    EXPECT_LT(matcher.n_steps(), 15 * kPlaces) << c;
  }
  EXPECT_TRUE(matcher.is_complete());
}

// With few steps left for finding the tokens of all places together, those of each are found alone.
TEST(Matcher, ManyPlacesThatShareNothing) {
  std::string arrays;
  for (int i = 0; i < 40; ++i) {
    arrays += fmt::format(R"({}{{"type": "array", "items": {{"type": "string", "pattern": "^[a-z]*{}$"}}}})",
                          i > 0 ? ", " : "", i);
  }
  const auto constraint = json_constraint(fmt::format(R"({{"anyOf": [{}]}})", arrays));
  for (const size_t max_steps : {grammar::kMaxSteps, size_t{80'000}}) {
    Matcher matcher({.constraint = constraint}, kEnds, max_steps);
    for (const char c : std::string("[\"the17\", \"17")) {
      EXPECT_EQ(allowed_tokens(matcher), pushable_tokens(matcher)) << c;
      ASSERT_TRUE(matcher.push(c));
    }
    EXPECT_EQ(allowed_tokens(matcher), pushable_tokens(matcher));
  }
}

// Called at every byte, the rule always returns to the same place.
TEST(Matcher, ARuleThatMayBeginAnywhereStaysOnePlace) {
  grammar::RuleSet rules;
  const grammar::Expression letters = grammar::repeat(grammar::bytes('a', 'a'), 0);
  const grammar::RuleId inner = must(rules.add(grammar::sequence({letters, grammar::literal("b")})));
  const grammar::RuleId root =
      must(rules.add(grammar::sequence({letters, grammar::call(inner), grammar::literal("c")})));
  Matcher matcher({.constraint = constraint_of(must(std::move(rules).finish(root)))}, kEnds);
  size_t n_first = 0;
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(matcher.push('a'));
    if (i == 1) n_first = matcher.n_steps();
  }
  EXPECT_EQ(matcher.n_steps(), n_first);
  ASSERT_TRUE(matcher.push('b'));
  ASSERT_TRUE(matcher.push('c'));
  EXPECT_TRUE(matcher.is_complete());
}

// The second call of the rule is reached through the first, which has ended on the same floor already.
TEST(Matcher, ARuleThatMayBeEmptyIsCalledTwiceAtOnePoint) {
  grammar::RuleSet rules;
  const grammar::Expression maybe = grammar::call(must(rules.add(grammar::optional(grammar::bytes('a', 'a')))));
  const grammar::RuleId root =
      must(rules.add(grammar::sequence({maybe, maybe, grammar::literal("x"), maybe, maybe, maybe})));
  const auto constraint = constraint_of(must(std::move(rules).finish(root)));
  for (const char* text : {"x", "ax", "aax", "xa", "xaaa", "aaxaaa"}) EXPECT_TRUE(matches(constraint, text)) << text;
  for (const char* text : {"", "a", "aaax", "xaaaa"}) EXPECT_FALSE(matches(constraint, text)) << text;
}

TEST(Matcher, GivesUpAfterTooManySteps) {
  const auto constraint = json_constraint(ambiguous_arrays(20));
  Matcher limited({.constraint = constraint}, kEnds, 3'000);
  Matcher free({.constraint = constraint}, kEnds);
  ASSERT_TRUE(limited.push('['));
  ASSERT_TRUE(free.push('['));
  EXPECT_TRUE(allowed_tokens(limited).empty());
  EXPECT_TRUE(limited.over_limit());
  EXPECT_FALSE(limited.push('['));
  EXPECT_TRUE(limited.over_limit());
  EXPECT_FALSE(limited.push('x'));
  EXPECT_FALSE(limited.over_limit());
  EXPECT_TRUE(limited.push(']'));  // cheaper
  EXPECT_TRUE(limited.is_complete());
  EXPECT_EQ(allowed_tokens(free), pushable_tokens(free));  // what was left half done is not kept
  EXPECT_FALSE(free.over_limit());
}

TEST(Matcher, GivesUpAtTheStart) {
  const auto constraint = json_constraint(ambiguous_arrays(20));
  Matcher at_once({.constraint = constraint}, kEnds, 10);
  EXPECT_TRUE(at_once.over_limit());
  EXPECT_FALSE(at_once.is_complete());
  EXPECT_TRUE(allowed_tokens(at_once).empty());
  EXPECT_TRUE(at_once.over_limit());
  Matcher later({.constraint = constraint, .begins_after = kOtherMark}, kEnds, 10);
  EXPECT_FALSE(later.over_limit());
  EXPECT_FALSE(later.push(kOtherMark));
  EXPECT_TRUE(later.over_limit());
  EXPECT_TRUE(later.push('a'));
}

TEST(Matcher, TheErrorNamesTheLimit) {
  const Error error = grammar::too_many_steps();
  EXPECT_EQ(error.kind, ErrorKind::kUsage);
  EXPECT_NE(error.message.find(std::to_string(grammar::kMaxSteps)), std::string::npos) << error.message;
}

TEST(Vocabulary, NeedsEveryByte) {
  const std::string letters = "abc";
  const auto vocabulary = grammar::Vocabulary::make(
      3, [&](int32_t id) { return std::string_view(letters).substr(static_cast<size_t>(id), 1); });
  ASSERT_FALSE(vocabulary.ok());
  EXPECT_NE(vocabulary.error().message.find("0x00"), std::string::npos);
}

}  // namespace
}  // namespace levin::test
