// A grammar for one vocabulary: which tokens a place allows, worked out once for each state.
//
// For a state, with its rule's count where that is near a limit, the tokens of the vocabulary fall into three: those
// that are read inside the rule and the rules it calls, wherever it was called from; those that no caller makes
// possible; and those with which the rule ends before they do, whose rest the callers judge each time (matcher.h).
// The last are few: in a JSON string those with a quote in them. Near the limit of a count only the tokens are looked at
// that are long enough to pass it, the others being as far from it.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "grammar/rules.h"
#include "grammar/stacks.h"
#include "grammar/vocabulary.h"

namespace levin::grammar {

struct StateTokens {
  std::vector<uint64_t> inside;  // a bit per token
  SortedTexts rests;             // what is left of a token when the rule ends; a token may be there more than once
};

// Shared by all requests that ask for the same structure. Not thread-safe: matchers of it belong to one thread.
class Constraint {
 public:
  Constraint(Grammar grammar, std::shared_ptr<const Vocabulary> vocabulary);

  const Grammar& grammar() const { return grammar_; }
  const Vocabulary& vocabulary() const { return *vocabulary_; }
  bool knows(const Place& place) const;
  // Null: working them out takes more than max_steps, of the stacks.
  // Those of two states are the same object if they are equal.
  const StateTokens* tokens_at(const Place& place, size_t max_steps);
  size_t n_steps() const { return stacks_.n_steps(); }  // that the last of them took; 0: it was known

 private:
  // How near a place is to the limits of its rule's count; a limit that no token can reach is as good as none.
  struct Nearness {
    int64_t n_needed = 0, n_allowed = 0;
  };
  Nearness nearness_of(const Place& place) const;
  uint64_t key_at(const Place& place) const;
  const StateTokens* found(uint64_t key) const;
  const StateTokens* keep(uint64_t key, StateTokens tokens);
  const StateTokens* far_from_limit(const Place& place);
  const StateTokens* near_limit(const Place& place, size_t n_allowed);
  void add_walked(const SortedTexts& texts, const Place& place, StateTokens* out);
  int64_t far() const { return static_cast<int64_t>(vocabulary_->longest_bytes()) + 1; }

  Grammar grammar_;
  std::shared_ptr<const Vocabulary> vocabulary_;
  Stacks stacks_;
  TextWalk walk_;
  std::unordered_map<uint64_t, const StateTokens*> known_;
  std::unordered_multimap<size_t, StateTokens> kept_;  // by hash
};

}  // namespace levin::grammar
