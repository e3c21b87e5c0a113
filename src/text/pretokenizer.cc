#include "text/pretokenizer.h"

#include <fmt/format.h>

#include <array>
#include <string>
#include <vector>

#include "text/unicode.h"

namespace levin::text {
namespace {

constexpr std::string_view kNumbersByThrees = R"(\p{N}{1,3})";
constexpr std::string_view kCjkRuns = "[一-龥\u3040-ゟ゠-ヿ]+";
constexpr std::string_view kDeepSeekWords =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kGlmWords =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+)"
    R"(|\s+(?!\S)|\s+)";

bool is_cjk(char32_t c) { return (c >= 0x4E00 && c <= 0x9FA5) || (c >= 0x3040 && c <= 0x30FF); }

Error refuse(std::string_view where, std::string_view key, std::string_view what) {
  return Error{ErrorKind::kModelInvalid,
               fmt::format("{}: {} {}; this tokenizer has no implementation here", where, key, what)};
}

// The pattern of one Split, with the flags checked.
Result<std::string> split_pattern(const io::JsonFields& split, std::string_view where, std::string_view key) {
  LEVIN_ASSIGN(const std::string behavior, split.get<std::string>("behavior"));
  LEVIN_ASSIGN(const bool invert, split.get_or("invert", false));
  if (behavior != "Isolated" || invert) {
    return refuse(where, key, fmt::format("is a Split with behavior \"{}\", invert {}", behavior, invert));
  }
  LEVIN_ASSIGN(const io::JsonFields pattern, split.get_fields("pattern"));
  if (!pattern.has("Regex")) return refuse(where, key, "splits at a plain string instead of a Regex");
  return pattern.get<std::string>("Regex");
}

// \" is one way to write " in a pattern; both are in circulation.
std::string without_escaped_quotes(std::string pattern) {
  for (size_t at = 0; (at = pattern.find("\\\"", at)) != std::string::npos;) pattern.erase(at, 1);
  return pattern;
}

Status check_byte_level(const io::JsonFields& step, std::string_view where, std::string_view key) {
  LEVIN_ASSIGN(const bool add_prefix_space, step.get_or("add_prefix_space", true));
  LEVIN_ASSIGN(const bool use_regex, step.get_or("use_regex", true));
  if (add_prefix_space) return refuse(where, key, "is ByteLevel with add_prefix_space true");
  if (use_regex) return refuse(where, key, "is ByteLevel with use_regex true");
  return {};
}

struct Steps {
  std::vector<std::string> patterns;  // of the Splits
  bool byte_level = false;            // a ByteLevel comes after them
};

Result<Steps> read_steps(const io::JsonArray& list, std::string_view where) {
  Steps steps;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string key = fmt::format("pre_tokenizer.pretokenizers[{}]", i);
    LEVIN_ASSIGN(const io::JsonFields step, io::JsonFields::of(list[i], fmt::format("{}: {}", where, key)));
    LEVIN_ASSIGN(const std::string type, step.get<std::string>("type"));
    if (steps.byte_level) return refuse(where, key, fmt::format("is a {} after ByteLevel", type));
    if (type == "Split") {
      LEVIN_ASSIGN(std::string pattern, split_pattern(step, where, key));
      steps.patterns.push_back(without_escaped_quotes(std::move(pattern)));
    } else if (type == "ByteLevel") {
      LEVIN_TRY(check_byte_level(step, where, key));
      steps.byte_level = true;
    } else {
      return refuse(where, key, fmt::format("has type \"{}\"", type));
    }
  }
  return steps;
}

}  // namespace

