#include "serve/answer_form.h"

#include <fmt/core.h>

#include <algorithm>

#include "grammar/json_schema.h"
#include "grammar/regex.h"
#include "serve/call_grammar.h"

namespace levin::serve {
namespace {

constexpr size_t kMaxKnown = 32;
constexpr size_t kMaxFormBytes = size_t{2} << 20;  // while it is read, a byte may take 60 of memory
constexpr size_t kMaxChoices = 1000;
constexpr size_t kMaxChoiceCharacters = grammar::kMaxExpressionNodes;  // more could not be compiled

// A schema as an object, or as the text of one.
Result<io::JsonValue> schema_value(const Body& body, std::string_view key) {
  const io::JsonValue* value = body.find(key);
  if (const std::string* text = value->as_string()) {
    return io::parse_json(*text, key, {.kind = ErrorKind::kUsage, .duplicates = io::DuplicateKeys::kLastWins});
  }
  if (value->as_object() == nullptr && value->as_bool() == nullptr) return body.unexpected(key, "a schema");
  return *value;
}

TextForm schema_form(std::string field, io::JsonValue schema, bool in_prompt) {
  return {
      .kind = TextForm::Kind::kSchema, .field = std::move(field), .schema = std::move(schema), .in_prompt = in_prompt};
}

const io::JsonValue kAnyObject = io::JsonObject{{"type", "object"}};

// {"type": ...} with the schema at `schema_key` of it, or of its member "json_schema".
Result<TextForm> typed_format(const Body& outer, std::string_view key) {
  if (!outer.has(key)) return TextForm();
  LEVIN_ASSIGN(const Body format, outer.get_body(key));
  LEVIN_ASSIGN(const std::string type, format.get<std::string>("type"));
  const std::string field = outer.path_of(key);
  if (type == "text") return TextForm();
  if (type == "json_object") {
    if (!format.has("schema")) return schema_form(field, kAnyObject, false);
    LEVIN_ASSIGN(io::JsonValue schema, schema_value(format, "schema"));
    return schema_form(field, std::move(schema), false);
  }
  if (type != "json_schema") {
    return outer.refuse(key, fmt::format("of type {} is not supported; it is text, json_object or json_schema", type));
  }
  if (!format.has("json_schema")) {
    const io::JsonValue* schema = format.find("schema");
    if (schema == nullptr) return format.unexpected("schema", "a JSON schema");
    return schema_form(field, *schema, true);
  }
  LEVIN_ASSIGN(const Body named, format.get_body("json_schema"));
  const io::JsonValue* schema = named.find("schema");
  return schema_form(field, schema != nullptr ? *schema : kAnyObject, true);
}

Result<TextForm> choice_form(const Body& body, std::string_view key) {
  LEVIN_ASSIGN(std::vector<std::string> choices, body.get<std::vector<std::string>>(key));
  if (choices.empty() || choices.size() > kMaxChoices) {
    return body.refuse(key, fmt::format("has {} entries, expected 1 to {}", choices.size(), kMaxChoices));
  }
  size_t n_characters = 0;
  for (const std::string& choice : choices) n_characters += choice.size();
  if (n_characters > kMaxChoiceCharacters) {
    return body.refuse(key, fmt::format("has {} characters in all, more than the {} that are allowed", n_characters,
                                        kMaxChoiceCharacters));
  }
  return TextForm{.kind = TextForm::Kind::kChoice, .field = body.path_of(key), .choices = std::move(choices)};
}

Result<TextForm> regex_form(const Body& body, std::string_view key) {
  LEVIN_ASSIGN(std::string regex, body.get<std::string>(key));
  return TextForm{.kind = TextForm::Kind::kRegex, .field = body.path_of(key), .regex = std::move(regex)};
}

// Keys of the same form under other names.
struct FormKeys {
  std::string_view json, regex, choice;
};
constexpr FormKeys kTopLevel = {"guided_json", "guided_regex", "guided_choice"};
constexpr FormKeys kInObject = {"json", "regex", "choice"};

Status add_forms(const Body& body, const FormKeys& keys, std::vector<TextForm>* forms) {
  if (body.has(keys.json)) {
    LEVIN_ASSIGN(io::JsonValue schema, schema_value(body, keys.json));
    forms->push_back(schema_form(body.path_of(keys.json), std::move(schema), false));
  }
  if (body.has(keys.regex)) {
    LEVIN_ASSIGN(TextForm form, regex_form(body, keys.regex));
    forms->push_back(std::move(form));
  }
  if (body.has(keys.choice)) {
    LEVIN_ASSIGN(TextForm form, choice_form(body, keys.choice));
    forms->push_back(std::move(form));
  }
  return {};
}

Status add_structured_outputs(const Body& body, std::vector<TextForm>* forms) {
  if (!body.has("structured_outputs")) return {};
  LEVIN_ASSIGN(const Body outputs, body.get_body("structured_outputs"));
  LEVIN_TRY(add_forms(outputs, kInObject, forms));
  LEVIN_ASSIGN(const bool any_object, outputs.get_or("json_object", false));
  if (any_object) forms->push_back(schema_form(outputs.path_of("json_object"), kAnyObject, false));
  for (const std::string_view key : {"grammar", "structural_tag"}) {
    if (outputs.has(key)) return outputs.refuse(key, "is not supported; it is json, json_object, regex or choice");
  }
  return {};
}

Result<grammar::Expression> text_expression(grammar::RuleSet& rules, grammar::JsonForms& forms, const TextForm& form) {
  switch (form.kind) {
    case TextForm::Kind::kSchema:
      return grammar::SchemaReader(rules, forms, form.schema).value();
    case TextForm::Kind::kRegex:
      return grammar::parse_regex(form.regex, grammar::RegexMatch::kWhole, grammar::Writing::kPlain);
    case TextForm::Kind::kChoice: {
      std::vector<grammar::Expression> texts;
      for (const std::string& text : form.choices) texts.push_back(grammar::literal(text));
      return grammar::choice(std::move(texts));
    }
    case TextForm::Kind::kFree:
      break;
  }
  return grammar::choice({});
}

// Equal for forms that are the same.
std::string key_of(const AnswerForms::Ask& ask, bool may_call) {
  io::JsonArray key = {static_cast<int64_t>(ask.text.kind), ask.text.schema, ask.text.regex};
  for (const std::string& choice : ask.text.choices) key.emplace_back(choice);
  if (may_call) key.emplace_back(io::JsonArray{ask.calls.name, ask.calls.several, io::JsonArray(ask.tools)});
  return io::dump_json(key, {.compact = true});
}

std::vector<int32_t> marks_of(const text::OutputMarks& marks) {
  std::vector<int32_t> out = marks.silent;
  if (const auto* dsml = std::get_if<text::DsmlCalls>(&marks.calls)) out.push_back(dsml->mark);
  if (const auto* tags = std::get_if<text::TagCalls>(&marks.calls)) out.push_back(tags->call_begin);
  return out;
}

}  // namespace

Result<TextForm> read_form(const Body& body, std::string_view outer) {
  std::vector<TextForm> forms;
  for (const std::string_view key : {"response_format", "output_format"}) {
    LEVIN_ASSIGN(TextForm form, typed_format(body, key));
    forms.push_back(std::move(form));
  }
  if (!outer.empty() && body.has(outer)) {
    LEVIN_ASSIGN(const Body object, body.get_body(outer));
    LEVIN_ASSIGN(TextForm form, typed_format(object, "format"));
    forms.push_back(std::move(form));
  }
  LEVIN_TRY(add_forms(body, kTopLevel, &forms));
  LEVIN_TRY(add_structured_outputs(body, &forms));
  if (body.has("regex")) {
    LEVIN_ASSIGN(TextForm form, regex_form(body, "regex"));
    forms.push_back(std::move(form));
  }
  std::erase_if(forms, [](const TextForm& form) { return form.kind == TextForm::Kind::kFree; });
  if (forms.size() > 1) {
    return body.refuse(forms[1].field, fmt::format("and {} exclude each other; leave one out", forms[0].field));
  }
  return forms.empty() ? TextForm() : std::move(forms.front());
}

FieldList form_fields() {
  static constexpr Field kFields[] = {
      {"response_format", "object", "Format of the answer: {type: text, json_object or json_schema}"},
      {"output_format", "object", "The same, in the earlier form of Anthropic's clients"},
      {"guided_json", "object|string", "JSON schema that the answer must match"},
      {"guided_regex", "string", "Regular expression that the answer must match"},
      {"guided_choice", "array", "Texts of which the answer must be one"},
      {"structured_outputs", "object", "One of json, regex, choice and json_object"},
      {"regex", "string", "The same as guided_regex"},
  };
  return kFields;
}

AnswerForms::AnswerForms(const text::Tokenizer& tokenizer, const text::ChatFormat& format, int64_t n_vocab)
    : format_(format), vocabulary_(grammar::Vocabulary::make(n_vocab, [&](int32_t id) -> std::string_view {
        return tokenizer.is_token(id) && !tokenizer.is_added(id) ? tokenizer.token_bytes(id) : std::string_view();
      })) {}

Result<grammar::Grammar> AnswerForms::compile(const Ask& ask) const {
  grammar::RuleSet rules;
  grammar::JsonForms forms(rules);
  std::vector<grammar::Expression> parts;
  if (ask.text.kind != TextForm::Kind::kFree) {
    LEVIN_ASSIGN(grammar::Expression text, text_expression(rules, forms, ask.text));
    parts.push_back(std::move(text));
  }
  if (ask.calls.allowed && !ask.tools.empty()) {
    LEVIN_ASSIGN(grammar::Expression calls,
                 call_expression(rules, forms, format_.output_marks(), ask.tools, ask.calls.name, ask.calls.several));
    parts.push_back(std::move(calls));
  }
  LEVIN_ASSIGN(const grammar::RuleId root, rules.add(grammar::choice(std::move(parts))));
  return std::move(rules).finish(root);
}

Result<std::optional<grammar::Structure>> AnswerForms::make(Ask ask) {
  if (ask.calls.required) ask.text = {};  // a call it is
  const bool free = ask.text.kind == TextForm::Kind::kFree;
  if (free && !ask.calls.required) return std::optional<grammar::Structure>();
  LEVIN_ASSIGN(std::shared_ptr<const grammar::Vocabulary> tokens, vocabulary_);
  const std::string key = key_of(ask, ask.calls.allowed && !ask.tools.empty());
  if (key.size() > kMaxFormBytes) {
    return Error{ErrorKind::kUsage,
                 fmt::format("it has {} bytes, with those of the tools that may be called; at most {} "
                             "are allowed",
                             key.size(), kMaxFormBytes)};
  }
  const text::OutputMarks& marks = format_.output_marks();
  grammar::Structure out{.begins_after = ask.in_reasoning ? marks.think_end : -1, .not_before = marks_of(marks)};
  {
    const std::lock_guard lock(mutex_);
    const auto found =
        std::find_if(known_.begin(), known_.end(), [&](const auto& known) { return known.first == key; });
    if (found != known_.end()) {
      known_.splice(known_.begin(), known_, found);
      out.constraint = found->second;
      return std::optional(std::move(out));
    }
  }
  LEVIN_ASSIGN(grammar::Grammar grammar, compile(ask));
  out.constraint = std::make_shared<grammar::Constraint>(std::move(grammar), std::move(tokens));
  const std::lock_guard lock(mutex_);
  known_.emplace_front(key, out.constraint);
  if (known_.size() > kMaxKnown) known_.pop_back();
  return std::optional(std::move(out));
}

}  // namespace levin::serve
