#include "grammar/rules.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace levin::grammar {
namespace {

// An automaton with empty moves, as Thompson builds it; its states become sets of a deterministic one.
struct Node {
  enum class Kind : uint8_t { kEmpty, kBytes, kCall, kToken };
  Kind kind = Kind::kEmpty;
  EdgeKind edge = EdgeKind::kPlain;
  uint8_t low = 0, high = 0;
  int32_t id = 0;
  std::vector<int32_t> next;  // kEmpty: any number of them; else the one after the edge
};

class NodeBuilder {
 public:
  // The expression from node `from` on; returns the node after it. Node 0 is there from the start.
  int32_t add(const Expression& e, int32_t from) {
    if (too_large()) return from;
    switch (e.kind) {
      case Expression::Kind::kNothing:
        return add_node({});
      case Expression::Kind::kBytes:
        return add_edge({.kind = Node::Kind::kBytes, .edge = e.edge, .low = e.low, .high = e.high}, from);
      case Expression::Kind::kCall:
        return add_edge({.kind = Node::Kind::kCall, .edge = e.edge, .id = e.id}, from);
      case Expression::Kind::kToken:
        return add_edge({.kind = Node::Kind::kToken, .edge = e.edge, .id = e.id}, from);
      case Expression::Kind::kSequence:
        for (const Expression& part : e.parts) from = add(part, from);
        return from;
      case Expression::Kind::kChoice:
        return add_choice(e, from);
      case Expression::Kind::kRepeat:
        return add_repeat(e, from);
    }
    return from;
  }
  bool too_large() const { return nodes_.size() > kMaxExpressionNodes; }
  const std::vector<Node>& nodes() const { return nodes_; }

 private:
  int32_t add_node(Node node) {
    nodes_.push_back(std::move(node));
    return static_cast<int32_t>(nodes_.size()) - 1;
  }
  void link(int32_t from, int32_t to) { nodes_[static_cast<size_t>(from)].next.push_back(to); }
  int32_t add_edge(Node edge, int32_t from) {
    const int32_t end = add_node({});
    edge.next = {end};
    link(from, add_node(std::move(edge)));
    return end;
  }
  int32_t add_choice(const Expression& e, int32_t from) {
    const int32_t end = add_node({});
    for (const Expression& part : e.parts) {
      const int32_t begin = add_node({});
      link(from, begin);
      link(add(part, begin), end);
    }
    return end;
  }
  int32_t add_repeat(const Expression& e, int32_t from) {
    for (int64_t i = 0; i < e.min && !too_large(); ++i) {
      const size_t n_before = nodes_.size();
      from = add(e.parts.front(), from);
      if (nodes_.size() == n_before) break;  // of nothing: so are the others, and no limit would end them
    }
    if (e.max == kNoLimit) {
      const int32_t loop = add_node({});
      link(from, loop);
      link(add(e.parts.front(), loop), loop);
      const int32_t end = add_node({});
      link(loop, end);
      return end;
    }
    if (e.max == e.min) return from;
    const int32_t end = add_node({});
    for (int64_t i = e.min; i < e.max && !too_large(); ++i) {
      link(from, end);
      const int32_t begin = add_node({});  // the part may come back to where it begins; the way out may not
      link(from, begin);
      from = add(e.parts.front(), begin);
    }
    link(from, end);
    return end;
  }

  std::vector<Node> nodes_ = std::vector<Node>(1);
};

Error too_many_states() {
  return {ErrorKind::kUsage, fmt::format("the structure needs more than {} states; make it smaller", kMaxStates)};
}

using NodeSet = std::vector<int32_t>;  // ascending; edges, and the last node if it is reached

class Determinizer {
 public:
  Determinizer(const std::vector<Node>& nodes, int32_t last, RuleId rule, std::vector<State>& states, RuleSet& rules)
      : nodes_(nodes), last_(last), rule_(rule), states_(states), rules_(rules), seen_(nodes.size(), 0) {}

  // Errors: too many states or visits.
  Status run() {
    state_of(closure({0}));
    for (size_t i = 0; i < sets_.size(); ++i) {
      if (states_.size() > kMaxStates) return too_many_states();
      if (!rules_.count_visits(std::exchange(n_visits_, 0))) return too_many_visits();
      expand(i);
    }
    return {};
  }

