// Tokenizer files that are broken or ask for something that is not built: each is refused with a message that says so.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <string_view>

#include "io/json.h"
#include "support/must.h"
#include "text/tokenizer.h"
#include "text/variants.h"

namespace levin::text {
namespace {

using io::JsonArray;
using io::JsonObject;
using io::JsonValue;
using test::must;

JsonObject& model_of(JsonObject& document) { return *document.find("model")->as_object(); }
JsonObject& vocab_of(JsonObject& document) { return *model_of(document).find("vocab")->as_object(); }
JsonArray& merges_of(JsonObject& document) { return *model_of(document).find("merges")->as_array(); }
JsonObject& added_of(JsonObject& document, size_t i) {
  return *(*document.find("added_tokens")->as_array())[i].as_object();
}
void set_json(JsonObject& object, std::string_view key, std::string_view json) {
  object.set(key, test::must(io::parse_json(json, "test")));
}

struct Broken {
  const char* name;
  std::function<void(JsonObject&)> spoil;
  std::string_view message;  // a part of it
};

const Broken kBroken[] = {
    {"version", [](JsonObject& d) { d.set("version", "2.0"); }, "version is \"2.0\""},
    {"unknown key", [](JsonObject& d) { d.set("extra", 1); }, "extra is an unknown key"},
    {"truncation", [](JsonObject& d) { set_json(d, "truncation", R"({"max_length":8})"); }, "truncation is set"},
    {"padding", [](JsonObject& d) { set_json(d, "padding", R"({"pad_id":0})"); }, "padding is set"},
    {"normalizer", [](JsonObject& d) { set_json(d, "normalizer", R"({"type":"NFC"})"); },
     "normalizer has type \"NFC\""},
    {"normalizers",
     [](JsonObject& d) { set_json(d, "normalizer", R"({"type":"Sequence","normalizers":[{"type":"NFC"}]})"); },
     "normalizer is a Sequence that is not empty"},
    {"pre-tokenizer", [](JsonObject& d) { d.erase("pre_tokenizer"); }, "pre_tokenizer is null"},
    {"decoder", [](JsonObject& d) { set_json(d, "decoder", R"({"type":"WordPiece"})"); },
     "decoder has type \"WordPiece\""},
    {"no decoder", [](JsonObject& d) { d.set("decoder", nullptr); }, "decoder is missing"},
    {"post-processor", [](JsonObject& d) { set_json(d, "post_processor", R"({"type":"BertProcessing"})"); },
     "post_processor has type \"BertProcessing\""},
    {"post-processors",
     [](JsonObject& d) {
       set_json(d, "post_processor", R"({"type":"Sequence","processors":[{"type":"ByteLevel"},{"type":"X"}]})");
     },
     "post_processor.processors[1] has type \"X\""},
    {"template with end",
     [](JsonObject& d) {
       set_json(d, "post_processor", R"({"type":"TemplateProcessing","single":[{"Sequence":{"id":"A"}},
         {"SpecialToken":{"id":"e"}}],"special_tokens":{"e":{"ids":[1]}}})");
     },
     "post_processor.single has more than"},
    {"template with unknown token",
     [](JsonObject& d) {
       set_json(d, "post_processor", R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"b"}}]})");
     },
     "does not describe"},
    {"template with bad id",
     [](JsonObject& d) {
       set_json(d, "post_processor", R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"b"}}],
         "special_tokens":{"b":{"ids":[99999]}}})");
     },
     "id 99999, which is not a token"},
    {"no model", [](JsonObject& d) { d.erase("model"); }, "model"},
    {"model type", [](JsonObject& d) { model_of(d).set("type", "Unigram"); }, "model.type is \"Unigram\""},
    {"model key", [](JsonObject& d) { model_of(d).set("magic", true); }, "model.magic is an unknown key"},
    {"dropout", [](JsonObject& d) { model_of(d).set("dropout", 0.1); }, "model.dropout is 0.1"},
    {"prefix", [](JsonObject& d) { model_of(d).set("continuing_subword_prefix", "##"); },
     "model.continuing_subword_prefix is \"##\""},
    {"suffix", [](JsonObject& d) { model_of(d).set("end_of_word_suffix", "</w>"); }, "model.end_of_word_suffix"},
    {"ignore_merges", [](JsonObject& d) { model_of(d).set("ignore_merges", "yes"); }, "model.ignore_merges is \"yes\""},
    {"no vocab", [](JsonObject& d) { model_of(d).erase("vocab"); }, "model.vocab"},
    {"vocab list", [](JsonObject& d) { set_json(model_of(d), "vocab", "[]"); }, "model.vocab"},
    {"no byte", [](JsonObject& d) { vocab_of(d).erase("Ġ"); }, "no token \"Ġ\" for the byte 0x20"},
    {"negative id", [](JsonObject& d) { vocab_of(d).set("neg", -1); }, "model.vocab[\"neg\"] is -1"},
    {"huge id", [](JsonObject& d) { vocab_of(d).set("huge", 1 << 30); }, "model.vocab[\"huge\"] is 1073741824"},
    {"id of a wrong type", [](JsonObject& d) { vocab_of(d).set("x", "7"); }, "model.vocab[\"x\"] is \"7\""},
    {"id twice", [](JsonObject& d) { vocab_of(d).set("again", 300); }, "id 300, which another token has too"},
    {"empty token", [](JsonObject& d) { vocab_of(d).set("", 5000); }, "model.vocab has an empty token"},
    {"no merges", [](JsonObject& d) { model_of(d).set("merges", 1); }, "model.merges is 1"},
    {"merge of three", [](JsonObject& d) { merges_of(d)[5] = "a b c"; }, "model.merges[5] is \"a b c\""},
    {"merge of one", [](JsonObject& d) { merges_of(d)[5] = "a"; }, "model.merges[5] is \"a\""},
    {"merge with empty side", [](JsonObject& d) { merges_of(d)[5] = JsonArray{"a", ""}; }, "model.merges[5]"},
    {"merge number", [](JsonObject& d) { merges_of(d)[5] = 3; }, "model.merges[5] is 3"},
    {"merge left", [](JsonObject& d) { merges_of(d)[5] = "qqqq a"; }, "model.merges[5] needs the token \"qqqq\""},
    {"merge joined", [](JsonObject& d) { merges_of(d)[5] = "Z Z"; }, "model.merges[5] needs the token \"ZZ\""},
    {"added tokens", [](JsonObject& d) { d.set("added_tokens", "none"); }, "added_tokens is \"none\""},
    {"added entry", [](JsonObject& d) { (*d.find("added_tokens")->as_array())[0] = 5; }, "added_tokens[0]"},
    {"added without id", [](JsonObject& d) { added_of(d, 1).erase("id"); }, "added_tokens[1].id is missing"},
    {"added without name", [](JsonObject& d) { added_of(d, 1).set("content", ""); },
     "added_tokens[1].content is empty"},
    {"added flag", [](JsonObject& d) { added_of(d, 1).set("lstrip", "no"); }, "lstrip is \"no\""},
    {"added without flag", [](JsonObject& d) { added_of(d, 1).erase("special"); }, "special"},
    {"added key", [](JsonObject& d) { added_of(d, 1).set("odd", 1); }, "added_tokens[1].odd is an unknown key"},
    {"added name twice", [](JsonObject& d) { added_of(d, 6).set("content", "<think>"); },
     "\"<think>\", which is listed twice"},
    {"added id taken",
     [](JsonObject& d) {
       added_of(d, 6).set("content", "<new>");
       added_of(d, 6).set("id", 300);
     },
     "id 300, which another token has too"},
    {"added id differs", [](JsonObject& d) { added_of(d, 6).set("content", "import"); }, "in model.vocab"},
    {"added byte",
     [](JsonObject& d) {
       added_of(d, 6).set("content", "a");
       added_of(d, 6).set("id", *vocab_of(d).find("a"));
     },
     "is the token of a single byte"},
};

