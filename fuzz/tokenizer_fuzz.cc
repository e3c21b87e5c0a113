// The tokenizer's doors, chosen by the first byte of the input:
//   'f'   the rest is a tokenizer.json
//   's'   the next byte picks a member of a good tokenizer.json, the rest is JSON to replace it; what loads must encode
//         and decode
//   'c'   the rest is a tokenizer_config.json for the good file
//   else  the rest is text for two good tokenizers, one of DeepSeek's kind and one of GLM's
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "io/json.h"
#include "text/byte_alphabet.h"
#include "text/stream_decoder.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

using namespace levin;
using namespace levin::text;

namespace {

constexpr std::string_view kFrame = R"({
  "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
  "added_tokens": [
    {"id": 300, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},
    {"id": 301, "content": "<l>", "single_word": false, "lstrip": true, "rstrip": true, "normalized": false, "special": false},
    {"id": 302, "content": "ab", "single_word": true, "lstrip": false, "rstrip": false, "normalized": true, "special": false}],
  "post_processor": {"type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}], "special_tokens": {"<s>": {"ids": [300]}}},
  "decoder": {"type": "ByteLevel"},
  "model": {"type": "BPE", "ignore_merges": false, "vocab": {},
            "merges": ["a b", "Ġ ab", ["b", "c"], "a a", "aa aa", "Ã ©", "Ġ Ġ", "ĠĠ ĠĠ", "Ċ Ċ", "1 2"]}
})";

constexpr std::string_view kDeepSeek = R"({"type": "Sequence", "pretokenizers": [
  {"type": "Split", "behavior": "Isolated", "invert": false, "pattern": {"Regex": "\\p{N}{1,3}"}},
  {"type": "Split", "behavior": "Isolated", "invert": false, "pattern": {"Regex": "[一-龥\u3040-ゟ゠-ヿ]+"}},
  {"type": "Split", "behavior": "Isolated", "invert": false, "pattern": {"Regex": "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},
  {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]})";

constexpr std::string_view kGlm = R"({"type": "Sequence", "pretokenizers": [
  {"type": "Split", "behavior": "Isolated", "invert": false, "pattern": {"Regex": "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},
  {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]})";

io::JsonValue good_document(std::string_view pre_tokenizer) {
  io::JsonValue document = io::parse_json(kFrame, "frame").value();
  io::JsonObject& root = *document.as_object();
  root.set("pre_tokenizer", io::parse_json(pre_tokenizer, "pre_tokenizer").value());
  io::JsonObject& vocab = *root.find("model")->as_object()->find("vocab")->as_object();
  const ByteAlphabet alphabet;
  for (int byte = 0; byte < 256; ++byte) {
    std::string spelling;
    append_utf8(alphabet.character(static_cast<uint8_t>(byte)), spelling);
    vocab.set(spelling, byte);
  }
  int id = 256;
  for (const char* token : {"ab", "Ġab", "bc", "aa", "aaaa", "Ã©", "ĠĠ", "ĠĠĠĠ", "ĊĊ", "12"}) vocab.set(token, id++);
  root.find("added_tokens")->as_array()->at(2).as_object()->set("id", 256);  // "ab", which merges lead to
  return document;
}

Tokenizer good_tokenizer(std::string_view pre_tokenizer) {
  Result<Tokenizer> tokenizer = Tokenizer::parse(io::dump_json(good_document(pre_tokenizer)), "");
  LEVIN_CHECK(tokenizer.ok(), "{}", tokenizer.error().message);
  return std::move(tokenizer).value();
}

// What must hold for any tokenizer and any bytes. `faithful`: no added token swallows white space.
void check_text(const Tokenizer& tokenizer, std::string_view bytes, bool faithful) {
  std::string storage;
  const std::string text(valid_utf8(bytes, storage));
  LEVIN_CHECK(is_valid_utf8(text), "replaced text is not UTF-8");

  const std::vector<TokenId> plain = tokenizer.encode_plain(bytes).value();
  for (const TokenId id : plain) LEVIN_CHECK(!tokenizer.is_added(id), "plain text became the added token {}", id);
  LEVIN_CHECK(tokenizer.decode(plain, false) == text, "encode_plain and decode do not give the text back");

  const std::vector<TokenId> ids = tokenizer.encode(bytes).value();
  for (const TokenId id : ids) LEVIN_CHECK(tokenizer.is_token(id), "{} is no token", id);
  const std::string decoded = tokenizer.decode(ids, false);
  LEVIN_CHECK(!faithful || decoded == text, "encode and decode do not give the text back");

  StreamDecoder decoder(tokenizer, false);
  std::string streamed;
  for (const TokenId id : ids) streamed += decoder.push(id);
  LEVIN_CHECK(streamed + decoder.finish() == decoded, "streaming differs from decoding at once");
}

