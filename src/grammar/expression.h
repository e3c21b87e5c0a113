// What a rule of a grammar matches: an expression over bytes, tokens and other rules.
//
//   const Expression digits = repeat(bytes('0', '9'), 1, 3);
//   const Expression pair = sequence({literal("("), digits, literal(")")});
//
// Text is matched byte by byte, so that a token may end anywhere; only tokens that are no text (marks of a chat format)
// are matched whole. A count belongs to the rule that the expression becomes (rules.h): edges marked kCounts add one to
// it and need it below the rule's maximum, edges marked kGuarded need its minimum reached.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace levin::grammar {

using RuleId = int32_t;

enum class EdgeKind : uint8_t { kPlain, kCounts, kGuarded };

struct Expression {
  enum class Kind : uint8_t {
    kNothing,  // matches nothing at all
    kBytes,    // one byte of [low, high]
    kCall,     // what rule `id` matches
    kToken,    // token `id`, which is no text
    kSequence,
    kChoice,
    kRepeat,  // the one part, `min` to `max` times
  };
  Kind kind = Kind::kSequence;  // of nothing: the empty text
  EdgeKind edge = EdgeKind::kPlain;
  uint8_t low = 0, high = 0;
  int32_t id = 0;
  int64_t min = 0, max = 0;
  std::vector<Expression> parts = {};
};

constexpr int64_t kNoLimit = INT64_MAX;

Expression bytes(uint8_t low, uint8_t high, EdgeKind edge = EdgeKind::kPlain);
Expression literal(std::string_view text);  // its bytes, one after the other
Expression guarded(std::string_view text);  // the same, the first byte only once the rule's minimum is reached
Expression call(RuleId rule, EdgeKind edge = EdgeKind::kPlain);
Expression token(int32_t id, EdgeKind edge = EdgeKind::kPlain);
Expression sequence(std::vector<Expression> parts);
Expression choice(std::vector<Expression> parts);  // of no parts: matches nothing
Expression repeat(Expression part, int64_t min, int64_t max = kNoLimit);
Expression optional(Expression part);

}  // namespace levin::grammar
