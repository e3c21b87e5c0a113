// Byte-level BPE as a checkpoint's tokenizer.json describes it: text to token ids and back.
//
//   LEVIN_ASSIGN(Tokenizer tokenizer, Tokenizer::load("models/demo-v32"));
//   std::vector<TokenId> ids = tokenizer.encode_plain("some text");
//   std::string text = tokenizer.decode(ids);
//
// Exactness  ids equal those of Hugging Face tokenizers on the same file; what it has that is not built here is refused
//            on load, by name
// Input      any bytes; invalid UTF-8 is first replaced by U+FFFD as Python's bytes.decode(errors="replace") does
// Limits     at most kMaxTextBytes of text in one call, longer text is a bug of the caller
// Threads    everything but load() is const and may be called from any number of threads
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

// One stretch of a prompt: a token by its id, or text. Only the renderer (chat.h) writes tokens; what a user sent is
// text, and text never becomes an added token.
struct Segment {
  TokenId token = kNoToken;  // when set, `text` is empty
  std::string text = {};
  bool from_user = false;

  bool operator==(const Segment&) const = default;
};

class Tokenizer {
 public:
  static constexpr size_t kMaxTextBytes = size_t{1} << 30;

  // Reads tokenizer.json and, if it is there, tokenizer_config.json of a model folder. Errors are kModelInvalid and
  // name the file, the key and the value.
  static Result<Tokenizer> load(const std::filesystem::path& model_folder);

  // The same from memory; an empty config is the same as none.
  static Result<Tokenizer> parse(std::string_view tokenizer_json, std::string_view config_json);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Added tokens (<think>, <｜User｜>, ...) are recognised wherever they stand in the text. For trusted text only.
  std::vector<TokenId> encode(std::string_view text) const;

  // Added tokens are never produced: their names are text like any other.
  std::vector<TokenId> encode_plain(std::string_view text) const;

  // Tokens as they are, text as encode_plain() does; neighbouring texts are joined first, for BPE may merge across.
  std::vector<TokenId> encode(std::span<const Segment> segments) const;

  // The text of the ids; bytes that are no UTF-8 become U+FFFD. Ids that are no token are ignored. For text that
  // grows token by token use StreamDecoder (stream_decoder.h).
  std::string decode(std::span<const TokenId> ids, bool skip_special = true) const;

  // The raw bytes a token stands for (an added token: its name). Empty for an id that is no token.
  std::string_view token_bytes(TokenId id) const;

  // The id of an added token by its name ("<think>").
  std::optional<TokenId> added_id(std::string_view name) const;

  TokenId n_ids() const;               // one more than the highest id; a model's vocabulary may be padded beyond
  bool is_token(TokenId id) const;     // false for ids out of range or without an entry
  bool is_added(TokenId id) const;     // listed in added_tokens
  bool is_special(TokenId id) const;   // listed there as special: left out of decoded text when asked
  std::optional<TokenId> bos() const;  // of tokenizer_config.json
  std::optional<TokenId> eos() const;  // a model may have more: generation_config.json
  std::optional<TokenId> pad() const;
  // What raw text (no chat format) begins with: the post-processor's tokens or, with add_bos_token, the BOS token.
  std::span<const TokenId> raw_prefix() const;

 private:
  struct State;
  explicit Tokenizer(std::unique_ptr<const State> state);

  std::unique_ptr<const State> state_;
};

}  // namespace levin::text
