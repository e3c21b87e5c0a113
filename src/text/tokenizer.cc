#include "text/tokenizer.h"

#include <fmt/core.h>

#include <algorithm>
#include <fstream>
#include <unordered_map>
#include <utility>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/pretokenizer.h"
#include "text/tokenizer_file.h"
#include "text/unicode.h"

namespace levin::text {
namespace {

// Shorter texts are encoded before a memo has paid for its clearing.
constexpr size_t kMemoFromBytes = 4096;

Result<std::string> read_file(const std::filesystem::path& path) {
  constexpr uintmax_t kMaxBytes = uintmax_t{1} << 30;
  std::error_code failure;
  const uintmax_t n_bytes = std::filesystem::file_size(path, failure);
  if (failure || n_bytes > kMaxBytes) {
    return Error{ErrorKind::kModelInvalid,
                 fmt::format("cannot read {}: {}", path.string(), failure ? failure.message() : "larger than 1 GiB")};
  }
  std::string text(n_bytes, '\0');
  std::ifstream file(path, std::ios::binary);
  if (!file.read(text.data(), static_cast<std::streamsize>(n_bytes))) {
    return Error{ErrorKind::kModelInvalid, fmt::format("cannot read {}", path.string())};
  }
  return text;
}

std::vector<TokenId> raw_prefix_of(const TokenizerFile& file, const TokenizerConfig& config) {
  std::vector<TokenId> prefix = file.prefix;
  const bool has_bos = !prefix.empty() && config.bos == prefix.front();
  if (config.add_bos_token && !has_bos) prefix.insert(prefix.begin(), *config.bos);
  return prefix;
}

}  // namespace

struct Tokenizer::State {
  State(TokenizerFile file, const TokenizerConfig& file_config, size_t max_bytes);

  Result<std::string_view> valid_text(std::string_view text, std::string& storage) const;
  void encode_text(std::string_view text, bool plain, PieceMemo* memo, std::vector<TokenId>& out) const;

