#include "serve/call_grammar.h"

#include <fmt/core.h>

#include <utility>

#include "grammar/json_schema.h"

namespace levin::serve {
namespace {

using grammar::Expression;

constexpr int64_t kMaxCalls = 64;  // in one answer
constexpr size_t kMaxNameCharacters = 1000;

struct Parameter {
  std::string name;
  grammar::SchemaReader::PlainForms forms;
  bool required = false;
};

struct Function {
  std::string name;
  std::vector<Parameter> parameters;
};

Expression call_of(grammar::RuleId rule) { return grammar::call(rule); }

// The two ways to write calls; each writes a value with what follows it.
class CallWriter {
 public:
  explicit CallWriter(const text::OutputMarks& marks) {
    if (const auto* dsml = std::get_if<text::DsmlCalls>(&marks.calls)) dsml_ = *dsml;
    if (const auto* tags = std::get_if<text::TagCalls>(&marks.calls)) tags_ = *tags;
  }

  // Closes a string; its first part waits for the string's least length.
  Expression behind_string() const {
    if (dsml_)
      return grammar::sequence({grammar::guarded("</"), grammar::token(dsml_->mark),
                                grammar::literal(fmt::format("{}>", dsml_->tags.parameter))});
    return grammar::token(tags_->value_end, grammar::EdgeKind::kGuarded);
  }

  Expression parameter(const Parameter& p) const {
    std::vector<Expression> values;
    for (const grammar::RuleId rule : p.forms.strings) values.push_back(value(p.name, true, call_of(rule)));
    for (const Expression& other : p.forms.others) {
      values.push_back(value(p.name, false, grammar::sequence({other, behind_json()})));
    }
    return grammar::choice(std::move(values));
  }

  Expression call(const Function& function, const std::vector<grammar::RuleId>& parameters) const {
    std::vector<Expression> parts;
    bool may_be_empty = true;
    for (size_t i = 0; i < parameters.size(); ++i) {
      Expression one = call_of(parameters[i]);
      may_be_empty = may_be_empty && !function.parameters[i].required;
      parts.push_back(function.parameters[i].required ? std::move(one) : grammar::optional(std::move(one)));
    }
    Expression all = grammar::sequence(std::move(parts));
    if (!dsml_) {
      return grammar::sequence({grammar::token(tags_->call_begin), grammar::literal(function.name), std::move(all),
                                grammar::token(tags_->call_end)});
    }
    if (may_be_empty) all = grammar::choice({std::move(all), grammar::literal("\n")});
    return grammar::sequence({grammar::literal("<"), grammar::token(dsml_->mark),
                              grammar::literal(fmt::format("{} name=\"{}\">", dsml_->tags.invoke, function.name)),
                              std::move(all), grammar::literal("\n</"), grammar::token(dsml_->mark),
                              grammar::literal(fmt::format("{}>", dsml_->tags.invoke))});
  }

  // One call or more, counted by the rule that this becomes.
  Expression block(grammar::RuleId any_call) const {
    if (!dsml_) {
      const Expression one = grammar::call(any_call, grammar::EdgeKind::kCounts);
      return grammar::sequence({one, grammar::repeat(one, 0)});
    }
    const Expression line = grammar::bytes('\n', '\n', grammar::EdgeKind::kCounts);
    const Expression mark = grammar::token(dsml_->mark), tag = grammar::literal(fmt::format("{}>", dsml_->tags.block));
    return grammar::sequence({grammar::literal("\n\n<"), mark, tag,
                              grammar::repeat(grammar::sequence({line, call_of(any_call)}), 1),
                              grammar::guarded("\n</"), mark, tag});
  }

 private:
  Expression behind_json() const {
    if (dsml_)
      return grammar::sequence({grammar::literal("</"), grammar::token(dsml_->mark),
                                grammar::literal(fmt::format("{}>", dsml_->tags.parameter))});
    return grammar::token(tags_->value_end);
  }
  Expression value(const std::string& name, bool string, Expression text) const {
    if (dsml_) {
      return grammar::sequence(
          {grammar::literal("\n<"), grammar::token(dsml_->mark),
           grammar::literal(fmt::format("{} name=\"{}\" string=\"{}\">", dsml_->tags.parameter, name, string)),
           std::move(text)});
    }
    return grammar::sequence({grammar::token(tags_->key_begin), grammar::literal(name), grammar::token(tags_->key_end),
                              grammar::token(tags_->value_begin), std::move(text)});
  }

