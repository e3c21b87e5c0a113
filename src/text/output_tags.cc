// GLM's calls: tags that are tokens themselves, and values that do not say whether they are strings.
#include <set>
#include <utility>

#include "io/json.h"
#include "text/output_reader.h"

namespace levin::text {
namespace {

constexpr std::string_view kTagSpace = " \t\r\n";

std::string_view strip_tag_space(std::string_view text) {
  const size_t first = text.find_first_not_of(kTagSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kTagSpace) - first + 1);
}

// Whether a schema allows strings and nothing else.
bool only_strings(const io::JsonValue* schema) {
  const io::JsonObject* object = schema != nullptr ? schema->as_object() : nullptr;
  const io::JsonValue* type = object != nullptr ? object->find("type") : nullptr;
  return type != nullptr && *type == io::JsonValue("string");
}

const io::JsonObject* member_object(const io::JsonObject* object, std::string_view key) {
  const io::JsonValue* member = object != nullptr ? object->find(key) : nullptr;
  return member != nullptr ? member->as_object() : nullptr;
}

class TagReader : public OutputReader {
 public:
  TagReader(const OutputMarks& marks, const Tokenizer& tokenizer, bool in_reasoning,
            std::span<const io::JsonValue> tools)
      : OutputReader(marks, tokenizer, in_reasoning), t_(std::get<TagCalls>(marks.calls)) {
    for (const io::JsonValue& tool : tools) add_string_parameters(tool);
  }

  void push(TokenId id) override {
    if (state_ == State::kValue) {
      push_in_value(id);
    } else if (is_call_tag(id)) {
      add_text(decoder_.finish());
      push_tag(id);
    } else if (id == marks_.think_begin || id == marks_.think_end) {
      add_text(decoder_.finish());
      push_think(id == marks_.think_begin);
    } else if (!is_silent(id)) {
      add_text(decoder_.push(id));
    }
  }

  void finish() override {
    if (state_ == State::kValue) {
      value_text(decoder_.finish());
    } else {
      add_text(decoder_.finish());
    }
    if (state_ == State::kText) {
      emit_text(text_);
    } else {
      fault();
      end_call(false);
    }
    text_.clear();
    state_ = State::kText;
  }

 private:
  // kBetween: inside a call, before a key or the end; kAfterKey: before a value.
  enum class State { kText, kName, kBetween, kKey, kAfterKey, kValue };

  bool is_call_tag(TokenId id) const {
    return id == t_.call_begin || id == t_.call_end || id == t_.key_begin || id == t_.key_end || id == t_.value_begin ||
           id == t_.value_end;
  }

  void add_string_parameters(const io::JsonValue& tool) {
    const io::JsonObject* function = tool.as_object();
    const io::JsonValue* name = function != nullptr ? function->find("name") : nullptr;
    const io::JsonObject* properties = member_object(member_object(function, "parameters"), "properties");
    if (name == nullptr || name->as_string() == nullptr || properties == nullptr) return;
    for (const io::JsonMember& property : properties->members()) {
      if (only_strings(&property.value)) string_parameters_.emplace(*name->as_string(), property.key);
    }
  }

  // Text outside values. In the answer the white space at its end waits for what comes next: before a call it is
  // dropped. It is not looked at again, since there may be any amount of it.
  void add_text(std::string_view text) {
    if (state_ == State::kBetween || state_ == State::kAfterKey) {
      if (!strip_tag_space(text).empty()) fault();
      return;
    }
    const size_t n_shown = state_ == State::kText ? text.find_last_not_of(kTagSpace) + 1 : 0;
    if (n_shown > 0) {
      emit_text(std::exchange(text_, {}));
      emit_text(text.substr(0, n_shown));
    }
    text_ += text.substr(n_shown);
  }

  void push_think(bool begins) {
    if (state_ != State::kText) return fault();
    emit_text(std::exchange(text_, {}));
    in_reasoning_ = begins;
  }

