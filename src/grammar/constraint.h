// A grammar for one vocabulary: which tokens a place allows, worked out once for each state.
//
// For a state, with its rule's count where that is near a limit, the tokens of the vocabulary fall into three: those
// that are read inside the rule and the rules it calls, wherever it was called from; those that no caller makes
// possible; and those with which the rule ends before they do, whose rest the callers judge each time (matcher.h).
// The last are few: in a JSON string those with a quote in them.
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
  const StateTokens& tokens_at(const Place& place);
  size_t n_known_states() const { return known_.size(); }

 private:
  uint64_t key_of(const Place& place) const;
  StateTokens work_out(const Place& place);

  Grammar grammar_;
  std::shared_ptr<const Vocabulary> vocabulary_;
  Stacks stacks_;
  TextWalk walk_;
  std::unordered_map<uint64_t, StateTokens> known_;
};

}  // namespace levin::grammar