// Bytes as ids: sequences that no text would give.
void check_ids(const Tokenizer& tokenizer, std::string_view bytes) {
  std::vector<TokenId> ids;
  for (size_t i = 0; i + 1 < bytes.size(); i += 2) {
    ids.push_back(
        static_cast<TokenId>((static_cast<uint8_t>(bytes[i]) | static_cast<uint8_t>(bytes[i + 1]) << 8) % 310) - 2);
  }
  StreamDecoder decoder(tokenizer);
  std::string streamed;
  for (const TokenId id : ids) {
    streamed += decoder.push(id);
    LEVIN_CHECK(decoder.n_pending_bytes() <= 3, "{} bytes are held back", decoder.n_pending_bytes());
  }
  LEVIN_CHECK(streamed + decoder.finish() == tokenizer.decode(ids), "streaming differs from decoding at once");
}

constexpr std::string_view kSample = "ab abc aaaa <s> <l>  été 12345\r\n\n 中文カナ·x\xE2\x82 'll";

void try_document(const std::string& json) {
  const Result<Tokenizer> tokenizer = Tokenizer::parse(json, "");
  if (tokenizer.ok()) check_text(*tokenizer, kSample, false);
}

// Replaces one of the members of a good document by `value`.
std::string spoiled(uint8_t choice, const io::JsonValue& value) {
  static const io::JsonValue good = good_document(kDeepSeek);
  io::JsonValue document = good;
  io::JsonObject& root = *document.as_object();
  io::JsonObject& model = *root.find("model")->as_object();
  io::JsonArray& added = *root.find("added_tokens")->as_array();
  io::JsonArray& steps = *root.find("pre_tokenizer")->as_object()->find("pretokenizers")->as_array();
  constexpr std::array<std::string_view, 6> kRoot = {"version",       "added_tokens",   "normalizer",
                                                     "pre_tokenizer", "post_processor", "decoder"};
  constexpr std::array<std::string_view, 6> kModel = {"type",          "dropout", "continuing_subword_prefix",
                                                      "ignore_merges", "vocab",   "merges"};
  if (choice < kRoot.size()) {
    root.set(kRoot[choice], value);
  } else if (choice < kRoot.size() + kModel.size()) {
    model.set(kModel[choice - kRoot.size()], value);
  } else if (choice % 4 == 0) {
    added.push_back(value);
  } else if (choice % 4 == 1) {
    steps[(choice / 4u) % steps.size()] = value;
  } else if (choice % 4 == 2) {
    model.find("merges")->as_array()->push_back(value);
  } else if (const io::JsonObject* members = value.as_object()) {
    for (const io::JsonMember& member : members->members())
      model.find("vocab")->as_object()->set(member.key, member.value);
  }
  return io::dump_json(document);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Tokenizer deepseek = good_tokenizer(kDeepSeek);
  static const Tokenizer glm = good_tokenizer(kGlm);
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::string_view rest = input.substr(1);
  if (input[0] == 'f') {
    try_document(std::string(rest));
  } else if (input[0] == 's' && size > 2) {
    const Result<io::JsonValue> value = io::parse_json(rest.substr(1), "fuzz");
    if (value.ok()) try_document(spoiled(static_cast<uint8_t>(rest[0]), *value));
  } else if (input[0] == 'c') {
    static const std::string good = io::dump_json(good_document(kDeepSeek));
    (void)Tokenizer::parse(good, rest);
  } else {
    const bool faithful = rest.find("<l>") == std::string_view::npos;
    check_text(deepseek, rest, faithful);
    check_text(glm, rest, faithful);
    check_ids(deepseek, rest);
  }
  return 0;
}
