#include "grammar/expression.h"

#include <utility>

namespace levin::grammar {

Expression bytes(uint8_t low, uint8_t high, EdgeKind edge) {
  return {.kind = Expression::Kind::kBytes, .edge = edge, .low = low, .high = high};
}

Expression literal(std::string_view text) {
  Expression out;
  for (const char c : text) out.parts.push_back(bytes(static_cast<uint8_t>(c), static_cast<uint8_t>(c)));
  return out;
}

Expression guarded(std::string_view text) {
  Expression out = literal(text);
  if (!out.parts.empty()) out.parts.front().edge = EdgeKind::kGuarded;
  return out;
}

Expression call(RuleId rule, EdgeKind edge) { return {.kind = Expression::Kind::kCall, .edge = edge, .id = rule}; }

Expression token(int32_t id, EdgeKind edge) { return {.kind = Expression::Kind::kToken, .edge = edge, .id = id}; }

Expression sequence(std::vector<Expression> parts) {
  return {.kind = Expression::Kind::kSequence, .parts = std::move(parts)};
}

Expression choice(std::vector<Expression> parts) {
  if (parts.empty()) return {.kind = Expression::Kind::kNothing};
  return {.kind = Expression::Kind::kChoice, .parts = std::move(parts)};
}

Expression repeat(Expression part, int64_t min, int64_t max) {
  Expression out{.kind = Expression::Kind::kRepeat, .min = min, .max = max};
  out.parts.push_back(std::move(part));
  return out;
}

Expression optional(Expression part) { return repeat(std::move(part), 0, 1); }

}  // namespace levin::grammar
