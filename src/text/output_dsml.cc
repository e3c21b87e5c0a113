// DeepSeek's calls: tags with a mark inside that is a token, attributes, and a block around the calls.
#include <fmt/core.h>

#include <array>
#include <set>
#include <utility>

#include "io/json.h"
#include "text/output_reader.h"

namespace levin::text {
namespace {

constexpr char kDsmlMark = '\xFF';  // no byte of UTF-8
constexpr std::string_view kMarkText = "｜DSML｜";
// How the mark is found written; the first is the token.
constexpr std::array<std::string_view, 6> kForms = {"\xFF", kMarkText, "|DSML|", "DSML｜", "｜DSML|", "|DSML｜"};
constexpr size_t kMaxTagBytes = 1 << 16;

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

size_t n_leading_spaces(std::string_view text) {
  size_t n = 0;
  while (n < text.size() && is_space(text[n])) ++n;
  return n;
}

// The line breaks before a block, at most two, do not belong to the text.
size_t without_line_breaks(std::string_view text) {
  size_t n = text.size();
  for (int i = 0; i < 2 && n > 0 && text[n - 1] == '\n'; ++i) --n;
  return n;
}

std::string with_marks_spelled(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == kDsmlMark) {
      result += kMarkText;
    } else {
      result.push_back(c);
    }
  }
  return result;
}

class DsmlReader : public OutputReader {
 public:
  DsmlReader(const OutputMarks& marks, const Tokenizer& tokenizer, bool in_reasoning);
  void push(TokenId id) override;
  void finish() override;

 private:
  enum class State { kText, kBlock, kInvokeTag, kInvokeBody, kParameterTag, kValue, kDamagedTag };
  enum class TagName { kBlock, kInvoke, kParameter };
  enum class Match { kNo, kMore, kYes };
  struct Tag {
    TagName name;
    bool closing;
    int form;  // how the mark was written; 0: as a token
    std::string text;
  };
  enum class ValueKind { kString, kJson, kUnknown };

  void run();
  bool step();  // false: needs more input
  bool step_text();
  bool step_damaged_tag();
  bool step_block();
  bool step_invoke_tag();
  bool step_invoke_body();
  bool step_parameter_tag();
  bool step_value();

  Match match_tag(std::string_view text, const Tag*& tag) const;
  bool skip_to_tag(const Tag*& tag);
  void enter_tag_from_text(const Tag& tag);
  void begin_value(const std::string& name, ValueKind kind);
  void value_text(std::string_view text);
  void end_value();
  void finish_call(bool complete);
  void leave_block();
  void emit_first(size_t n_bytes);

  const TokenId mark_;
  std::vector<Tag> tags_;
  std::string buffer_;  // not yet looked at; valid UTF-8 but for kDsmlMark, which stands for the token
  State state_ = State::kText;
  bool at_end_ = false;
  bool dropping_ = false;             // in text between tags that does not belong there
  bool skip_space_ = false;           // white space after a block is not part of the answer
  bool in_wrapper_ = false;           // the invokes stand in a block
  std::set<std::string> parameters_;  // of this call
  ValueKind value_kind_ = ValueKind::kString;
  int value_form_ = 0;
  std::string json_value_;  // collected until its end
  bool value_dropped_ = false;
};

DsmlReader::DsmlReader(const OutputMarks& marks, const Tokenizer& tokenizer, bool in_reasoning)
    : OutputReader(marks, tokenizer, in_reasoning), mark_(std::get<DsmlCalls>(marks.calls).mark) {
  const DsmlTags& tags = std::get<DsmlCalls>(marks.calls).tags;
  for (int form = 0; form < static_cast<int>(kForms.size()); ++form) {
    const std::string_view mark = kForms[static_cast<size_t>(form)];
    const auto add = [&](TagName name, bool closing, std::string_view word, std::string_view end) {
      tags_.push_back({name, closing, form, fmt::format("{}{}{}{}", closing ? "</" : "<", mark, word, end)});
    };
    add(TagName::kBlock, false, tags.block, ">");
    add(TagName::kBlock, true, tags.block, ">");
    add(TagName::kInvoke, false, tags.invoke, "");  // its name follows
    add(TagName::kInvoke, true, tags.invoke, ">");
    add(TagName::kParameter, false, tags.parameter, "");
    add(TagName::kParameter, true, tags.parameter, ">");
  }
}

