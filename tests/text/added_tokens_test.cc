#include "text/added_tokens.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace levin::text {
namespace {

// Parts as text, tokens in brackets with what they cover: "a[7:<x> ]b".
std::string shown(const std::vector<TextPart>& parts) {
  std::string result;
  for (const TextPart& part : parts) {
    if (part.token == kNoToken) {
      result += fmt::format("{}|", part.text);
    } else {
      result += fmt::format("[{}:{}]", part.token, part.text);
    }
  }
  return result;
}

AddedTokens tokens() {
  return AddedTokens({{.id = 1, .name = "<x>"},
                      {.id = 2, .name = "<x>y"},
                      {.id = 3, .name = "<l>", .lstrip = true},
                      {.id = 4, .name = "<r>", .rstrip = true},
                      {.id = 5, .name = "one", .single_word = true},
                      {.id = 6, .name = "x><", .normalized = true},
                      {.id = 7, .name = " ", .lstrip = true, .normalized = true}});
}

struct Case {
  std::string_view text;
  std::string_view expected;
};

constexpr Case kCases[] = {
    {"", ""},
    {"plain", "plain|"},
    {"a<x>b", "a|[1:<x>]b|"},
    {"<x>y", "[2:<x>y]"},  // the longest
    {"<x<x>", "<x|[1:<x>]"},
    {"<x><x>", "[1:<x>][1:<x>]"},  // "x><" is looked for only in what is left
    {"ax><b", "a|[6:x><]b|"},
    {"a\t\n<l>\tb", "a|[3:\t\n<l>]\tb|"},
    {"a\t<r>\t\u3000b", "a\t|[4:<r>\t\u3000]b|"},
    {"<r>\t<l>", "[4:<r>\t][3:<l>]"},  // white space goes to the first
    {"one", "[5:one]"},
    {"(one)", "(|[5:one])|"},
    {"onely", "onely|"},
    {"éone", "éone|"},
    {"one_", "one_|"},
    {"a  b", "a|[7: ][7: ]b|"},
};

TEST(AddedTokens, Cases) {
  for (const Case& c : kCases) EXPECT_EQ(shown(tokens().split(c.text)), c.expected) << c.text;
}

TEST(AddedTokens, NoneAtAll) { EXPECT_EQ(shown(AddedTokens().split("<x>")), "<x>|"); }

TEST(AddedTokens, ManySpacesTakeLinearTime) {
  const AddedTokens space({{.id = 1, .name = " ", .lstrip = true}});
  EXPECT_EQ(space.split(std::string(1 << 20, ' ')).size(), size_t{1} << 20);
}

}  // namespace
}  // namespace levin::text
