#include "text/chat_output.h"

#include <algorithm>

#include "text/output_reader.h"

namespace levin::text {
namespace {

// One case for each way of writing calls; the compiler asks for it.
struct MakeReader {
  const OutputMarks& marks;
  const Tokenizer& tokenizer;
  bool in_reasoning;
  std::span<const io::JsonValue> tools;

  std::unique_ptr<OutputReader> operator()(const DsmlCalls&) const {
    return make_dsml_reader(marks, tokenizer, in_reasoning);
  }
  std::unique_ptr<OutputReader> operator()(const TagCalls&) const {
    return make_tag_reader(marks, tokenizer, in_reasoning, tools);
  }
};

std::unique_ptr<OutputReader> make_reader(const OutputMarks& marks, const Tokenizer& tokenizer, bool in_reasoning,
                                          std::span<const io::JsonValue> tools) {
  return std::visit(MakeReader{marks, tokenizer, in_reasoning, tools}, marks.calls);
}

}  // namespace

ChatOutputParser::ChatOutputParser(const ChatFormat& format, const Tokenizer& tokenizer, bool in_reasoning,
                                   std::span<const io::JsonValue> tools)
    : reader_(make_reader(format.output_marks(), tokenizer, in_reasoning, tools)) {}

ChatOutputParser::~ChatOutputParser() = default;

std::vector<OutputEvent> ChatOutputParser::push(TokenId id) {
  reader_->push(id);
  return reader_->take_events();
}

std::vector<OutputEvent> ChatOutputParser::finish() {
  reader_->finish();
  return reader_->take_events();
}

int ChatOutputParser::n_complete_calls() const { return reader_->n_complete_calls(); }
int ChatOutputParser::n_faults() const { return reader_->n_faults(); }

// ---- what the readers share ----------------------------------------------------------------------------------------

bool OutputReader::is_silent(TokenId id) const {
  return std::find(marks_.silent.begin(), marks_.silent.end(), id) != marks_.silent.end();
}

void OutputReader::emit(OutputEvent::Kind kind, std::string_view text) {
  const bool of_call = kind != OutputEvent::Kind::kReasoning && kind != OutputEvent::Kind::kContent;
  const int call = of_call ? call_ : -1;
  if (!events_.empty() && events_.back().kind == kind && events_.back().call == call) {
    events_.back().text += text;  // only texts come twice in a row
  } else {
    events_.push_back({kind, std::string(text), call});
  }
}

void OutputReader::emit_text(std::string_view text) {
  if (!text.empty()) emit(in_reasoning_ ? OutputEvent::Kind::kReasoning : OutputEvent::Kind::kContent, text);
}

void OutputReader::begin_call(std::string_view name) {
  ++call_;
  call_open_ = true;
  emit(OutputEvent::Kind::kCallBegin, name);
}

void OutputReader::end_call(bool complete) {
  if (!call_open_) return;
  call_open_ = false;
  emit(complete ? OutputEvent::Kind::kCallEnd : OutputEvent::Kind::kCallBroken, "");
  if (complete) ++n_complete_calls_;
}

std::string json_string(std::string_view text) { return io::dump_json(io::JsonValue(text)); }

std::string json_escaped(std::string_view text) {
  const std::string quoted = json_string(text);
  return quoted.substr(1, quoted.size() - 2);
}

}  // namespace levin::text