Result<SplitPattern> recognise_pre_tokenizer(const io::JsonValue& pre_tokenizer, std::string_view where) {
  if (pre_tokenizer.is_null()) return refuse(where, "pre_tokenizer", "is null");
  LEVIN_ASSIGN(const io::JsonFields fields, io::JsonFields::of(pre_tokenizer, fmt::format("{}: pre_tokenizer", where)));
  LEVIN_ASSIGN(const std::string type, fields.get<std::string>("type"));
  if (type != "Sequence") return refuse(where, "pre_tokenizer", fmt::format("has type \"{}\"", type));
  const io::JsonValue* list = fields.find("pretokenizers");
  if (list == nullptr || list->as_array() == nullptr) return fields.unexpected("pretokenizers", "a list");

  LEVIN_ASSIGN(const Steps steps, read_steps(*list->as_array(), where));
  if (!steps.byte_level) return refuse(where, "pre_tokenizer", "does not end with ByteLevel");
  const auto& patterns = steps.patterns;
  if (patterns == std::vector<std::string>{std::string(kGlmWords)}) return SplitPattern::kGlm;
  if (patterns.size() == 3 && patterns[0] == kNumbersByThrees && patterns[1] == kCjkRuns &&
      patterns[2] == kDeepSeekWords) {
    return SplitPattern::kDeepSeek;
  }
  return refuse(where, "pre_tokenizer", fmt::format("has the unknown patterns \"{}\"", fmt::join(patterns, "\", \"")));
}

template <PieceSplitter::Scope kScope>
PieceSplitter::Seen PieceSplitter::look(size_t pos) const {
  if (pos >= limit_) return {kEnd, 0};
  const auto byte = static_cast<uint8_t>(text_[pos]);
  if (byte < 0x80) {
    const unsigned classes = unicode_tables::kClasses[byte];  // ASCII is the first block
    if (kScope == Scope::kBetweenSplits && (classes & kNumber) != 0) return {kEnd, 0};
    return {classes, 1};
  }
  const Utf8Char c = decode_utf8(text_, pos);
  const unsigned classes = char_class(c.code_point);
  if (kScope == Scope::kBetweenSplits && ((classes & kNumber) != 0 || is_cjk(c.code_point))) return {kEnd, 0};
  return {classes, static_cast<unsigned>(c.n_bytes)};
}

// Past all characters from `pos` on that have one of the classes.
template <PieceSplitter::Scope kScope>
size_t PieceSplitter::skip(size_t pos, unsigned classes) const {
  while (true) {
    const Seen seen = look<kScope>(pos);
    if ((seen.char_class & classes) == 0) return pos;
    pos += seen.n_bytes;
  }
}

// \s*[\r\n]+ | \s+(?!\S) | \s+ at a white-space character.
template <PieceSplitter::Scope kScope>
size_t PieceSplitter::space_end(size_t pos) const {
  size_t after_newline = 0;
  size_t last = pos;  // start of the run's last character
  size_t end = pos;
  Seen seen = look<kScope>(end);
  while ((seen.char_class & kSpace) != 0) {
    last = end;
    end += seen.n_bytes;
    if ((seen.char_class & kNewline) != 0) after_newline = end;
    seen = look<kScope>(end);
  }
  if (after_newline != 0) return after_newline;
  if (seen.char_class == kEnd || last == pos) return end;
  return last;  // the last one goes with what follows
}

size_t PieceSplitter::numbers_end(size_t pos) const {
  for (int n = 0; n < 3; ++n) {
    const Seen seen = look<Scope::kText>(pos);
    if ((seen.char_class & kNumber) == 0) break;
    pos += seen.n_bytes;
  }
  return pos;
}

size_t PieceSplitter::cjk_end(size_t pos) const {
  while (pos < text_.size()) {
    const Utf8Char c = decode_utf8(text_, pos);
    if (!is_cjk(c.code_point)) break;
    pos += static_cast<size_t>(c.n_bytes);
  }
  return pos;
}

