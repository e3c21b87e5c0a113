#include "text/chat_output.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "io/json.h"

namespace levin::text {
namespace {

constexpr char kMark = '\xFF';  // no byte of UTF-8
constexpr std::string_view kMarkText = "｜DSML｜";
// How the mark is found written; the first is the token.
constexpr std::array<std::string_view, 6> kForms = {"\xFF", kMarkText, "|DSML|", "DSML｜", "｜DSML|", "|DSML｜"};
constexpr size_t kMaxTagBytes = 1 << 16;

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

size_t leading_space(std::string_view text) {
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

std::string json_string(std::string_view text) { return io::dump_json(io::JsonValue(text)); }

std::string with_marks_spelled(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == kMark) {
      result += kMarkText;
    } else {
      result.push_back(c);
    }
  }
  return result;
}

}  // namespace

ChatOutputParser::ChatOutputParser(const ChatFormat& format, const Tokenizer& tokenizer, bool in_reasoning)
    : tokens_(format.tokens()), decoder_(tokenizer), in_reasoning_(in_reasoning) {
  for (int form = 0; form < static_cast<int>(kForms.size()); ++form) {
    const std::string_view mark = kForms[static_cast<size_t>(form)];
    const auto add = [&](TagName name, bool closing, std::string_view word) {
      tags_.push_back({name, closing, form, fmt::format("{}{}{}", closing ? "</" : "<", mark, word)});
    };
    add(TagName::kBlock, false, "function_calls>");
    add(TagName::kBlock, true, "function_calls>");
    add(TagName::kInvoke, false, "invoke");
    add(TagName::kInvoke, true, "invoke>");
    add(TagName::kParameter, false, "parameter");
    add(TagName::kParameter, true, "parameter>");
  }
}

std::vector<OutputEvent> ChatOutputParser::push(TokenId id) {
  if (id == tokens_.think_begin || id == tokens_.think_end) {
    buffer_ += decoder_.finish();
    if (state_ == State::kText) {
      at_end_ = true;  // nothing that stands before it can become a tag
      run();
      at_end_ = false;
      in_reasoning_ = id == tokens_.think_begin;
    } else if (state_ == State::kValue) {
      buffer_ += id == tokens_.think_begin ? "<think>" : "</think>";
    }
  } else if (id == tokens_.dsml) {
    buffer_ += decoder_.finish();
    buffer_.push_back(kMark);
  } else if (id != tokens_.bos && id != tokens_.eos && id != tokens_.user && id != tokens_.assistant) {
    buffer_ += decoder_.push(id);
  }
  run();
  return std::exchange(events_, {});
}

std::vector<OutputEvent> ChatOutputParser::finish() {
  buffer_ += decoder_.finish();
  at_end_ = true;
  run();
  if (state_ != State::kText) {
    fault();
    leave_block();
  }
  buffer_.clear();
  return std::exchange(events_, {});
}

void ChatOutputParser::run() {
  while (!buffer_.empty() && step()) {
  }
}

