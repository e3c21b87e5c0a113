// Byte-level BPE as a checkpoint's tokenizer.json describes it: text to token ids and back.
//
//   LEVIN_ASSIGN(Tokenizer tokenizer, Tokenizer::load("models/demo-v32"));
//   LEVIN_ASSIGN(std::vector<TokenId> ids, tokenizer.encode_plain("some text"));
//   std::string text = tokenizer.decode(ids);
//
// Exactness  ids equal those of Hugging Face tokenizers on the same file; load() refuses features of the file that are
//            not implemented, by name
// Input      any bytes; invalid UTF-8 is first replaced by U+FFFD as Python's bytes.decode(errors="replace") does
// Limits     a text, or adjacent text segments together, of more than kMaxTextBytes of UTF-8 is an error (kUsage)
// Threads    const member functions may be called from any number of threads at the same time
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/token_id.h"

namespace levin::text {

// A part of a prompt: either a token id or text. Only the renderer (chat.h) writes token ids; text from users never
// becomes an added token.
struct Segment {
  TokenId token = kNoToken;  // if set, `text` is empty
  std::string text = {};
  bool from_user = false;

  bool operator==(const Segment&) const = default;
};

class Tokenizer {
 public:
  static constexpr size_t kMaxTextBytes = size_t{1} << 30;

  // Reads tokenizer.json and, if it exists, tokenizer_config.json of a model folder. Errors are kModelInvalid and name
  // the file, the key and the value.
  static Result<Tokenizer> load(const std::filesystem::path& model_folder);

  // The same for the contents of these files; config_json may be empty. Tests lower the limit of a text.
  static Result<Tokenizer> parse(std::string_view tokenizer_json, std::string_view config_json,
                                 size_t max_text_bytes = kMaxTextBytes);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Encodes text, recognising added tokens (<think>, <｜User｜>, ...) anywhere in it. For trusted text only.
  Result<std::vector<TokenId>> encode(std::string_view text) const;

  // As encode(), of text without a chat format: raw_prefix() stands before it.
  Result<std::vector<TokenId>> encode_raw(std::string_view text) const;

  // Encodes text without added tokens: their names are encoded as ordinary text.
  Result<std::vector<TokenId>> encode_plain(std::string_view text) const;

  // Encodes segments: token ids are copied and text is encoded by encode_plain(), after joining adjacent texts, because
  // BPE may merge across them.
  Result<std::vector<TokenId>> encode(std::span<const Segment> segments) const;

  // The text of the ids; bytes that are not UTF-8 become U+FFFD. Ids without a token are ignored. To decode token by
  // token use StreamDecoder (stream_decoder.h).
  std::string decode(std::span<const TokenId> ids, bool skip_special = true) const;

  // The raw bytes of a token (of an added token its name); empty for an id without a token.
  std::string_view token_bytes(TokenId id) const;

  // The id of an added token by its name ("<think>").
  std::optional<TokenId> added_id(std::string_view name) const;

  TokenId n_ids() const;               // the highest id plus one; a model's vocabulary may be padded beyond it
  bool is_token(TokenId id) const;     // false for ids out of range or without an entry
  bool is_added(TokenId id) const;     // listed in added_tokens
  bool is_special(TokenId id) const;   // listed there as special: omitted by decode() with skip_special
  std::optional<TokenId> bos() const;  // of tokenizer_config.json
  std::optional<TokenId> eos() const;  // generation_config.json may name more
  std::optional<TokenId> pad() const;
  // The tokens with which raw text (without a chat format) begins: those of the post-processor or, with add_bos_token,
  // the BOS token.
  std::span<const TokenId> raw_prefix() const;

 private:
  struct State;
  explicit Tokenizer(std::unique_ptr<const State> state);

  std::unique_ptr<const State> state_;
};

}  // namespace levin::text