  std::optional<text::DsmlCalls> dsml_;
  std::optional<text::TagCalls> tags_;
};

Error wrong(const std::string& function, std::string_view what) {
  return {ErrorKind::kUsage, fmt::format("the function {}: {}", function, what)};
}

// Names stand in tags: what would end one there cannot be written.
Status check_name(const std::string& function, const std::string& name) {
  if (name.size() > kMaxNameCharacters) {
    return Error{ErrorKind::kUsage,
                 fmt::format("a function or parameter has a name of {} characters, at most {} can stand in a call",
                             name.size(), kMaxNameCharacters)};
  }
  if (!name.empty() && name.find_first_of("\"<>\n") == std::string::npos) return {};
  return wrong(function, fmt::format("the name {} cannot stand in a call", io::dump_json(name)));
}

class FunctionReader {
 public:
  FunctionReader(grammar::RuleSet& rules, grammar::JsonForms& forms, const CallWriter& writer)
      : rules_(rules), forms_(forms), writer_(writer) {}

  Result<Function> read(const io::JsonObject& tool) {
    const io::JsonValue* name = tool.find("name");
    Function out{.name = *name->as_string()};
    LEVIN_TRY(check_name(out.name, out.name));
    const io::JsonValue* schema = tool.find("parameters");
    if (schema == nullptr || schema->as_object() == nullptr) return out;
    const io::JsonValue* strict = tool.find("strict");
    const bool is_strict = strict != nullptr && strict->as_bool() != nullptr && *strict->as_bool();
    grammar::SchemaReader reader(rules_, forms_, *schema,
                                 is_strict ? grammar::Unsupported::kRefused : grammar::Unsupported::kPassedOver);
    const Status read = add_parameters(reader, *schema, is_strict, &out);
    if (!read.ok()) return wrong(out.name, read.error().message);
    return out;
  }

 private:
  Status add_parameters(grammar::SchemaReader& reader, const io::JsonValue& schema, bool strict, Function* out) {
    const std::string path = "parameters";
    LEVIN_ASSIGN(const std::vector<grammar::SchemaReader::NamedMember> members, reader.named_members(schema, path));
    for (const grammar::SchemaReader::NamedMember& member : members) {
      LEVIN_TRY(check_name(out->name, member.name));
      const std::string place = fmt::format("{}.properties.{}", path, member.name);
      Result<grammar::SchemaReader::PlainForms> forms =
          reader.plain_forms(member.schema, place, writer_.behind_string());
      if (!forms.ok() && !strict) {
        const io::JsonValue anything = true;
        forms = reader.plain_forms(anything, place, writer_.behind_string());
      }
      if (!forms.ok()) return forms.error();
      out->parameters.push_back({.name = member.name, .forms = std::move(*forms), .required = member.required});
    }
    return {};
  }

  grammar::RuleSet& rules_;
  grammar::JsonForms& forms_;
  const CallWriter& writer_;
};

}  // namespace

Result<Expression> call_expression(grammar::RuleSet& rules, grammar::JsonForms& forms, const text::OutputMarks& marks,
                                   std::span<const io::JsonValue> tools, const std::string& name, bool several) {
  const CallWriter writer(marks);
  FunctionReader reader(rules, forms, writer);
  std::vector<Expression> calls;
  for (const io::JsonValue& tool : tools) {
    const io::JsonObject& fields = *tool.as_object();
    if (!name.empty() && *fields.find("name")->as_string() != name) continue;
    LEVIN_ASSIGN(const Function function, reader.read(fields));
    std::vector<grammar::RuleId> parameters;
    for (const Parameter& parameter : function.parameters) {
      LEVIN_ASSIGN(const grammar::RuleId rule, rules.add(writer.parameter(parameter)));
      parameters.push_back(rule);
    }
    calls.push_back(writer.call(function, parameters));
  }
  if (calls.empty())
    return Error{ErrorKind::kUsage, fmt::format("tool_choice names {}, which is not one of the tools", name)};
  LEVIN_ASSIGN(const grammar::RuleId any_call, rules.add(grammar::choice(std::move(calls))));
  LEVIN_ASSIGN(const grammar::RuleId block,
               rules.add(writer.block(any_call), {.min = 1, .max = several ? kMaxCalls : 1}));
  return grammar::call(block);
}

}  // namespace levin::serve
