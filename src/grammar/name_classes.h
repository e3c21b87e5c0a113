// Names of object members by the patterns that they match, for patternProperties of JSON schemas. Of no patterns: all
// names but those that are taken, for additionalProperties.
//
//   LEVIN_ASSIGN(const NameClasses names, NameClasses::of({"^x-", "_at$"}, {"x-id"}, rules));
//   names.patterns_of("x-id");   // {0}: properties obey the patterns too
//   names.others();              // all other names: those that match neither, only the first, only the second, both
//
// Patterns are automata over the bytes of a name as JSON writes it, of which each name has one writing (text_forms.h);
// their product tells which of them match. Its states are limited, a schema with more is refused (kUsage).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "grammar/rules.h"

namespace levin::grammar {

class NameClasses {
 public:
  struct Class {
    std::vector<size_t> patterns;  // that the names match, ascending; the others do not
    std::vector<State> automaton;  // of the names, without quotes; for RuleSet::add()
  };

  // Regular expressions (regex.h) that a name is searched for, and the names that others() leaves out. What
  // it takes to read them counts with the visits of `rules`.
  static Result<NameClasses> of(const std::vector<std::string>& patterns, const std::vector<std::string>& taken,
                                RuleSet& rules);

  std::vector<size_t> patterns_of(std::string_view name) const;
  const std::vector<Class>& others() const { return others_; }

 private:
  std::vector<Grammar> patterns_;
  std::vector<Class> others_;
};

}  // namespace levin::grammar
