#include "grammar/name_classes.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "grammar/regex.h"
#include "grammar/text_forms.h"

namespace levin::grammar {
namespace {

constexpr size_t kMaxProductStates = 5'000;
constexpr size_t kMaxClasses = 64;
constexpr StateId kDead = -1;

Result<Grammar> automaton_of(RuleSet rules, const Expression& expression) {
  LEVIN_ASSIGN(const RuleId root, rules.add(expression));
  return std::move(rules).finish(root);
}

StateId step(const Grammar& automaton, StateId from, uint8_t byte) {
  if (from == kDead) return kDead;
  for (const ByteEdge& edge : automaton.state(from).bytes) {
    if (edge.low <= byte && byte <= edge.high) return edge.target;
  }
  return kDead;
}

bool accepts(const Grammar& automaton, StateId state) { return state != kDead && automaton.state(state).is_end; }

// Automata that read the same bytes. The first one lives in every state: it has all names.
class Product {
 public:
  explicit Product(std::vector<const Grammar*> automata) : automata_(std::move(automata)) {}

  Status explore(RuleSet& rules) {
    Places starts;
    for (const Grammar* automaton : automata_) starts.push_back(automaton->start());
    state_of(std::move(starts));
    for (size_t i = 0; i < places_.size(); ++i) {
      if (places_.size() > kMaxProductStates) {
        return Error{ErrorKind::kUsage, fmt::format("together they need more than {} states", kMaxProductStates)};
      }
      follow(i);
      if (!rules.count_visits(std::exchange(n_visits_, 0))) return too_many_visits();
    }
    return {};
  }
  const std::vector<State>& states() const { return states_; }
  bool accepts(size_t state, size_t automaton) const {
    return grammar::accepts(*automata_[automaton], places_[state][automaton]);
  }

 private:
  using Places = std::vector<StateId>;  // one of each automaton

  StateId state_of(Places places) {
    const auto [found, is_new] = ids_.emplace(std::move(places), static_cast<StateId>(places_.size()));
    if (is_new) {
      places_.push_back(found->first);
      states_.emplace_back();
    }
    return found->second;
  }

  // Cuts the bytes where an edge of any automaton begins or ends, and follows each piece.
  void follow(size_t i) {
    const Places from = places_[i];
    std::set<int> cuts;
    for (size_t a = 0; a < automata_.size(); ++a) {
      if (from[a] == kDead) continue;
      for (const ByteEdge& edge : automata_[a]->state(from[a]).bytes) {
        cuts.insert(edge.low);
        cuts.insert(edge.high + 1);
      }
    }
    for (auto cut = cuts.begin(); cut != cuts.end() && std::next(cut) != cuts.end(); ++cut) {
      const auto low = static_cast<uint8_t>(*cut);
      n_visits_ += automata_.size();
      Places to;
      for (size_t a = 0; a < automata_.size(); ++a) to.push_back(step(*automata_[a], from[a], low));
      if (to.front() == kDead) continue;
      const StateId target = state_of(std::move(to));
      states_[i].bytes.push_back({.low = low, .high = static_cast<uint8_t>(*std::next(cut) - 1), .target = target});
    }
  }

  std::vector<const Grammar*> automata_;
  size_t n_visits_ = 0;  // not yet counted by the rules
  std::map<Places, StateId> ids_;
  std::vector<Places> places_;
  std::vector<State> states_;
};

}  // namespace

Result<NameClasses> NameClasses::of(const std::vector<std::string>& patterns, const std::vector<std::string>& taken,
                                    RuleSet& rules) {
  NameClasses out;
  for (const std::string& pattern : patterns) {
    LEVIN_ASSIGN(const Expression expression, parse_regex(pattern, RegexMatch::kSearch, Writing::kJsonString));
    LEVIN_ASSIGN(Grammar automaton, automaton_of(rules.apart(), expression));
    out.patterns_.push_back(std::move(automaton));
  }
  LEVIN_ASSIGN(const Grammar any, automaton_of(rules.apart(), repeat(one_of(all_but({}), Writing::kJsonString), 0)));
  std::vector<const Grammar*> automata = {&any};
  for (const Grammar& pattern : out.patterns_) automata.push_back(&pattern);
  std::vector<Expression> texts;
  for (const std::string& name : taken) texts.push_back(text_of(name, Writing::kJsonString));
  texts.push_back(bytes(0, 0));  // no name; for an automaton in any case
  LEVIN_ASSIGN(const Grammar names, automaton_of(rules.apart(), choice(std::move(texts))));
  automata.push_back(&names);

  Product product(automata);
  LEVIN_TRY(product.explore(rules));
  std::map<std::vector<size_t>, std::vector<size_t>> ends;  // by the patterns that match there
  for (size_t state = 0; state < product.states().size(); ++state) {
    if (!product.accepts(state, 0) || product.accepts(state, automata.size() - 1)) continue;
    std::vector<size_t> matched;
    for (size_t p = 0; p < patterns.size(); ++p) {
      if (product.accepts(state, 1 + p)) matched.push_back(p);
    }
    ends[std::move(matched)].push_back(state);
  }
  if (ends.size() > kMaxClasses) {
    return Error{ErrorKind::kUsage, fmt::format("names may match them in more than {} ways", kMaxClasses)};
  }
  for (const auto& [matched, states] : ends) {
    out.others_.push_back({.patterns = matched, .automaton = product.states()});
    for (const size_t state : states) out.others_.back().automaton[state].is_end = true;
  }
  return out;
}

std::vector<size_t> NameClasses::patterns_of(std::string_view name) const {
  const Expression written = text_of(name, Writing::kJsonString);
  std::vector<size_t> out;
  for (size_t p = 0; p < patterns_.size(); ++p) {
    StateId state = patterns_[p].start();
    for (const Expression& byte : written.parts) state = step(patterns_[p], state, byte.low);
    if (accepts(patterns_[p], state)) out.push_back(p);
  }
  return out;
}

}  // namespace levin::grammar
