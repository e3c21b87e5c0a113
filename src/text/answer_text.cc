#include "text/answer_text.h"

#include <utility>

namespace levin::text {

AnswerText::AnswerText(const Tokenizer& tokenizer, const Options& options)
    : decoder_(tokenizer, options.skip_special),
      stop_(options.stop),
      looks_for_stops_(!options.stop.empty()),
      include_stop_(options.include_stop),
      in_reasoning_(false) {}

AnswerText::AnswerText(const Tokenizer& tokenizer, const ChatFormat& format, bool in_reasoning,
                       std::span<const io::JsonValue> tools, const Options& options)
    : parser_(std::in_place, format, tokenizer, in_reasoning, tools),
      decoder_(tokenizer),
      stop_(options.stop),
      looks_for_stops_(!options.stop.empty()),
      include_stop_(options.include_stop),
      in_reasoning_(in_reasoning) {}

void AnswerText::push(TokenId token, std::vector<OutputEvent>& out) {
  if (stop_.found()) return;
  if (parser_) {
    take(parser_->push(token), out);
  } else {
    add_content(decoder_.push(token), out);
  }
  if (in_reasoning_) ++n_reasoning_tokens_;
}

void AnswerText::finish(std::vector<OutputEvent>& out) {
  if (stop_.found()) return;
  if (parser_) {
    take(parser_->finish(), out);
  } else {
    add_content(decoder_.finish(), out);
  }
  hand_out_held(out);
}

void AnswerText::take(std::vector<OutputEvent> events, std::vector<OutputEvent>& out) {
  for (OutputEvent& event : events) {
    if (stop_.found()) return;
    in_reasoning_ = event.kind == OutputEvent::Kind::kReasoning;
    if (event.kind == OutputEvent::Kind::kContent) {
      add_content(std::move(event.text), out);
      continue;
    }
    hand_out_held(out);  // a stop string does not continue after a call
    if (stop_.found()) return;
    if (!in_reasoning_ || !event.text.empty()) out.push_back(std::move(event));
  }
}

void AnswerText::add_content(std::string text, std::vector<OutputEvent>& out) {
  std::string sure = looks_for_stops_ ? stop_.push(text) : std::move(text);
  if (stop_.found() && include_stop_) sure += *stop_.which();
  if (!sure.empty()) out.push_back({.kind = OutputEvent::Kind::kContent, .text = std::move(sure)});
}

void AnswerText::hand_out_held(std::vector<OutputEvent>& out) {
  if (!looks_for_stops_ || stop_.found()) return;
  std::string held = stop_.finish();
  if (stop_.found() && include_stop_) held += *stop_.which();
  if (!held.empty()) out.push_back({.kind = OutputEvent::Kind::kContent, .text = std::move(held)});
}

}  // namespace levin::text