 private:
  NodeSet closure(std::vector<int32_t> open) {
    NodeSet out;
    ++mark_;
    while (!open.empty()) {
      const int32_t n = open.back();
      open.pop_back();
      ++n_visits_;
      if (std::exchange(seen_[static_cast<size_t>(n)], mark_) == mark_) continue;
      const Node& node = nodes_[static_cast<size_t>(n)];
      if (node.kind != Node::Kind::kEmpty || n == last_) out.push_back(n);
      if (node.kind == Node::Kind::kEmpty) open.insert(open.end(), node.next.begin(), node.next.end());
    }
    std::sort(out.begin(), out.end());
    return out;
  }

  StateId state_of(NodeSet set) {
    const auto [found, is_new] = ids_.emplace(set, static_cast<StateId>(states_.size()));
    if (!is_new) return found->second;
    states_.push_back({.rule = rule_, .is_end = std::binary_search(set.begin(), set.end(), last_)});
    sets_.emplace_back(found->second, std::move(set));
    return found->second;
  }

  void expand(size_t i) {
    const StateId id = sets_[i].first;
    const NodeSet set = sets_[i].second;
    for (const EdgeKind kind : {EdgeKind::kPlain, EdgeKind::kCounts, EdgeKind::kGuarded}) {
      expand_bytes(id, set, kind);
      for (auto& [rule, targets] : targets_of(set, Node::Kind::kCall, kind)) {
        const StateId target = state_of(closure(std::move(targets)));
        states_[static_cast<size_t>(id)].calls.push_back({.rule = rule, .kind = kind, .target = target});
      }
      for (auto& [token, targets] : targets_of(set, Node::Kind::kToken, kind)) {
        const StateId target = state_of(closure(std::move(targets)));
        states_[static_cast<size_t>(id)].tokens.push_back({.token = token, .kind = kind, .target = target});
      }
    }
  }

  // Of the edges of one kind: what follows them, by what they call or take.
  std::map<int32_t, std::vector<int32_t>> targets_of(const NodeSet& set, Node::Kind what, EdgeKind kind) const {
    std::map<int32_t, std::vector<int32_t>> out;
    for (const int32_t n : set) {
      const Node& node = nodes_[static_cast<size_t>(n)];
      if (node.kind == what && node.edge == kind) out[node.id].push_back(node.next.front());
    }
    return out;
  }

  // Cuts the ranges of all byte edges where one begins or ends, and follows each piece.
  void expand_bytes(StateId id, const NodeSet& set, EdgeKind kind) {
    std::set<int> cuts;
    for (const int32_t n : set) {
      const Node& node = nodes_[static_cast<size_t>(n)];
      if (node.kind != Node::Kind::kBytes || node.edge != kind) continue;
      cuts.insert(node.low);
      cuts.insert(node.high + 1);
    }
    for (auto cut = cuts.begin(); cut != cuts.end() && std::next(cut) != cuts.end(); ++cut) {
      std::vector<int32_t> targets;
      for (const int32_t n : set) {
        const Node& node = nodes_[static_cast<size_t>(n)];
        if (node.kind == Node::Kind::kBytes && node.edge == kind && node.low <= *cut && *cut <= node.high) {
          targets.push_back(node.next.front());
        }
      }
      if (targets.empty()) continue;
      const StateId target = state_of(closure(std::move(targets)));
      const auto high = static_cast<uint8_t>(*std::next(cut) - 1);
      std::vector<ByteEdge>& edges = states_[static_cast<size_t>(id)].bytes;
      if (!edges.empty() && edges.back().target == target && edges.back().kind == kind &&
          edges.back().high + 1 == *cut) {
        edges.back().high = high;
      } else {
        edges.push_back({.low = static_cast<uint8_t>(*cut), .high = high, .kind = kind, .target = target});
      }
    }
  }

  const std::vector<Node>& nodes_;
  const int32_t last_;
  const RuleId rule_;
  std::vector<State>& states_;
  RuleSet& rules_;
  size_t n_visits_ = 0;  // not yet counted by the rules
  std::vector<uint32_t> seen_;
  uint32_t mark_ = 0;
  std::map<NodeSet, StateId> ids_;
  std::vector<std::pair<StateId, NodeSet>> sets_;
};

}  // namespace