void DsmlReader::push(TokenId id) {
  if (id == marks_.think_begin || id == marks_.think_end) {
    buffer_ += decoder_.finish();
    if (state_ == State::kText) {
      at_end_ = true;  // nothing that stands before it can become a tag
      run();
      at_end_ = false;
      in_reasoning_ = id == marks_.think_begin;
    } else if (state_ == State::kValue) {
      buffer_ += id == marks_.think_begin ? "<think>" : "</think>";
    }
  } else if (id == mark_) {
    buffer_ += decoder_.finish();
    buffer_.push_back(kDsmlMark);
  } else if (!is_silent(id)) {
    buffer_ += decoder_.push(id);
  }
  run();
}

void DsmlReader::finish() {
  buffer_ += decoder_.finish();
  at_end_ = true;
  run();
  if (state_ != State::kText) {
    fault();
    leave_block();
  }
  buffer_.clear();
}

void DsmlReader::run() {
  while (!buffer_.empty() && step()) {
  }
}

bool DsmlReader::step() {
  switch (state_) {
    case State::kText:
      return step_text();
    case State::kDamagedTag:
      return step_damaged_tag();
    case State::kBlock:
      return step_block();
    case State::kInvokeTag:
      return step_invoke_tag();
    case State::kInvokeBody:
      return step_invoke_body();
    case State::kParameterTag:
      return step_parameter_tag();
    case State::kValue:
      return step_value();
  }
  return false;
}

// Hands out the first bytes of the buffer as answer or reasoning.
void DsmlReader::emit_first(size_t n_bytes) {
  std::string_view text = std::string_view(buffer_).substr(0, n_bytes);
  if (skip_space_) {
    text.remove_prefix(n_leading_spaces(text));
    skip_space_ = text.empty();
  }
  emit_text(text);
  buffer_.erase(0, n_bytes);
}

// Whether `text`, which begins with '<', begins with a tag. Inside reasoning only the token makes one: thoughts may
// speak of tags.
DsmlReader::Match DsmlReader::match_tag(std::string_view text, const Tag*& tag) const {
  Match best = Match::kNo;
  for (const Tag& candidate : tags_) {
    if (in_reasoning_ && candidate.form != 0) continue;
    if (text.starts_with(candidate.text)) {
      tag = &candidate;
      return Match::kYes;
    }
    if (std::string_view(candidate.text).starts_with(text)) best = Match::kMore;
  }
  return best == Match::kMore && at_end_ ? Match::kNo : best;
}

bool DsmlReader::step_text() {
  const size_t at = buffer_.find_first_of("<\xFF");
  if (at == std::string::npos) {
    emit_first(at_end_ ? buffer_.size() : without_line_breaks(buffer_));
    return false;
  }
  const std::string_view rest = std::string_view(buffer_).substr(at);
  const size_t before = without_line_breaks(std::string_view(buffer_).substr(0, at));
  const Tag* tag = nullptr;
  switch (rest[0] == '<' ? match_tag(rest, tag) : Match::kNo) {
    case Match::kMore:
      emit_first(before);
      return false;
    case Match::kYes:
      emit_first(before);
      buffer_.erase(0, at - before + tag->text.size());
      enter_tag_from_text(*tag);
      return true;
    case Match::kNo:
      break;
  }
  const bool has_mark = rest[0] == kDsmlMark || rest.starts_with("<\xFF") || rest.starts_with("</\xFF");
  if (!has_mark) {
    emit_first(at + 1);
    return true;
  }
  emit_first(before);
  buffer_.erase(0, buffer_.find(kDsmlMark) + 1);
  fault();
  state_ = State::kDamagedTag;
  return true;
}

// Drops what is left of a tag that is none of ours.
bool DsmlReader::step_damaged_tag() {
  const size_t end = buffer_.find_first_of(">\n");
  buffer_.erase(0, end == std::string::npos ? end : end + (buffer_[end] == '>' ? 1 : 0));
  if (end == std::string::npos && !at_end_) return false;
  state_ = State::kText;
  return true;
}