  void push_tag(TokenId id) {
    if (id == t_.call_begin) {
      if (state_ != State::kText) fault();
      enter_call();
    } else if (state_ == State::kText) {
      fault();  // a tag without a call
    } else if (id == t_.call_end) {
      leave_call();
    } else if (id == t_.key_begin && (state_ == State::kName || state_ == State::kBetween)) {
      if (state_ == State::kName) name_is_complete();
      text_.clear();
      state_ = State::kKey;
    } else if (id == t_.key_end && state_ == State::kKey) {
      key_ = std::exchange(text_, {});
      state_ = State::kAfterKey;
    } else if (id == t_.value_begin && state_ == State::kAfterKey) {
      begin_value();
    } else {
      fault();
    }
  }

  void enter_call() {
    end_call(false);
    text_.clear();
    in_reasoning_ = false;
    n_arguments_ = 0;
    seen_.clear();
    state_ = State::kName;
  }

  void name_is_complete() {
    name_ = std::string(strip_tag_space(text_));
    text_.clear();
    begin_call(name_);
  }

  void leave_call() {
    if (state_ == State::kName) name_is_complete();
    const bool complete = state_ == State::kName || state_ == State::kBetween;
    if (!complete || name_.empty()) fault();
    if (complete && !name_.empty()) emit(OutputEvent::Kind::kArguments, n_arguments_ == 0 ? "{}" : "}");
    end_call(complete && !name_.empty());
    text_.clear();
    state_ = State::kText;
  }

  void begin_value() {
    text_.clear();
    state_ = State::kValue;
    dropped_ = !seen_.insert(key_).second;  // a second value for a key: the first stands
    if (dropped_) return fault();
    streams_ = string_parameters_.contains({name_, key_});
    emit(OutputEvent::Kind::kArguments, (n_arguments_++ == 0 ? "{" : ", ") + json_string(key_) + ": ");
    if (streams_) emit(OutputEvent::Kind::kArguments, "\"");
  }

  // Only its end ends a value, so it may quote every other tag.
  void push_in_value(TokenId id) {
    if (id == t_.value_end) {
      value_text(decoder_.finish());
      return end_value();
    }
    if (is_silent(id)) return;
    value_text(decoder_.push(id));
  }

  void value_text(std::string_view text) {
    if (dropped_ || text.empty()) return;
    if (streams_) {
      emit(OutputEvent::Kind::kArguments, json_escaped(text));
    } else {
      text_ += text;
    }
  }

  // A string stands as it is, without quotes; so what reads as a JSON string is a string with quotes in it.
  void end_value() {
    if (!dropped_ && streams_) emit(OutputEvent::Kind::kArguments, "\"");
    if (!dropped_ && !streams_) {
      const auto parsed = io::parse_json(text_, "value", {.duplicates = io::DuplicateKeys::kLastWins});
      const bool is_json = parsed.ok() && parsed->as_string() == nullptr;
      emit(OutputEvent::Kind::kArguments, is_json ? std::string(strip_tag_space(text_)) : json_string(text_));
    }
    text_.clear();
    state_ = State::kBetween;
  }

  const TagCalls t_;
  std::set<std::pair<std::string, std::string>> string_parameters_;  // function, parameter
  State state_ = State::kText;
  std::string text_;  // of the name, key or value at hand; in the answer white space that waits
  std::string name_, key_;
  std::set<std::string> seen_;  // keys of this call
  int n_arguments_ = 0;
  bool streams_ = false;  // the value is a string for certain
  bool dropped_ = false;
};

}  // namespace

std::unique_ptr<OutputReader> make_tag_reader(const OutputMarks& marks, const Tokenizer& tokenizer, bool in_reasoning,
                                              std::span<const io::JsonValue> tools) {
  return std::make_unique<TagReader>(marks, tokenizer, in_reasoning, tools);
}

}  // namespace levin::text