Error too_many_visits() {
  return {ErrorKind::kUsage,
          fmt::format("the patterns can be read in so many ways that it takes more than {} steps to list them; use "
                      "smaller counts, or fewer parts that may be left out",
                      kMaxVisits)};
}

RuleSet RuleSet::apart() const {
  RuleSet out;
  out.n_visits_ = n_visits_;
  return out;
}

bool RuleSet::count_visits(size_t n) {
  *n_visits_ += n;
  return *n_visits_ <= kMaxVisits;
}

RuleId RuleSet::reserve() {
  grammar_.rules_.emplace_back();
  return static_cast<RuleId>(grammar_.rules_.size()) - 1;
}

Status RuleSet::define(RuleId rule, const Expression& expression, CountRange count) {
  NodeBuilder builder;
  const int32_t last = builder.add(expression, 0);
  n_nodes_ += builder.nodes().size();
  if (builder.too_large() || n_nodes_ > kMaxNodes) {
    return Error{ErrorKind::kUsage,
                 fmt::format("a pattern needs more than {} steps with its repeats written out, or all "
                             "together more than {}; use smaller counts",
                             kMaxExpressionNodes, kMaxNodes)};
  }
  grammar_.rules_[static_cast<size_t>(rule)] = {.start = static_cast<StateId>(grammar_.states_.size()), .count = count};
  return Determinizer(builder.nodes(), last, rule, grammar_.states_, *this).run();
}

Result<RuleId> RuleSet::add(const Expression& expression, CountRange count) {
  const RuleId rule = reserve();
  LEVIN_TRY(define(rule, expression, count));
  return rule;
}

Result<RuleId> RuleSet::add(std::vector<State> automaton) {
  std::vector<State>& states = grammar_.states_;
  if (states.size() + automaton.size() > kMaxStates) return too_many_states();
  const RuleId rule = reserve();
  const auto first = static_cast<StateId>(states.size());
  grammar_.rules_[static_cast<size_t>(rule)] = {.start = first, .count = {}};
  for (State& state : automaton) {
    state.rule = rule;
    for (ByteEdge& edge : state.bytes) edge.target += first;
    states.push_back(std::move(state));
  }
  return rule;
}

// Whether the count of a rule can reach its minimum on the way to an end, over calls that `may_call` admits.
bool RuleSet::reaches_count(const Rule& rule, const std::function<bool(RuleId)>& may_call) const {
  // the rule's states stand side by side
  const auto first = static_cast<size_t>(rule.start);
  size_t n = 0;
  while (first + n < grammar_.n_states() && grammar_.states_[first + n].rule == grammar_.states_[first].rule) ++n;
  constexpr int64_t kNoEnd = -1;
  const auto round = static_cast<int64_t>(n);  // a way that counts more often than there are states goes in a circle
  const int64_t enough = std::min(rule.count.min, round + 1);
  std::vector<int64_t> most(n, kNoEnd);  // counted from each state to an end
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t i = n; i-- > 0;) {
      const State& s = grammar_.states_[first + i];
      int64_t best = s.is_end ? 0 : kNoEnd;
      const auto follow = [&](const auto& edge) {
        const int64_t after = most[static_cast<size_t>(edge.target) - first];
        if (after != kNoEnd) best = std::max(best, after + (edge.kind == EdgeKind::kCounts ? 1 : 0));
      };
      std::for_each(s.bytes.begin(), s.bytes.end(), follow);
      std::for_each(s.tokens.begin(), s.tokens.end(), follow);
      for (const CallEdge& edge : s.calls) {
        if (may_call(edge.rule)) follow(edge);
      }
      best = std::min(best, enough);
      changed = changed || best > most[i];
      most[i] = best;
    }
  }
  return most[0] >= enough;
}