bool ChatOutputParser::step() {
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

void ChatOutputParser::emit(OutputEvent::Kind kind, std::string_view text) {
  const bool of_call = kind != OutputEvent::Kind::kReasoning && kind != OutputEvent::Kind::kContent;
  const int call = of_call ? call_ : -1;
  if (!events_.empty() && events_.back().kind == kind && events_.back().call == call) {
    events_.back().text += text;  // only texts come twice in a row
  } else {
    events_.push_back({kind, std::string(text), call});
  }
}

// Hands out the first bytes of the buffer as answer or reasoning.
void ChatOutputParser::emit_text(size_t n_bytes) {
  std::string_view text = std::string_view(buffer_).substr(0, n_bytes);
  if (skip_space_) {
    text.remove_prefix(leading_space(text));
    skip_space_ = text.empty();
  }
  if (!text.empty()) emit(in_reasoning_ ? OutputEvent::Kind::kReasoning : OutputEvent::Kind::kContent, text);
  buffer_.erase(0, n_bytes);
}

// Whether `text`, which begins with '<', begins with a tag. Inside reasoning only the token makes one: thoughts may
// speak of tags.
ChatOutputParser::Match ChatOutputParser::match_tag(std::string_view text, const Tag*& tag) const {
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

bool ChatOutputParser::step_text() {
  const size_t at = buffer_.find_first_of("<\xFF");
  if (at == std::string::npos) {
    emit_text(at_end_ ? buffer_.size() : without_line_breaks(buffer_));
    return false;
  }
  const std::string_view rest = std::string_view(buffer_).substr(at);
  const size_t before = without_line_breaks(std::string_view(buffer_).substr(0, at));
  const Tag* tag = nullptr;
  switch (rest[0] == '<' ? match_tag(rest, tag) : Match::kNo) {
    case Match::kMore:
      emit_text(before);
      return false;
    case Match::kYes:
      emit_text(before);
      buffer_.erase(0, at - before + tag->text.size());
      enter_tag_from_text(*tag);
      return true;
    case Match::kNo:
      break;
  }
  const bool has_mark = rest[0] == kMark || rest.starts_with("<\xFF") || rest.starts_with("</\xFF");
  if (!has_mark) {
    emit_text(at + 1);
    return true;
  }
  emit_text(before);
  buffer_.erase(0, buffer_.find(kMark) + 1);
  fault();
  state_ = State::kDamagedTag;
  return true;
}

// Drops what is left of a tag that is none of ours.
bool ChatOutputParser::step_damaged_tag() {
  const size_t end = buffer_.find_first_of(">\n");
  buffer_.erase(0, end == std::string::npos ? end : end + (buffer_[end] == '>' ? 1 : 0));
  if (end == std::string::npos && !at_end_) return false;
  state_ = State::kText;
  return true;
}

void ChatOutputParser::enter_tag_from_text(const Tag& tag) {
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
bool ChatOutputParser::skip_to_tag(const Tag*& tag) {
  while (true) {
    const size_t n_space = leading_space(buffer_);
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

bool ChatOutputParser::step_block() {
  if (!in_wrapper_) {
    // After an invoke without a block around it: another one, or the answer goes on.
    buffer_.erase(0, leading_space(buffer_));
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
bool ChatOutputParser::step_invoke_tag() {
  constexpr std::string_view kName = "name=\"";
  const size_t start = leading_space(buffer_);
  const std::string_view rest = std::string_view(buffer_).substr(start);
  const size_t end = rest.find("\">");
  if (end == std::string_view::npos && rest.size() < kMaxTagBytes && rest.find(kMark) == std::string_view::npos) {
    return false;
  }
  if (end == std::string_view::npos || !rest.starts_with(kName) || end < kName.size() ||
      rest.substr(0, end).find(kMark) != std::string_view::npos) {
    fault();
    state_ = in_wrapper_ ? State::kBlock : State::kDamagedTag;
    return true;
  }
  ++call_;
  call_open_ = true;
  parameters_.clear();
  emit(OutputEvent::Kind::kCallBegin, rest.substr(kName.size(), end - kName.size()));
  buffer_.erase(0, start + end + 2);
  state_ = State::kInvokeBody;
  return true;
}

bool ChatOutputParser::step_invoke_body() {
  const Tag* tag = nullptr;
  if (!skip_to_tag(tag)) return false;
  if (tag->name == TagName::kParameter && !tag->closing) {
    value_form_ = tag->form;
    state_ = State::kParameterTag;
  } else if (tag->name == TagName::kInvoke && tag->closing) {
    end_call(true);
    state_ = State::kBlock;
  } else if (tag->name == TagName::kInvoke) {
    fault();
    end_call(false);
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
bool ChatOutputParser::step_parameter_tag() {
  constexpr std::string_view kName = "name=\"";
  const size_t start = leading_space(buffer_);
  const std::string_view rest = std::string_view(buffer_).substr(start);
  const size_t end = rest.find("\">");
  if (end == std::string_view::npos && rest.size() < kMaxTagBytes) return false;
  if (end == std::string_view::npos || !rest.starts_with(kName) || end < kName.size()) {
    fault();
    end_call(false);
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

void ChatOutputParser::begin_value(const std::string& name, ValueKind kind) {
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

bool ChatOutputParser::step_value() {
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

void ChatOutputParser::value_text(std::string_view text) {
  if (value_dropped_ || text.empty()) return;
  const std::string spelled = with_marks_spelled(text);
  if (value_kind_ != ValueKind::kString) {
    json_value_ += spelled;
    return;
  }
  const std::string escaped = json_string(spelled);
  emit(OutputEvent::Kind::kArguments, std::string_view(escaped).substr(1, escaped.size() - 2));
}

void ChatOutputParser::end_value() {
  if (value_dropped_) return;
  if (value_kind_ == ValueKind::kString) {
    emit(OutputEvent::Kind::kArguments, "\"");
    return;
  }
  const bool is_json = io::parse_json(json_value_, "value", {.duplicates = io::DuplicateKeys::kLastWins}).ok();
  if (!is_json && value_kind_ == ValueKind::kJson) fault();
  emit(OutputEvent::Kind::kArguments, is_json ? json_value_ : json_string(json_value_));
}

void ChatOutputParser::end_call(bool complete) {
  if (!call_open_) return;
  call_open_ = false;
  if (!complete) {
    emit(OutputEvent::Kind::kCallBroken, "");
    return;
  }
  emit(OutputEvent::Kind::kArguments, parameters_.empty() ? "{}" : "}");
  emit(OutputEvent::Kind::kCallEnd, "");
  ++n_complete_calls_;
}

void ChatOutputParser::leave_block() {
  end_call(false);
  in_wrapper_ = false;
  skip_space_ = true;
  state_ = State::kText;
}

}  // namespace levin::text
