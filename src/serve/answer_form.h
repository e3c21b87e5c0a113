// The form an answer must have: JSON of a schema, a regular expression, one of some texts, or calls of tools.
//
// read_form() takes it from a request, whatever the dialect calls it:
//
//   response_format          chat and completions: {"type": "text" | "json_object" | "json_schema", "json_schema": {"schema"}}
//   text.format              responses: {"type", "schema"}
//   output_config.format     messages: {"type": "json_schema", "schema"}; also output_format
//   guided_json, guided_regex, guided_choice; structured_outputs: {"json" | "regex" | "choice" | "json_object"}; regex
//
// AnswerForms makes it what the engine obeys (grammar/). Reasoning stays free: the form begins after it. Where tools may
// be called in addition to a form, the answer is one or the other. Calls are written in the model's own way, their arguments in
// the order of the schemas; of these, what the grammar does not know is ignored (strict tools: refused).
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "grammar/matcher.h"
#include "serve/body.h"
#include "serve/fields.h"
#include "text/chat.h"
#include "text/tokenizer.h"

namespace levin::serve {

struct TextForm {
  enum class Kind : uint8_t { kFree, kSchema, kRegex, kChoice };
  Kind kind = Kind::kFree;
  std::string field = {};                 // its path in the request, for errors
  io::JsonValue schema = {};              // kSchema
  std::string regex = {};                 // kRegex: of the whole text
  std::vector<std::string> choices = {};  // kChoice
  bool in_prompt = false;                 // the prompt is to tell the model of the schema
};

// outer: the member that holds a "format" in this dialect, "text" or "output_config"; empty: none does.
Result<TextForm> read_form(const Body& body, std::string_view outer = {});

FieldList form_fields();  // that read_form() reads, without `outer`

// What tool_choice asks for.
struct CallForm {
  bool allowed = true;
  bool required = false;
  std::string name = {};  // required: of the only function that may be called; empty: any
  bool several = true;    // calls in one answer
};

class AnswerForms {
 public:
  // n_vocab: tokens of the model. The format must outlive it.
  AnswerForms(const text::Tokenizer& tokenizer, const text::ChatFormat& format, int64_t n_vocab);

  struct Ask {
    TextForm text;
    CallForm calls;
    std::vector<io::JsonValue> tools;  // function objects
    bool in_reasoning = false;         // the prompt ends inside the reasoning
  };
  // nullopt: the answer is free. Errors (kUsage) say what in the form or the tools cannot be. From any thread.
  Result<std::optional<grammar::Structure>> make(Ask ask);

 private:
  Result<grammar::Grammar> compile(const Ask& ask) const;

  const text::ChatFormat& format_;
  const Result<std::shared_ptr<const grammar::Vocabulary>> vocabulary_;
  std::mutex mutex_;  // of what follows
  // The latest forms, by what was asked for: with them what is known of their states.
  std::list<std::pair<std::string, std::shared_ptr<grammar::Constraint>>> known_;
};

}  // namespace levin::serve
