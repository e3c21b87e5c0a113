#include "text/tokenizer.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "io/json.h"
#include "support/json_gen.h"
#include "support/must.h"
#include "text/stream_decoder.h"
#include "text/unicode.h"
#include "text/variants.h"

namespace levin::text {
namespace {

using test::demo_tokenizer;
using test::must;

// Text, names of added tokens and stray bytes in any mixture.
rc::Gen<std::string> arbitrary_bytes() {
  const auto part = rc::gen::oneOf(
      test::arbitrary_text(), rc::gen::container<std::string>(rc::gen::arbitrary<char>()),
      rc::gen::elementOf(std::vector<std::string>{"<think>", "</think>", "<｜User｜>", "｜DSML｜", "<｜", "import ",
                                                  "  ", "\n", "\xE2\x82", "\xF0\x9F\x98", "\x80", "123", "中文"}));
  return rc::gen::map(rc::gen::container<std::vector<std::string>>(part), [](const std::vector<std::string>& parts) {
    std::string text;
    for (const std::string& p : parts) text += p;
    return text;
  });
}

std::string replaced(const std::string& bytes) {
  std::string storage;
  return std::string(valid_utf8(bytes, storage));
}

std::string streamed(const Tokenizer& tokenizer, const std::vector<TokenId>& ids, bool skip_special) {
  StreamDecoder decoder(tokenizer, skip_special);
  std::string text;
  for (const TokenId id : ids) {
    const std::string more = decoder.push(id);
    EXPECT_TRUE(is_valid_utf8(more));
    EXPECT_LE(decoder.n_pending_bytes(), 3u);
    text += more;
  }
  return text + decoder.finish();
}

TEST(Tokenizer, DecodingGivesTheTextBack) {
  ASSERT_TRUE(rc::check([] {
    const std::string text = *arbitrary_bytes();
    for (const Tokenizer* tokenizer : {&demo_tokenizer()}) {
      RC_ASSERT(tokenizer->decode(must(tokenizer->encode(text)), false) == replaced(text));
      RC_ASSERT(tokenizer->decode(must(tokenizer->encode_plain(text)), false) == replaced(text));
    }
  }));
}

TEST(Tokenizer, StreamingEqualsDecodingAtOnce) {
  ASSERT_TRUE(rc::check([] {
    const Tokenizer& tokenizer = demo_tokenizer();
    const auto ids = *rc::gen::container<std::vector<TokenId>>(
        rc::gen::oneOf(rc::gen::inRange<TokenId>(-2, tokenizer.n_ids() + 2), rc::gen::inRange<TokenId>(8, 8 + 256)));
    for (const bool skip_special : {false, true}) {
      RC_ASSERT(streamed(tokenizer, ids, skip_special) == tokenizer.decode(ids, skip_special));
    }
  }));
}

TEST(Tokenizer, PlainTextNeverBecomesAnAddedToken) {
  static const Tokenizer flags =
      test::variant_tokenizer("flags");  // import, self, return: added, and merges lead there
  ASSERT_TRUE(rc::check([] {
    const std::string text = *arbitrary_bytes();
    for (const Tokenizer* tokenizer : {&demo_tokenizer(), &std::as_const(flags)}) {
      const std::vector<TokenId> ids = must(tokenizer->encode_plain(text));
      RC_ASSERT(std::none_of(ids.begin(), ids.end(), [&](TokenId id) { return tokenizer->is_added(id); }));
      RC_ASSERT(tokenizer->decode(ids, false) == replaced(text));
    }
  }));
  const std::vector<TokenId> ids = must(flags.encode_plain("import self"));
  EXPECT_EQ(flags.decode(ids), "import self");
  EXPECT_GT(ids.size(), 2u);
}

TEST(Tokenizer, WithoutAddedTokensInTheTextBothWaysAgree) {
  const Tokenizer& tokenizer = demo_tokenizer();
  const std::string text = test::read_text_file("src/text/tokenizer.cc");
  EXPECT_EQ(must(tokenizer.encode(text)), must(tokenizer.encode_plain(text)));
  EXPECT_NE(must(tokenizer.encode("<think>")), must(tokenizer.encode_plain("<think>")));
}

TEST(Tokenizer, NeighbouringTextSegmentsAreOneText) {
  const Tokenizer& tokenizer = demo_tokenizer();
  const TokenId user = *tokenizer.added_id("<｜User｜>");
  const std::vector<Segment> segments = {{.text = "re"},       {.text = "turn", .from_user = true},
                                         {.text = " <think>"}, {.token = user},
                                         {.text = "im"},       {.text = "port"}};
  std::vector<TokenId> expected = must(tokenizer.encode_plain("return <think>"));
  expected.push_back(user);
  for (const TokenId id : must(tokenizer.encode_plain("import"))) expected.push_back(id);
  EXPECT_EQ(must(tokenizer.encode(segments)), expected);
}

// Text can be as long as standard input makes it. U+FFFD takes three bytes, so replacing a byte can pass the limit.
TEST(Tokenizer, TextAboveTheLimitIsAnError) {
  const Tokenizer tokenizer = must(Tokenizer::parse(io::dump_json(test::variant_document("deepseek")), "", 8));
  const std::vector<Segment> adjacent = {{.text = "12345"}, {.text = "6789"}};
  for (const Result<std::vector<TokenId>>& result :
       {tokenizer.encode("123456789"), tokenizer.encode_plain("123456789"), tokenizer.encode(adjacent),
        tokenizer.encode("\xFF\xFF\xFF"), tokenizer.encode_plain("\xFF\xFF\xFF")}) {
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().kind, ErrorKind::kUsage);
    EXPECT_EQ(
        result.error().message,
        "a text of 9 bytes of UTF-8 is too long for the tokenizer, which takes at most 8 bytes; shorten or divide "
        "the text");
  }
  const std::vector<Segment> apart = {{.text = "12345"}, {.token = 0}, {.text = "6789"}};
  for (const Result<std::vector<TokenId>>& result :
       {tokenizer.encode("12345678"), tokenizer.encode_plain("12345678"), tokenizer.encode(apart)}) {
    EXPECT_TRUE(result.ok());
  }
}

TEST(Tokenizer, BrokenCharactersOfSegmentsDoNotJoin) {
  const Tokenizer& tokenizer = demo_tokenizer();
  const std::vector<Segment> segments = {{.text = "\xE2\x82", .from_user = true}, {.text = "\xAC"}};
  EXPECT_EQ(tokenizer.decode(must(tokenizer.encode(segments))), "\uFFFD\uFFFD");
}

TEST(Tokenizer, IdsThatAreNoTokens) {
  const Tokenizer& tokenizer = demo_tokenizer();
  const TokenId n_ids = tokenizer.n_ids();
  EXPECT_EQ(n_ids, 4096);
  for (const TokenId id :
       {n_ids, n_ids + 1, -1, std::numeric_limits<TokenId>::max(), std::numeric_limits<TokenId>::min()}) {
    EXPECT_FALSE(tokenizer.is_token(id));
    EXPECT_FALSE(tokenizer.is_added(id));
    EXPECT_FALSE(tokenizer.is_special(id));
    EXPECT_EQ(tokenizer.token_bytes(id), "");
    EXPECT_EQ(tokenizer.decode(std::vector<TokenId>{id}), "");
    StreamDecoder decoder(tokenizer);
    EXPECT_EQ(decoder.push(id), "");
  }
}

TEST(Tokenizer, NamedTokens) {
  const Tokenizer& tokenizer = demo_tokenizer();
  EXPECT_EQ(tokenizer.bos(), 0);
  EXPECT_EQ(tokenizer.eos(), 1);
  EXPECT_EQ(tokenizer.pad(), 2);
  ASSERT_EQ(tokenizer.raw_prefix().size(), 1u);
  EXPECT_EQ(tokenizer.raw_prefix()[0], 0);
  std::vector<TokenId> import_alone = must(tokenizer.encode("import"));
  import_alone.insert(import_alone.begin(), 0);
  EXPECT_EQ(must(tokenizer.encode_raw("import")), import_alone);
  EXPECT_EQ(tokenizer.added_id("<think>"), 5);
  EXPECT_EQ(tokenizer.added_id("import"), std::nullopt);
  EXPECT_TRUE(tokenizer.is_special(0));
  EXPECT_TRUE(tokenizer.is_added(5));
  EXPECT_FALSE(tokenizer.is_special(5));
  EXPECT_EQ(tokenizer.token_bytes(3), "<｜User｜>");
  const std::vector<TokenId> ids = {0, 5, 1};
  EXPECT_EQ(tokenizer.decode(ids), "<think>");
  EXPECT_EQ(tokenizer.decode(ids, false), "<｜begin▁of▁sentence｜><think><｜end▁of▁sentence｜>");
}

TEST(StreamDecoder, HoldsBackUnfinishedCharacters) {
  const Tokenizer& tokenizer = demo_tokenizer();
  const auto byte = [&](char b) {  // the token of a single byte
    for (TokenId id = 0; id < tokenizer.n_ids(); ++id) {
      if (tokenizer.token_bytes(id) == std::string(1, b)) return id;
    }
    return kNoToken;
  };
  StreamDecoder decoder(tokenizer);
  EXPECT_EQ(decoder.push(byte('\xF0')), "");
  EXPECT_EQ(decoder.push(byte('\x9F')), "");
  EXPECT_EQ(decoder.push(byte('\x98')), "");
  EXPECT_EQ(decoder.n_pending_bytes(), 3u);
  EXPECT_EQ(decoder.push(byte('\x80')), "😀");
  EXPECT_EQ(decoder.push(byte('\xE2')), "");
  EXPECT_EQ(decoder.push(byte('a')), "\uFFFDa");
  EXPECT_EQ(decoder.push(byte('\xE2')), "");
  EXPECT_EQ(decoder.push(byte('\x82')), "");
  EXPECT_EQ(decoder.finish(), "\uFFFD");
  EXPECT_EQ(decoder.finish(), "");
}

}  // namespace
}  // namespace levin::text