TEST(TokenizerFile, BrokenOnesAreRefusedByName) {
  const JsonValue good = test::variant_document("deepseek");
  ASSERT_TRUE(Tokenizer::parse(io::dump_json(good), "").ok());
  for (const Broken& broken : kBroken) {
    JsonValue document = good;
    broken.spoil(*document.as_object());
    const Result<Tokenizer> result = Tokenizer::parse(io::dump_json(document), "");
    ASSERT_FALSE(result.ok()) << broken.name;
    EXPECT_EQ(result.error().kind, ErrorKind::kModelInvalid) << broken.name;
    EXPECT_NE(result.error().message.find(broken.message), std::string::npos)
        << broken.name << ": " << result.error().message;
    EXPECT_EQ(result.error().message.rfind("tokenizer.json", 0), 0u) << result.error().message;
  }
}

struct BrokenConfig {
  std::string_view json;
  std::string_view message;
};

constexpr BrokenConfig kBrokenConfigs[] = {
    {"{", "tokenizer_config.json"},
    {"[]", "expected an object"},
    {R"({"bos_token":3})", "bos_token is 3"},
    {R"({"bos_token":{"text":"<think>"}})", "bos_token is"},
    {R"({"eos_token":"<end>"})", "eos_token is \"<end>\", which is not among added_tokens"},
    {R"({"add_bos_token":true})", "there is no bos_token"},
    {R"({"add_bos_token":"yes"})", "add_bos_token is \"yes\""},
    {R"({"add_eos_token":true})", "add_eos_token is true"},
    {R"({"added_tokens_decoder":{"5":{"content":"<other>"}}})", "added_tokens_decoder.5 is \"<other>\""},
    {R"({"added_tokens_decoder":{"9":{"content":"<think>"}}})", "tokenizer.json has it as 5"},
};

