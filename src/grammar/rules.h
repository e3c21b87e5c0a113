// A grammar: rules that call each other, each a deterministic automaton over bytes, tokens and calls.
//
//   RuleSet rules;
//   const RuleId digit = rules.reserve();
//   LEVIN_TRY(rules.define(digit, bytes('0', '9')));
//   LEVIN_ASSIGN(const Grammar grammar, std::move(rules).finish(digit));
//
// A rule may have a count with a range: of characters, of items (expression.h). It is part of the place in the rule, not
// of the automaton, so a long range costs nothing. A place in a text is a stack of (state, count), one for every rule
// that is open; where bytes and calls leave a choice, several stacks (matcher.h).
//
// Limits   kMaxStates in all rules together, kMaxExpressionNodes for one expression with its repeats written out and
//          kMaxNodes for all, kMaxVisits of nodes while states are made of sets of them: compiling takes about a second at
//          most. Errors (kUsage) say which was passed
// Ends     states from which no text leads to an end are left out, and calls of rules whose count cannot reach its
//          minimum; a grammar that matches nothing is refused, and so is a rule that calls itself before anything was
//          matched
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "grammar/expression.h"

namespace levin::grammar {

constexpr size_t kMaxStates = 50'000;
constexpr size_t kMaxExpressionNodes = 100'000;
constexpr size_t kMaxNodes = 1'000'000;
constexpr size_t kMaxVisits = 20'000'000;

using StateId = int32_t;

struct ByteEdge {
  uint8_t low = 0, high = 0;
  EdgeKind kind = EdgeKind::kPlain;
  StateId target = -1;
};
struct CallEdge {
  RuleId rule = -1;
  EdgeKind kind = EdgeKind::kPlain;
  StateId target = -1;  // where this rule continues
};
struct TokenEdge {
  int32_t token = -1;
  EdgeKind kind = EdgeKind::kPlain;
  StateId target = -1;
};

struct State {
  RuleId rule = -1;
  bool is_end = false;  // the rule may end here, if its count is in range
  std::vector<ByteEdge> bytes;
  std::vector<CallEdge> calls;
  std::vector<TokenEdge> tokens;
};

struct CountRange {
  int64_t min = 0, max = kNoLimit;
};

struct Rule {
  StateId start = -1;
  CountRange count;
};

class Grammar {
 public:
  const State& state(StateId id) const { return states_[static_cast<size_t>(id)]; }
  const Rule& rule(RuleId id) const { return rules_[static_cast<size_t>(id)]; }
  const CountRange& count_of(StateId id) const { return rule(state(id).rule).count; }
  StateId start() const { return rule(root_).start; }
  size_t n_states() const { return states_.size(); }
  size_t n_rules() const { return rules_.size(); }

 private:
  friend class RuleSet;
  std::vector<State> states_;
  std::vector<Rule> rules_;
  RuleId root_ = -1;
};

class RuleSet {
 public:
  // Rules of their own, whose visits count with those of this set.
  RuleSet apart() const;
  // False: too many visits, these included.
  bool count_visits(size_t n);

  RuleId reserve();  // a rule that is defined later, and may be called before
  Status define(RuleId rule, const Expression& expression, CountRange count = {});
  Result<RuleId> add(const Expression& expression, CountRange count = {});
  // The same from a deterministic automaton. The first state is the start; edges are of bytes and count states from it.
  Result<RuleId> add(std::vector<State> automaton);

  // Every reserved rule is defined by now.
  Result<Grammar> finish(RuleId root) &&;

 private:
  bool reaches_count(const Rule& rule, const std::function<bool(RuleId)>& may_call) const;
  void drop_dead_ends();
  std::vector<bool> rules_that_may_be_empty() const;
  Status check_recursion() const;

  Grammar grammar_;
  size_t n_nodes_ = 0;  // of all expressions so far
  std::shared_ptr<size_t> n_visits_ = std::make_shared<size_t>(0);
};

Error too_many_visits();

}  // namespace levin::grammar
