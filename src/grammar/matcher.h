// How far an answer has come in its structure, token by token, and which tokens may be next.
//
//   Matcher matcher(constraint, {.ends = {eos}});
//   const int32_t token = choose(logits, matcher.mask());
//   matcher.push(token);
//   if (matcher.is_complete()) ...                 // nothing can follow
//   matcher.pop();                                 // undoes the last push, as often as wanted; does nothing where none is left
//
// An answer that begins with reasoning is free until the token that ends it; only the ends of answers and what
// `not_before` lists are shut out till then.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "grammar/constraint.h"

namespace levin::grammar {

// What a request wants of its answer.
struct Structure {
  std::shared_ptr<Constraint> constraint;
  int32_t begins_after = -1;             // the structure begins after this token; -1: at once
  std::vector<int32_t> not_before = {};  // tokens that must not come before it begins
};

class Matcher {
 public:
  // ends: tokens that end an answer. They may be chosen where the structure may end, unless they are text.
  Matcher(const Structure& structure, std::span<const int32_t> ends);
  Matcher(const Matcher&) = delete;
  Matcher& operator=(const Matcher&) = delete;

  // One bit per token of the vocabulary, set: may be next. Empty once an end was pushed: anything goes. Good until the
  // next call of anything.
  std::span<const uint64_t> mask();

  // False, and nothing done: the token may not be next.
  bool push(int32_t token);
  void pop();

  // The structure is met, and no token but an end could follow.
  bool is_complete() const;

 private:
  enum class Phase : uint8_t { kBefore, kInside, kEnded };
  struct Step {
    Phase phase;
    size_t first_place;  // of those after the step
    size_t n_frames;     // after the step
  };
  std::span<const Place> places() const { return std::span(places_).subspan(steps_.back().first_place); }
  void add_step(Phase phase, std::span<const Place> places);
  void add_allowed(const Place& place);
  void add_token(int32_t token) { mask_[static_cast<size_t>(token) / 64] |= uint64_t{1} << (token % 64); }
  bool is_end(int32_t token) const;

  const std::shared_ptr<Constraint> constraint_;
  const int32_t begins_after_;
  std::vector<int32_t> ends_;
  std::vector<uint64_t> mask_before_;
  std::vector<uint64_t> mask_;
  Stacks stacks_;
  TextWalk walk_;
  std::vector<Place> places_;  // of all steps, one after the other
  std::vector<Step> steps_;    // the first is the beginning
  std::vector<Place> scratch_, scratch2_;
};

}  // namespace levin::grammar
