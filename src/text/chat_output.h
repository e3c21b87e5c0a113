// What a model writes, taken apart while it arrives: reasoning, answer, tool calls with their arguments as JSON.
//
//   ChatOutputParser parser(format, tokenizer, request.thinking);
//   for (TokenId id : generated) for (const OutputEvent& event : parser.push(id)) send(event);
//   for (const OutputEvent& event : parser.finish()) send(event);
//
// Structure   the mark inside tags is looked for as a token; also spelled out, with its bars right, ASCII or one
// missing,
//             for models slip. A block that opened with the token closes with the token, so values may quote tags.
// Streaming   held back are only what may be the start of a tag, the two line breaks before one, and a value that is no
//             string until it is complete (it is checked to be JSON)
// Damage      markup never shows as text. What cannot be read is left out and counted; a call that does not end, or is
//             cut off, is reported broken and its arguments are left as they are, never completed
// Source      the parser of the reference encoder, which is strict where this one is lenient
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat.h"
#include "text/stream_decoder.h"

namespace levin::text {

struct OutputEvent {
  enum class Kind {
    kReasoning,   // more of it
    kContent,     // more of the answer
    kCallBegin,   // text: the function's name
    kArguments,   // more of the arguments' JSON text
    kCallEnd,     // the arguments are complete
    kCallBroken,  // the call will not be completed
  };
  Kind kind = Kind::kContent;
  std::string text = {};
  int call = -1;  // which call, counted from 0

  bool operator==(const OutputEvent&) const = default;
};

class ChatOutputParser {
 public:
  // `tokenizer` must outlive the parser. `in_reasoning`: the prompt ended inside the reasoning.
  ChatOutputParser(const ChatFormat& format, const Tokenizer& tokenizer, bool in_reasoning);

  std::vector<OutputEvent> push(TokenId id);
  std::vector<OutputEvent> finish();  // no more tokens will come

  int n_complete_calls() const { return n_complete_calls_; }
  int n_faults() const { return n_faults_; }  // places that could not be read

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
  void end_call(bool complete);
  void leave_block();
  void emit(OutputEvent::Kind kind, std::string_view text);
  void emit_text(size_t n_bytes);
  void fault() { ++n_faults_; }

  ChatTokens tokens_;
  StreamDecoder decoder_;
  std::vector<Tag> tags_;
  std::string buffer_;  // not yet looked at; valid UTF-8 but for kMark, which stands for the token
  std::vector<OutputEvent> events_;
  State state_ = State::kText;
  bool in_reasoning_;
  bool at_end_ = false;
  bool dropping_ = false;    // in text between tags that does not belong there
  bool skip_space_ = false;  // white space after a block is not part of the answer
  bool in_wrapper_ = false;  // the invokes stand in a block
  int call_ = -1;            // number of the latest call
  bool call_open_ = false;
  std::set<std::string> parameters_;  // of this call
  ValueKind value_kind_ = ValueKind::kString;
  int value_form_ = 0;
  std::string json_value_;  // collected until its end
  bool value_dropped_ = false;
  int n_complete_calls_ = 0;
  int n_faults_ = 0;
};

}  // namespace levin::text
