// How far an answer has come in its structure, token by token, and which tokens may be next.
//
//   Matcher matcher(constraint, {.ends = {eos}});
//   const int32_t token = choose(logits, matcher.mask());
//   matcher.push(token);
//   if (matcher.is_complete()) ...                 // nothing can follow
//   matcher.pop();                                 // undoes the last push, as often as wanted; does nothing where none is left
//
// Where a structure can be read in many ways at once, a mask or push may need more than kMaxSteps. Then no token may be
// next, and over_limit() tells why.
//
// An answer that begins with reasoning is free until the token that ends it; only the ends of answers and what
// `not_before` lists are shut out till then.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "grammar/constraint.h"

namespace levin::grammar {

// Of one mask or push: about three seconds, during which other requests wait. So 256 strings of different patterns, as many
// as a schema may have in one place, may be possible at once in a vocabulary of 128,000 tokens.
constexpr size_t kMaxSteps = 160'000'000;
Error too_many_steps();  // for the author of the structure (kUsage)

// What a request wants of its answer.
struct Structure {
  std::shared_ptr<Constraint> constraint;
  int32_t begins_after = -1;             // the structure begins after this token; -1: at once
  std::vector<int32_t> not_before = {};  // tokens that must not come before it begins
};

class Matcher {
 public:
  // ends: tokens that end an answer. They may be chosen where the structure may end, unless they are text.
  Matcher(const Structure& structure, std::span<const int32_t> ends, size_t max_steps = kMaxSteps);
  Matcher(const Matcher&) = delete;
  Matcher& operator=(const Matcher&) = delete;

  // One bit per token of the vocabulary, set: may be next. Empty once an end was pushed: anything goes. Good until the
  // next call of anything.
  std::span<const uint64_t> mask();

  // False, and nothing done: the token may not be next, or over_limit().
  bool push(int32_t token);
  void pop();

  // The structure is met, and no token but an end could follow.
  bool is_complete() const;

  // Of the last mask() or push(), or of the start before there was any: whether it needed too many steps, and how many.
  bool over_limit() const { return over_limit_; }
  size_t n_steps() const { return stacks_.n_steps(); }

 private:
  enum class Phase : uint8_t { kBefore, kInside, kEnded };
  struct Step {
    Phase phase;
    size_t first_place;  // of those after the step
    size_t n_floors;     // after the step
  };
  std::span<const Place> places() const { return std::span(places_).subspan(steps_.back().first_place); }
  void add_step(Phase phase, std::span<const Place> places);
  bool begin();
  bool push_inside(int32_t token);
  void add_marks(const Place& place);
  bool add_together();
  void add_one_by_one();
  void add_allowed(int32_t below, const StateTokens& tokens);
  void add_token(int32_t token) { mask_[static_cast<size_t>(token) / 64] |= uint64_t{1} << (token % 64); }
  bool is_end(int32_t token) const;

  const std::shared_ptr<Constraint> constraint_;
  const int32_t begins_after_;
  const size_t max_steps_;
  bool over_limit_ = false;
  std::vector<int32_t> ends_;
  std::vector<uint64_t> mask_before_;
  std::vector<uint64_t> mask_;
  Stacks stacks_;
  TextWalk walk_;
  std::vector<Place> places_;  // of all steps, one after the other
  std::vector<Step> steps_;    // the first is the beginning
  std::vector<Place> scratch_, scratch2_;
  std::vector<std::pair<int32_t, const StateTokens*>> allowed_;  // of mask(): floors, and what is allowed on them
};

}  // namespace levin::grammar