TEST(TokenizerConfig, BrokenOnesAreRefusedByName) {
  const std::string tokenizer_json = io::dump_json(test::variant_document("deepseek"));
  for (const BrokenConfig& broken : kBrokenConfigs) {
    const Result<Tokenizer> result = Tokenizer::parse(tokenizer_json, broken.json);
    ASSERT_FALSE(result.ok()) << broken.json;
    EXPECT_EQ(result.error().kind, ErrorKind::kModelInvalid);
    EXPECT_NE(result.error().message.find(broken.message), std::string::npos) << result.error().message;
  }
}

TEST(TokenizerFile, SpellingsThatMeanTheSame) {
  const JsonValue good = test::variant_document("deepseek");
  const Tokenizer expected = test::must(Tokenizer::parse(io::dump_json(good), ""));
  JsonValue document = good;
  JsonObject& root = *document.as_object();
  for (JsonValue& merge : merges_of(root)) {
    const JsonArray pair = *merge.as_array();
    merge = *pair[0].as_string() + " " + *pair[1].as_string();
  }
  merges_of(root).insert(merges_of(root).begin(), "#version: 0.2");
  set_json(root, "normalizer", R"({"type":"Sequence","normalizers":[]})");
  set_json(root, "post_processor", R"({"type":"ByteLevel","add_prefix_space":true,"trim_offsets":false})");
  model_of(root).set("continuing_subword_prefix", "");
  model_of(root).set("dropout", 0.0);
  const Tokenizer other = test::must(Tokenizer::parse(io::dump_json(document), ""));
  const std::string text = test::read_text_file("tests/text/golden/make_goldens.py");
  EXPECT_EQ(must(other.encode(text)), must(expected.encode(text)));
}

TEST(TokenizerFile, RawTextBeginsAsPostProcessorAndConfigSay) {
  const std::string plain = io::dump_json(test::variant_document("deepseek"));
  JsonValue document = test::variant_document("deepseek");
  set_json(*document.as_object(), "post_processor",
           R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"b","type_id":0}},{"Sequence":{"id":"A"}}],
               "special_tokens":{"b":{"id":"b","ids":[0],"tokens":["x"]}}})");
  const std::string with_template = io::dump_json(document);
  const std::string_view with_bos = R"({"bos_token":{"content":"<｜begin▁of▁sentence｜>"},"add_bos_token":true})";

  const auto prefix = [](std::string_view tokenizer, std::string_view config) {
    const Tokenizer t = test::must(Tokenizer::parse(tokenizer, config));
    return std::vector<TokenId>(t.raw_prefix().begin(), t.raw_prefix().end());
  };
  EXPECT_EQ(prefix(plain, ""), std::vector<TokenId>());
  EXPECT_EQ(prefix(plain, with_bos), std::vector<TokenId>{0});
  EXPECT_EQ(prefix(with_template, ""), std::vector<TokenId>{0});
  EXPECT_EQ(prefix(with_template, with_bos), std::vector<TokenId>{0});  // not twice
}

TEST(TokenizerFile, MissingFolder) {
  const Result<Tokenizer> result = Tokenizer::load("/nonexistent/model");
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().kind, ErrorKind::kModelInvalid);
  EXPECT_NE(result.error().message.find("/nonexistent/model/tokenizer.json"), std::string::npos);
}

}  // namespace
}  // namespace levin::text