  TokenBytes bytes;
  AddedTokens added;
  std::unordered_map<std::string_view, TokenId> added_ids;  // looks into `added`
  std::vector<bool> is_added;                               // by id
  std::vector<bool> is_special;
  bool merges_to_added = false;  // BPE can arrive at an added token
  SplitPattern split;
  Bpe bpe;
  TokenizerConfig config;
  std::vector<TokenId> raw_prefix;
  size_t max_text_bytes;
};

Tokenizer::State::State(TokenizerFile file, const TokenizerConfig& file_config, size_t max_bytes)
    : bytes(file.tokens),
      added(std::move(file.added)),
      is_added(file.tokens.size()),
      is_special(file.tokens.size()),
      split(file.split),
      bpe(file.bpe, bytes),
      config(file_config),
      raw_prefix(raw_prefix_of(file, file_config)),
      max_text_bytes(max_bytes) {
  for (const AddedToken& token : added.tokens()) {
    added_ids.emplace(token.name, token.id);
    is_added[static_cast<size_t>(token.id)] = true;
    is_special[static_cast<size_t>(token.id)] = token.special;
  }
  const auto hits = [this](TokenId id) { return is_added[static_cast<size_t>(id)]; };
  merges_to_added = std::any_of(file.bpe.merges.begin(), file.bpe.merges.end(),
                                [&](const Merge& merge) { return hits(merge.joined); }) ||
                    std::any_of(file.bpe.whole_pieces.begin(), file.bpe.whole_pieces.end(), hits);
}

// The text as valid UTF-8, in `storage` if something had to be replaced. Its length is limited after the replacement,
// because BPE counts the bytes of a piece in 31 bits and a piece may be the whole text.
Result<std::string_view> Tokenizer::State::valid_text(std::string_view text, std::string& storage) const {
  const std::string_view valid = valid_utf8(text, storage);
  if (valid.size() <= max_text_bytes) return valid;
  return Error{ErrorKind::kUsage, fmt::format("a text of {} bytes of UTF-8 is too long for the tokenizer, which takes "
                                              "at most {} bytes; shorten or divide the text",
                                              valid.size(), max_text_bytes)};
}

// Appends the tokens of valid UTF-8 without added tokens in it; with `plain` their ids do not come out either.
void Tokenizer::State::encode_text(std::string_view text, bool plain, PieceMemo* memo,
                                   std::vector<TokenId>& out) const {
  PieceSplitter pieces(split, text);
  const bool may_hit = plain && merges_to_added;
  for (std::string_view piece; pieces.next(piece);) {
    const size_t first = out.size();
    bpe.encode(piece, memo, out);
    if (!may_hit) continue;
    const auto begin = out.begin() + static_cast<ptrdiff_t>(first);
    if (std::none_of(begin, out.end(), [this](TokenId id) { return is_added[static_cast<size_t>(id)]; })) continue;
    out.resize(first);
    bpe.encode_without(piece, is_added, out);
  }
}

Result<Tokenizer> Tokenizer::load(const std::filesystem::path& model_folder) {
  LEVIN_ASSIGN(const std::string tokenizer_json, read_file(model_folder / "tokenizer.json"));
  std::string config_json;
  const std::filesystem::path config_path = model_folder / "tokenizer_config.json";
  std::error_code ignored;
  if (std::filesystem::exists(config_path, ignored)) {
    LEVIN_ASSIGN(config_json, read_file(config_path));
  }
  Result<Tokenizer> tokenizer = parse(tokenizer_json, config_json);
  if (tokenizer.ok()) return tokenizer;
  return Error{tokenizer.error().kind, (model_folder / "").string() + tokenizer.error().message};
}

Result<Tokenizer> Tokenizer::parse(std::string_view tokenizer_json, std::string_view config_json,
                                   size_t max_text_bytes) {
  LEVIN_ASSIGN(TokenizerFile file, parse_tokenizer_file(tokenizer_json));
  LEVIN_ASSIGN(const TokenizerConfig config, parse_tokenizer_config(config_json, file.added));
  return Tokenizer(std::make_unique<const State>(std::move(file), config, max_text_bytes));
}

Tokenizer::Tokenizer(std::unique_ptr<const State> state) : state_(std::move(state)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

namespace {

// A memo for one call, made only if the text is worth it.
std::optional<PieceMemo> memo_for(size_t n_bytes) {
  if (n_bytes < kMemoFromBytes) return std::nullopt;
  return std::optional<PieceMemo>(std::in_place);
}

}  // namespace

Result<std::vector<TokenId>> Tokenizer::encode(std::string_view text) const {
  std::string storage;
  LEVIN_ASSIGN(const std::string_view valid, state_->valid_text(text, storage));
  std::optional<PieceMemo> memo = memo_for(valid.size());
  std::vector<TokenId> ids;
  for (const TextPart& part : state_->added.split(valid)) {
    if (part.token != kNoToken) {
      ids.push_back(part.token);
    } else {
      state_->encode_text(part.text, false, memo ? &*memo : nullptr, ids);
    }
  }
  return ids;
}

Result<std::vector<TokenId>> Tokenizer::encode_raw(std::string_view text) const {
  LEVIN_ASSIGN(std::vector<TokenId> ids, encode(text));
  ids.insert(ids.begin(), state_->raw_prefix.begin(), state_->raw_prefix.end());
  return ids;
}

Result<std::vector<TokenId>> Tokenizer::encode_plain(std::string_view text) const {
  std::string storage;
  LEVIN_ASSIGN(const std::string_view valid, state_->valid_text(text, storage));
  std::optional<PieceMemo> memo = memo_for(valid.size());
  std::vector<TokenId> ids;
  state_->encode_text(valid, true, memo ? &*memo : nullptr, ids);
  return ids;
}

Result<std::vector<TokenId>> Tokenizer::encode(std::span<const Segment> segments) const {
  std::vector<TokenId> ids;
  std::string storage;
  std::string text;  // of the adjacent text segments so far
  const auto flush = [&]() -> Status {
    LEVIN_ASSIGN(const std::vector<TokenId> tokens, encode_plain(text));
    ids.insert(ids.end(), tokens.begin(), tokens.end());
    text.clear();
    return {};
  };
  for (const Segment& segment : segments) {
    if (segment.token == kNoToken) {
      text += valid_utf8(segment.text, storage);
      continue;
    }
    LEVIN_TRY(flush());
    ids.push_back(segment.token);
  }
  LEVIN_TRY(flush());
  return ids;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
  std::string bytes;
  for (const TokenId id : ids) {
    if (!skip_special || !is_special(id)) bytes += token_bytes(id);
  }
  std::string storage;
  const std::string_view text = valid_utf8(bytes, storage);
  return text.data() == bytes.data() ? bytes : storage;
}

std::string_view Tokenizer::token_bytes(TokenId id) const {
  return id >= 0 && id < n_ids() ? state_->bytes[id] : std::string_view();
}

std::optional<TokenId> Tokenizer::added_id(std::string_view name) const {
  const auto found = state_->added_ids.find(name);
  return found != state_->added_ids.end() ? std::optional(found->second) : std::nullopt;
}

TokenId Tokenizer::n_ids() const { return state_->bytes.n_ids(); }
bool Tokenizer::is_token(TokenId id) const { return !token_bytes(id).empty(); }
bool Tokenizer::is_added(TokenId id) const {
  return id >= 0 && id < n_ids() && state_->is_added[static_cast<size_t>(id)];
}
bool Tokenizer::is_special(TokenId id) const {
  return id >= 0 && id < n_ids() && state_->is_special[static_cast<size_t>(id)];
}
std::optional<TokenId> Tokenizer::bos() const { return state_->config.bos; }
std::optional<TokenId> Tokenizer::eos() const { return state_->config.eos; }
std::optional<TokenId> Tokenizer::pad() const { return state_->config.pad; }
std::span<const TokenId> Tokenizer::raw_prefix() const { return state_->raw_prefix; }

}  // namespace levin::text