void DsmlReader::enter_tag_from_text(const Tag& tag) {
  if (tag.closing || tag.name == TagName::kParameter) {
    fault();
    state_ = tag.closing ? State::kText : State::kDamagedTag;
    return;
  }
  in_reasoning_ = false;
  in_wrapper_ = tag.name == TagName::kBlock;
  if (!in_wrapper_) fault();
  state_ = in_wrapper_ ? State::kBlock : State::kInvokeTag;
}

// Inside a block, between tags: drops anything up to the next tag and takes that. False: no whole tag yet.
bool DsmlReader::skip_to_tag(const Tag*& tag) {
  while (true) {
    const size_t n_space = n_leading_spaces(buffer_);
    const size_t at = std::min(buffer_.find('<', n_space), buffer_.size());
    if (at > n_space && !dropping_) fault();
    dropping_ = dropping_ || at > n_space;
    buffer_.erase(0, at);
    if (buffer_.empty()) return false;
    switch (match_tag(buffer_, tag)) {
      case Match::kMore:
        return false;
      case Match::kYes:
        buffer_.erase(0, tag->text.size());
        return true;
      case Match::kNo:
        buffer_.erase(0, 1);
        fault();
    }
  }
}

bool DsmlReader::step_block() {
  if (!in_wrapper_) {
    // After an invoke without a block around it: another one, or the answer continues.
    buffer_.erase(0, n_leading_spaces(buffer_));
    if (buffer_.empty()) return false;
    const Tag* tag = nullptr;
    const Match match = buffer_[0] == '<' ? match_tag(buffer_, tag) : Match::kNo;
    if (match == Match::kMore) return false;
    if (match == Match::kNo) {
      leave_block();
      return true;
    }
  }
  const Tag* tag = nullptr;
  if (!skip_to_tag(tag)) return false;
  if (tag->name == TagName::kInvoke && !tag->closing) {
    state_ = State::kInvokeTag;
  } else if (tag->name == TagName::kBlock && tag->closing) {
    leave_block();
  } else {
    fault();
  }
  return true;
}

// name="f"> after the word invoke.
bool DsmlReader::step_invoke_tag() {
  constexpr std::string_view kName = "name=\"";
  const size_t start = n_leading_spaces(buffer_);
  const std::string_view rest = std::string_view(buffer_).substr(start);
  const size_t end = rest.find("\">");
  if (end == std::string_view::npos && rest.size() < kMaxTagBytes && rest.find(kDsmlMark) == std::string_view::npos) {
    return false;
  }
  if (end == std::string_view::npos || !rest.starts_with(kName) || end < kName.size() ||
      rest.substr(0, end).find(kDsmlMark) != std::string_view::npos) {
    fault();
    state_ = in_wrapper_ ? State::kBlock : State::kDamagedTag;
    return true;
  }
  parameters_.clear();
  begin_call(rest.substr(kName.size(), end - kName.size()));
  buffer_.erase(0, start + end + 2);
  state_ = State::kInvokeBody;
  return true;
}

bool DsmlReader::step_invoke_body() {
  const Tag* tag = nullptr;
  if (!skip_to_tag(tag)) return false;
  if (tag->name == TagName::kParameter && !tag->closing) {
    value_form_ = tag->form;
    state_ = State::kParameterTag;
  } else if (tag->name == TagName::kInvoke && tag->closing) {
    finish_call(true);
    state_ = State::kBlock;
  } else if (tag->name == TagName::kInvoke) {
    fault();
    finish_call(false);
    state_ = State::kInvokeTag;
  } else if (tag->name == TagName::kBlock && tag->closing) {
    fault();
    leave_block();
  } else {
    fault();
  }
  return true;
}

