// The text of one answer while its tokens arrive: taken apart by the chat format or plain, and cut at a stop string.
//
// Stop strings (stop_strings.h) are looked for in the answer's own text, never in its reasoning or in the arguments of a
// call. The match itself is left out unless asked for.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_output.h"
#include "text/stop_strings.h"
#include "text/stream_decoder.h"

namespace levin::text {

class AnswerText {
 public:
  struct Options {
    std::vector<std::string> stop;
    bool include_stop = false;
    bool skip_special = true;  // plain text only; a chat format never shows its marks
  };
  // Tokenizer and format must outlive it.
  AnswerText(const Tokenizer& tokenizer, const Options& options);  // plain
  // tools: the function objects that the prompt described, see ChatOutputParser.
  AnswerText(const Tokenizer& tokenizer, const ChatFormat& format, bool in_reasoning,
             std::span<const io::JsonValue> tools, const Options& options);

  void push(TokenId token, std::vector<OutputEvent>& out);
  void finish(std::vector<OutputEvent>& out);  // no more tokens will come

  bool looks_for_stops() const { return looks_for_stops_; }
  const std::string* matched_stop() const { return stop_.which(); }  // nullptr: none so far
  int64_t n_reasoning_tokens() const { return n_reasoning_tokens_; }
  int n_faults() const { return parser_ ? parser_->n_faults() : 0; }  // of the markup

 private:
  void take(std::vector<OutputEvent> events, std::vector<OutputEvent>& out);
  void add_content(std::string text, std::vector<OutputEvent>& out);
  void hand_out_held(std::vector<OutputEvent>& out);

  std::optional<ChatOutputParser> parser_;
  StreamDecoder decoder_;
  StopStrings stop_;
  bool looks_for_stops_;
  bool include_stop_;
  bool in_reasoning_;
  int64_t n_reasoning_tokens_ = 0;
};

}  // namespace levin::text