// A state lives if an end can be reached from it, over calls of rules that can be matched: whose start lives, and whose
// count can reach its minimum. Edges to others go.
void RuleSet::drop_dead_ends() {
  std::vector<State>& states = grammar_.states_;
  std::vector<bool> lives(states.size(), false);
  std::vector<bool> counts(grammar_.n_rules(), false);
  for (size_t r = 0; r < counts.size(); ++r) counts[r] = grammar_.rules_[r].count.min == 0;
  const auto starts = [&](RuleId rule) {
    return lives[static_cast<size_t>(grammar_.rule(rule).start)] && counts[static_cast<size_t>(rule)];
  };
  const auto can_end = [&](const State& s) {
    const auto to_life = [&](const auto& edge) { return bool{lives[static_cast<size_t>(edge.target)]}; };
    return s.is_end || std::any_of(s.bytes.begin(), s.bytes.end(), to_life) ||
           std::any_of(s.tokens.begin(), s.tokens.end(), to_life) ||
           std::any_of(s.calls.begin(), s.calls.end(), [&](const CallEdge& c) { return to_life(c) && starts(c.rule); });
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t i = states.size(); i-- > 0;) {
      if (lives[i] || !can_end(states[i])) continue;
      lives[i] = true;
      changed = true;
    }
    for (size_t r = 0; r < counts.size(); ++r) {
      if (counts[r] || !reaches_count(grammar_.rules_[r], starts)) continue;
      counts[r] = true;
      changed = true;
    }
  }
  for (State& s : states) {
    const auto dead = [&](const auto& edge) { return !lives[static_cast<size_t>(edge.target)]; };
    std::erase_if(s.bytes, dead);
    std::erase_if(s.tokens, dead);
    std::erase_if(s.calls, [&](const CallEdge& c) { return dead(c) || !starts(c.rule); });
  }
  const State& first = grammar_.state(grammar_.start());
  if (!first.is_end && first.bytes.empty() && first.tokens.empty() && first.calls.empty()) grammar_.root_ = -1;
}

// Of every rule, whether it may match nothing.
std::vector<bool> RuleSet::rules_that_may_be_empty() const {
  std::vector<bool> empty_from(grammar_.n_states(), false);
  const auto may_be_empty = [&](RuleId rule) {
    return bool{empty_from[static_cast<size_t>(grammar_.rule(rule).start)]};
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t i = 0; i < grammar_.n_states(); ++i) {
      const State& s = grammar_.state(static_cast<StateId>(i));
      if (empty_from[i] || !(s.is_end || std::any_of(s.calls.begin(), s.calls.end(), [&](const CallEdge& c) {
                               return may_be_empty(c.rule) && empty_from[static_cast<size_t>(c.target)];
                             }))) {
        continue;
      }
      empty_from[i] = true;
      changed = true;
    }
  }
  std::vector<bool> out;
  for (size_t r = 0; r < grammar_.rules_.size(); ++r) out.push_back(may_be_empty(static_cast<RuleId>(r)));
  return out;
}

// Follows what may be reached without matching anything: into rules that are called, and past those that may be empty.
Status RuleSet::check_recursion() const {
  const std::vector<bool> may_be_empty = rules_that_may_be_empty();
  enum class Mark : uint8_t { kNew, kOpen, kDone };
  std::vector<Mark> marks(grammar_.n_states(), Mark::kNew);
  struct Step {
    StateId state;
    size_t n_done;
  };
  for (size_t first = 0; first < grammar_.n_states(); ++first) {
    std::vector<Step> path = {{static_cast<StateId>(first), 0}};
    while (!path.empty()) {
      Step& step = path.back();
      const State& s = grammar_.state(step.state);
      Mark& mark = marks[static_cast<size_t>(step.state)];
      if (step.n_done == 0 && mark == Mark::kDone) {
        path.pop_back();
        continue;
      }
      mark = Mark::kOpen;
      if (step.n_done == 2 * s.calls.size()) {
        mark = Mark::kDone;
        path.pop_back();
        continue;
      }
      const CallEdge& edge = s.calls[step.n_done / 2];
      const StateId start = grammar_.rule(edge.rule).start;
      const bool into = step.n_done % 2 == 0;
      ++step.n_done;
      if (!into && !may_be_empty[static_cast<size_t>(edge.rule)]) continue;
      const StateId next = into ? start : edge.target;
      if (marks[static_cast<size_t>(next)] == Mark::kOpen) {
        return Error{ErrorKind::kUsage,
                     "the structure refers to itself without anything between; there would be no end"};
      }
      path.push_back({next, 0});
    }
  }
  return {};
}

Result<Grammar> RuleSet::finish(RuleId root) && {
  grammar_.root_ = root;
  drop_dead_ends();
  if (grammar_.root_ < 0) return Error{ErrorKind::kUsage, "the structure can be met by no text at all"};
  LEVIN_TRY(check_recursion());
  return std::move(grammar_);
}

}  // namespace levin::grammar
