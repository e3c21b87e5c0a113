// Regular expressions: what they match, and what is refused by name.
#include "grammar/regex.h"

#include <gtest/gtest.h>

#include "grammar/byte_tokens.h"

namespace levin::test {
namespace {

using grammar::RegexMatch;
using grammar::Writing;

std::shared_ptr<grammar::Constraint> compiled(std::string_view pattern, RegexMatch match = RegexMatch::kWhole,
                                              Writing writing = Writing::kPlain) {
  grammar::RuleSet rules;
  const grammar::RuleId root = must(rules.add(must(grammar::parse_regex(pattern, match, writing))));
  return constraint_of(must(std::move(rules).finish(root)));
}

struct Row {
  const char* pattern;
  std::vector<std::string> yes, no;
};

TEST(Regex, MatchesTheWholeText) {
  const Row rows[] = {
      {"abc", {"abc"}, {"", "ab", "abcd", "xabc"}},
      {"a|bc|", {"a", "bc", ""}, {"b", "abc"}},
      {"[a-c]+x?", {"a", "abcx", "cc"}, {"x", "d", "axx"}},
      {"(ab){2,3}", {"abab", "ababab"}, {"ab", "abababab"}},
      {"a{3}", {"aaa"}, {"aa", "aaaa"}},
      {"a{2,}", {"aa", "aaaaa"}, {"a"}},
      {"(?:a|b)*c", {"c", "abac"}, {"ab"}},
      {"(?<year>\\d{4})-\\d\\d", {"2026-11"}, {"2026-1", "x026-11"}},
      {"[^,\\s]+", {"ab;", "é", "日本"}, {"", "a,b", "a b"}},
      {".", {"a", "é", "日", "\xf0\x9f\x98\x80"}, {"", "\n", "ab", "\xc3", "\xed\xa0\x80"}},
      {"\\w+@\\w+\\.(com|org)", {"me_1@x.org"}, {"me@x,org", "@x.org"}},
      {"[\\]\\-a]", {"]", "-", "a"}, {"\\", "b"}},
      {"[a-]", {"a", "-"}, {"b"}},
      {"\\u00e9\\x41\\t", {"éA\t"}, {"eA\t"}},
      {"^a$|^b$", {"a", "b"}, {"ab"}},
      {"(a*)*b", {"b", "aaab"}, {"a"}},
      {"(a?){3}", {"", "a", "aaa"}, {"aaaa"}},
      {"[А-я]+", {"Привет"}, {"Hello"}},
      {"a+?b*?", {"a", "aab"}, {"b"}},
      {"\\D\\W\\S", {"a b", "--."}, {"1-a", "a1-", "-- "}},
      {"\\S|[^\\s]", {"a", "日"}, {" ", "\t", "\ufeff", "\x1e", "\u0085"}},
      {"\\s|[^\\S]|[\\s]", {" ", "\t", "\u3000"}, {"a", "\ufeff", "\x1e", "\u0085"}},
  };
  for (const Row& row : rows) {
    const auto constraint = compiled(row.pattern);
    for (const std::string& text : row.yes) EXPECT_TRUE(matches(constraint, text)) << row.pattern << " on " << text;
    for (const std::string& text : row.no) EXPECT_FALSE(matches(constraint, text)) << row.pattern << " on " << text;
  }
}

TEST(Regex, SearchesWhereNoAnchorStands) {
  const auto inside = compiled("b+", RegexMatch::kSearch);
  EXPECT_TRUE(matches(inside, "abba\n"));
  EXPECT_FALSE(matches(inside, "aa"));
  EXPECT_TRUE(matches(compiled("^ab", RegexMatch::kSearch), "abx"));
  EXPECT_FALSE(matches(compiled("^ab", RegexMatch::kSearch), "xab"));
  EXPECT_TRUE(matches(compiled("ab$", RegexMatch::kSearch), "xab"));
  EXPECT_FALSE(matches(compiled("ab$", RegexMatch::kSearch), "abx"));
}

TEST(Regex, WritesJsonEscapes) {
  const auto quotes = compiled("a\"\\\\\\n.", RegexMatch::kWhole, Writing::kJsonString);
  EXPECT_TRUE(matches(quotes, "a\\\"\\\\\\nx"));
  EXPECT_TRUE(matches(quotes, "a\\\"\\\\\\n\\u0001"));
  EXPECT_FALSE(matches(quotes, "a\"\\\\\\nx"));
  EXPECT_FALSE(matches(quotes, "a\\\"\\\\\nx"));
}

TEST(Regex, RefusesByName) {
  const std::pair<const char*, const char*> rows[] = {
      {"(?=a)b", "no look-around"},
      {"(?<!a)b", "no look-around"},
      {"(a)\\1", "\\1"},
      {"\\bword", "\\b"},
      {"\\p{L}", "\\p"},
      {"(?i)a", "no flags"},
      {"a)", ") without"},
      {"(a", "( without"},
      {"[a", "[ without"},
      {"[]", "without members"},
      {"a**+", "possessive"},
      {"*a", "repeat of nothing"},
      {"a{2", "does not end"},
      {"a{3,2}", "from 3 to 2"},
      {"a{x}", "no count"},
      {"a^b", "not at its beginning"},
      {"a$b", "after a $"},
      {"(^a)", "inside a group"},
      {"[z-a]", "in ascending order"},
      {"a\\", "ends with a backslash"},
      {"\\xg1", "hexadecimal"},
      {"\\ud800", "surrogate"},
      {"a{100001}", "above 100000"},
  };
  for (const auto& [pattern, part] : rows) {
    const auto parsed = grammar::parse_regex(pattern, RegexMatch::kWhole, Writing::kPlain);
    ASSERT_FALSE(parsed.ok()) << pattern;
    EXPECT_NE(parsed.error().message.find(part), std::string::npos) << pattern << ": " << parsed.error().message;
  }
  std::string deep(100, '(');
  EXPECT_FALSE(grammar::parse_regex(deep, RegexMatch::kWhole, Writing::kPlain).ok());
}

// Repeats of nothing are no nodes that a limit counts: written out, these take minutes.
TEST(Regex, WritesRepeatsOfNothingOnce) {
  for (const char* pattern : {"((){100000}){100000}x", "((()(){100000}){100000}){100000}x", "(()()){99999,100000}x"}) {
    const auto constraint = compiled(pattern);
    EXPECT_TRUE(matches(constraint, "x")) << pattern;
    EXPECT_FALSE(matches(constraint, "xx")) << pattern;
  }
}

TEST(Regex, BoundsItsSize) {
  for (const char* pattern :
       {"(a{1000}){1000}", "((a{100}){100}){100}", "(.{0,9999}x){9}", "(a|b)*a(a|b){25}", "(a?){12000}"}) {
    grammar::RuleSet rules;
    const auto rule = rules.add(must(grammar::parse_regex(pattern, RegexMatch::kWhole, Writing::kPlain)));
    ASSERT_FALSE(rule.ok()) << pattern;
    EXPECT_NE(rule.error().message.find("more than"), std::string::npos) << rule.error().message;
  }
}

}  // namespace
}  // namespace levin::test
