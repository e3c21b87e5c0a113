// JSON as rules of a grammar: values of each type, and the white space between them.
//
// White space, where it is free, is nothing, one blank, or a line break and up to 32 blanks: enough for every common
// layout, and never without end. None stands before a comma or a colon.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "grammar/rules.h"

namespace levin::grammar {

struct ObjectMember {
  Expression name;  // with its quotes
  Expression value;
  bool required = false;
};

class JsonForms {
 public:
  explicit JsonForms(RuleSet& rules) : rules_(rules) {}

  // One rule each, made when first asked for.
  Result<Expression> space(EdgeKind edge = EdgeKind::kPlain);
  Result<Expression> string(CountRange n_characters);
  Result<Expression> any_value();
  Result<Expression> any_object();
  Result<Expression> any_array();

  // [first, ..., rest, rest]: as many of them as the count wants. `rest` of nothing: no more than `first`.
  Result<Expression> array(const std::vector<Expression>& first, const std::optional<Expression>& rest,
                           CountRange n_items);
  // The members in this order, those that are not required perhaps left out, then any number of `other` (a whole
  // member, "name": value).
  Result<Expression> object(const std::vector<ObjectMember>& members, const std::optional<Expression>& other);
  Result<Expression> member(Expression name, Expression value);

 private:
  Result<Expression> call_once(std::optional<RuleId>* rule, Result<Expression> (JsonForms::*make)());
  Result<Expression> make_value();
  Result<Expression> make_object();
  Result<Expression> make_array();
  Result<std::vector<Expression>> tails(const std::vector<ObjectMember>& members, const Expression& others);

  RuleSet& rules_;
  std::optional<RuleId> space_, value_, object_, array_;
  std::map<std::pair<int64_t, int64_t>, RuleId> strings_;
};

Expression true_or_false();

}  // namespace levin::grammar
