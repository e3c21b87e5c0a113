#include "grammar/json_forms.h"

#include <utility>

#include "grammar/number_range.h"
#include "grammar/text_forms.h"

namespace levin::grammar {

Expression true_or_false() { return choice({literal("true"), literal("false")}); }

Result<Expression> JsonForms::space(EdgeKind edge) {
  constexpr int64_t kMaxIndent = 32;
  if (!space_) {
    const Expression line = sequence({literal("\n"), repeat(bytes(' ', ' ', EdgeKind::kCounts), 0)});
    LEVIN_ASSIGN(space_, rules_.add(optional(choice({literal(" "), line})), {.min = 0, .max = kMaxIndent}));
  }
  return call(*space_, edge);
}

Result<Expression> JsonForms::string(CountRange n_characters) {
  const std::pair key(n_characters.min, n_characters.max);
  if (const auto found = strings_.find(key); found != strings_.end()) return call(found->second);
  const bool counted = n_characters.min > 0 || n_characters.max != kNoLimit;
  const Expression characters = repeat(json_character(counted ? EdgeKind::kCounts : EdgeKind::kPlain), 0);
  LEVIN_ASSIGN(const RuleId rule, rules_.add(sequence({literal("\""), characters, guarded("\"")}), n_characters));
  strings_.emplace(key, rule);
  return call(rule);
}

// The rule is known before it is made: values hold values.
Result<Expression> JsonForms::call_once(std::optional<RuleId>* rule, Result<Expression> (JsonForms::*make)()) {
  if (!*rule) {
    *rule = rules_.reserve();
    LEVIN_ASSIGN(const Expression form, (this->*make)());
    LEVIN_TRY(rules_.define(**rule, form));
  }
  return call(**rule);
}

Result<Expression> JsonForms::any_value() { return call_once(&value_, &JsonForms::make_value); }
Result<Expression> JsonForms::any_object() { return call_once(&object_, &JsonForms::make_object); }
Result<Expression> JsonForms::any_array() { return call_once(&array_, &JsonForms::make_array); }

Result<Expression> JsonForms::make_value() {
  LEVIN_ASSIGN(Expression text, string({}));
  LEVIN_ASSIGN(Expression object, any_object());
  LEVIN_ASSIGN(Expression array, any_array());
  return choice(
      {std::move(object), std::move(array), std::move(text), number_in({}), true_or_false(), literal("null")});
}

Result<Expression> JsonForms::make_object() {
  LEVIN_ASSIGN(Expression name, string({}));
  LEVIN_ASSIGN(Expression value, any_value());
  LEVIN_ASSIGN(const Expression other, member(std::move(name), std::move(value)));
  return object({}, other);
}

Result<Expression> JsonForms::make_array() {
  LEVIN_ASSIGN(const Expression value, any_value());
  return array({}, value, {});
}

// The count is of items begun: a comma adds one, so that none is written where no item may follow.
Result<Expression> JsonForms::array(const std::vector<Expression>& first, const std::optional<Expression>& rest,
                                    CountRange n_items) {
  LEVIN_ASSIGN(const Expression gap, space());
  LEVIN_ASSIGN(const Expression last_gap, space(EdgeKind::kGuarded));
  const Expression comma = bytes(',', ',', EdgeKind::kCounts);
  const auto as_rule = [&](const Expression& item) -> Result<RuleId> {
    if (item.kind == Expression::Kind::kCall) return item.id;
    return rules_.add(item);
  };
  Expression more;  // after the items of `first` that are there
  std::optional<RuleId> rest_rule;
  if (rest) {
    LEVIN_ASSIGN(rest_rule, as_rule(*rest));
    more = repeat(sequence({comma, gap, call(*rest_rule)}), 0);
  }
  std::vector<RuleId> first_rules;
  for (const Expression& item : first) {
    LEVIN_ASSIGN(const RuleId rule, as_rule(item));
    first_rules.push_back(rule);
  }
  for (size_t i = first_rules.size(); i-- > 1;) more = optional(sequence({comma, gap, call(first_rules[i]), more}));
  const std::optional<RuleId> head = first_rules.empty() ? rest_rule : first_rules[0];
  std::vector<Expression> contents;
  contents.push_back(guarded("]"));
  if (head) contents.push_back(sequence({call(*head, EdgeKind::kCounts), more, last_gap, literal("]")}));
  LEVIN_ASSIGN(const RuleId rule, rules_.add(sequence({literal("["), gap, choice(std::move(contents))}), n_items));
  return call(rule);
}

Result<Expression> JsonForms::member(Expression name, Expression value) {
  LEVIN_ASSIGN(Expression gap, space());
  return sequence({std::move(name), literal(":"), std::move(gap), std::move(value)});
}

// For each place in the list the members from there on, each after a comma. Every place is a rule of its own, so that an
// object in which any member may be the first stays small.
Result<std::vector<Expression>> JsonForms::tails(const std::vector<ObjectMember>& members, const Expression& others) {
  LEVIN_ASSIGN(const Expression gap, space());
  std::vector<Expression> out(members.size() + 1);
  out.back() = others;
  for (size_t i = members.size(); i-- > 1;) {
    LEVIN_ASSIGN(Expression here, member(members[i].name, members[i].value));
    here = sequence({literal(","), gap, std::move(here)});
    if (!members[i].required) here = optional(std::move(here));
    LEVIN_ASSIGN(const RuleId rule, rules_.add(sequence({std::move(here), out[i + 1]})));
    out[i] = call(rule);
  }
  return out;
}

Result<Expression> JsonForms::object(const std::vector<ObjectMember>& members, const std::optional<Expression>& other) {
  LEVIN_ASSIGN(const Expression gap, space());
  Expression others;
  if (other) others = repeat(sequence({literal(","), gap, *other}), 0);
  LEVIN_ASSIGN(const std::vector<Expression> after, tails(members, others));
  std::vector<Expression> beginnings;  // by the first member that is there
  bool may_be_empty = true;
  for (size_t i = 0; i < members.size() && may_be_empty; ++i) {
    LEVIN_ASSIGN(Expression first, member(members[i].name, members[i].value));
    beginnings.push_back(sequence({std::move(first), after[i + 1]}));
    may_be_empty = !members[i].required;
  }
  if (may_be_empty && other) beginnings.push_back(sequence({*other, others}));
  std::vector<Expression> contents;
  if (!beginnings.empty()) contents.push_back(sequence({choice(std::move(beginnings)), gap, literal("}")}));
  if (may_be_empty) contents.push_back(literal("}"));
  return sequence({literal("{"), gap, choice(std::move(contents))});
}

}  // namespace levin::grammar