// The alternatives of kDeepSeekWords in order; `pos` itself when none matches there.
template <PieceSplitter::Scope kScope>
size_t PieceSplitter::deepseek_match(size_t pos) const {
  const Seen first = look<kScope>(pos);
  const size_t after = pos + first.n_bytes;
  const Seen second = look<kScope>(after);
  constexpr unsigned kInWord = kLetter | kMark;
  constexpr unsigned kSigns = kPunctuation | kSymbol;

  if ((first.char_class & kSigns) != 0) {
    const auto is_ascii_letter = [this](size_t i) {
      const char lower = i < limit_ ? static_cast<char>(text_[i] | 0x20) : '\0';
      return lower >= 'a' && lower <= 'z';
    };
    if (static_cast<uint8_t>(text_[pos]) < 0x80 && is_ascii_letter(after)) {
      size_t end = after + 1;
      while (is_ascii_letter(end)) ++end;
      return end;
    }
    return skip<kScope>(skip<kScope>(after, kSigns), kNewline);
  }
  if ((first.char_class & (kLetter | kNewline)) == 0 && (second.char_class & kInWord) != 0) {
    return skip<kScope>(after + second.n_bytes, kInWord);
  }
  if ((first.char_class & kInWord) != 0) return skip<kScope>(after, kInWord);
  if (text_[pos] == ' ' && (second.char_class & kSigns) != 0) {
    return skip<kScope>(skip<kScope>(after + second.n_bytes, kSigns), kNewline);
  }
  if ((first.char_class & kSpace) != 0) return space_end<kScope>(pos);
  return pos;
}

// A match, or the characters before the next one, which nothing matches and which stay together.
template <PieceSplitter::Scope kScope>
size_t PieceSplitter::deepseek_piece(size_t pos) const {
  size_t end = deepseek_match<kScope>(pos);
  if (end != pos) return end;
  Seen seen = look<kScope>(end);
  do {
    end += seen.n_bytes;
    seen = look<kScope>(end);
  } while (seen.char_class != kEnd && deepseek_match<kScope>(end) == end);
  return end;
}

size_t PieceSplitter::deepseek_end() {
  if (in_cjk_ && pos_ == limit_) {
    in_cjk_ = false;
    limit_ = text_.size();
  }
  if (!in_cjk_) {
    if (look<Scope::kBetweenSplits>(pos_).char_class != kEnd) return deepseek_piece<Scope::kBetweenSplits>(pos_);
    if ((look<Scope::kText>(pos_).char_class & kNumber) != 0) return numbers_end(pos_);
    in_cjk_ = true;
    limit_ = cjk_end(pos_);
  }
  return deepseek_piece<Scope::kCjkRun>(pos_);
}

// (?i:'s|'t|'re|'ve|'m|'ll|'d) at an apostrophe; `pos` when none matches. The long s, U+017F, is an s without case.
size_t PieceSplitter::contraction_end(size_t pos) const {
  const auto lower = [this](size_t i) { return i < text_.size() ? static_cast<char>(text_[i] | 0x20) : '\0'; };
  const char first = lower(pos + 1);
  const char second = lower(pos + 2);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return pos + 2;
  if ((first == 'r' || first == 'v') && second == 'e') return pos + 3;
  if (first == 'l' && second == 'l') return pos + 3;
  if (text_.substr(pos + 1).starts_with("\u017F")) return pos + 3;
  return pos;
}

// The alternatives of kGlmWords in order; one always matches.
size_t PieceSplitter::glm_end() const {
  constexpr Scope kScope = Scope::kText;
  const Seen first = look<kScope>(pos_);
  const size_t after = pos_ + first.n_bytes;
  if (text_[pos_] == '\'') {
    const size_t end = contraction_end(pos_);
    if (end != pos_) return end;
  }
  if ((first.char_class & kLetter) != 0) return skip<kScope>(after, kLetter);
  if ((first.char_class & kNumber) != 0) return numbers_end(pos_);

  const Seen second = look<kScope>(after);
  if ((first.char_class & kNewline) == 0 && (second.char_class & kLetter) != 0) {
    return skip<kScope>(after + second.n_bytes, kLetter);
  }
  const auto is_sign = [](Seen seen) { return (seen.char_class & (kSpace | kLetter | kNumber | kEnd)) == 0; };
  if (is_sign(first) || (text_[pos_] == ' ' && is_sign(second))) {
    size_t end = after;
    for (Seen seen = second; is_sign(seen); seen = look<kScope>(end)) end += seen.n_bytes;
    return skip<kScope>(end, kNewline);
  }
  return space_end<kScope>(pos_);
}

}  // namespace levin::text