// name="k" string="true|false"> after the word parameter.
bool DsmlReader::step_parameter_tag() {
  constexpr std::string_view kName = "name=\"";
  const size_t start = n_leading_spaces(buffer_);
  const std::string_view rest = std::string_view(buffer_).substr(start);
  const size_t end = rest.find("\">");
  if (end == std::string_view::npos && rest.size() < kMaxTagBytes) return false;
  if (end == std::string_view::npos || !rest.starts_with(kName) || end < kName.size()) {
    fault();
    finish_call(false);
    state_ = in_wrapper_ ? State::kBlock : State::kDamagedTag;
    return true;
  }
  std::string_view name = rest.substr(kName.size(), end - kName.size());
  ValueKind kind = ValueKind::kUnknown;
  for (const auto& [attribute, meaning] : {std::pair(std::string_view("\" string=\"true"), ValueKind::kString),
                                           std::pair(std::string_view("\" string=\"false"), ValueKind::kJson)}) {
    if (!name.ends_with(attribute)) continue;
    name.remove_suffix(attribute.size());
    kind = meaning;
    break;
  }
  if (kind == ValueKind::kUnknown) fault();
  const std::string key = with_marks_spelled(name);
  buffer_.erase(0, start + end + 2);
  begin_value(key, kind);
  return true;
}

void DsmlReader::begin_value(const std::string& name, ValueKind kind) {
  value_kind_ = kind;
  json_value_.clear();
  state_ = State::kValue;
  const bool first = parameters_.empty();
  value_dropped_ = !parameters_.insert(name).second;  // a second value for a name: the first stands
  if (value_dropped_) {
    fault();
    return;
  }
  emit(OutputEvent::Kind::kArguments, fmt::format("{}{}: ", first ? "{" : ", ", json_string(name)));
  if (kind == ValueKind::kString) emit(OutputEvent::Kind::kArguments, "\"");
}

bool DsmlReader::step_value() {
  size_t from = 0;
  while (true) {
    const size_t at = buffer_.find('<', from);
    const std::string_view rest = std::string_view(buffer_).substr(std::min(at, buffer_.size()));
    bool more = false;
    for (const Tag& tag : tags_) {
      if (tag.name != TagName::kParameter || !tag.closing || rest.empty()) continue;
      if (tag.form != 0 && tag.form != value_form_) continue;
      if (rest.starts_with(tag.text)) {
        value_text(std::string_view(buffer_).substr(0, at));
        buffer_.erase(0, at + tag.text.size());
        end_value();
        state_ = State::kInvokeBody;
        return true;
      }
      more = more || std::string_view(tag.text).starts_with(rest);
    }
    if (rest.empty() || more) {
      value_text(std::string_view(buffer_).substr(0, buffer_.size() - rest.size()));
      buffer_.erase(0, buffer_.size() - rest.size());
      return false;
    }
    from = at + 1;
  }
}

void DsmlReader::value_text(std::string_view text) {
  if (value_dropped_ || text.empty()) return;
  const std::string spelled = with_marks_spelled(text);
  if (value_kind_ != ValueKind::kString) {
    json_value_ += spelled;
    return;
  }
  emit(OutputEvent::Kind::kArguments, json_escaped(spelled));
}

void DsmlReader::end_value() {
  if (value_dropped_) return;
  if (value_kind_ == ValueKind::kString) {
    emit(OutputEvent::Kind::kArguments, "\"");
    return;
  }
  const bool is_json = io::parse_json(json_value_, "value", {.duplicates = io::DuplicateKeys::kLastWins}).ok();
  if (!is_json && value_kind_ == ValueKind::kJson) fault();
  emit(OutputEvent::Kind::kArguments, is_json ? json_value_ : json_string(json_value_));
}

void DsmlReader::finish_call(bool complete) {
  if (call_open_ && complete) emit(OutputEvent::Kind::kArguments, parameters_.empty() ? "{}" : "}");
  end_call(complete);
}

void DsmlReader::leave_block() {
  finish_call(false);
  in_wrapper_ = false;
  skip_space_ = true;
  state_ = State::kText;
}

}  // namespace

std::unique_ptr<OutputReader> make_dsml_reader(const OutputMarks& marks, const Tokenizer& tokenizer,
                                               bool in_reasoning) {
  return std::make_unique<DsmlReader>(marks, tokenizer, in_reasoning);
}

}  // namespace levin::text
