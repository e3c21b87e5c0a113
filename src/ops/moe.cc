#include "ops/moe.h"

#include "base/check.h"
#include "ops/backend.h"
#include "ops/norm.h"
#include "ops/op_times.h"

namespace levin::ops {
namespace {

void check_weights(const OpContext& ctx, const char* op, const FfnWeights& w, int64_t d_model) {
  const Device here = ctx.backend->device_id().kind;
  LEVIN_CHECK(w.gate.device() == here && w.up.device() == here && w.down.device() == here,
              "{}: the weights lie on another device than the context", op);
  LEVIN_CHECK(w.gate.k() == d_model && w.up.k() == d_model && w.down.n() == d_model && w.gate.n() == w.up.n() &&
                  w.down.k() == w.gate.n(),
              "{}: gate is [{}, {}], up [{}, {}], down [{}, {}], x has {} columns", op, w.gate.n(), w.gate.k(),
              w.up.n(), w.up.k(), w.down.n(), w.down.k(), d_model);
}

void check_tokens(const char* op, const View& x, const View& out) {
  const bool fits = x.dtype() == DType::kF32 || x.dtype() == DType::kBF16;
  LEVIN_CHECK(x.rank() == 2 && out.rank() == 2 && x.dim(0) == out.dim(0) && x.dim(1) == out.dim(1) && fits &&
                  out.dtype() == DType::kF32,
              "{}: x is {}, out {}, expected both [T, D], x f32 or bf16, out f32", op, x.describe(), out.describe());
}

// out += what run(memory) leaves there.
template <class Run>
void add_result(OpContext& ctx, const View& out, const Run& run) {
  const ArenaScope scratch(*ctx.arena);
  const View result = ctx.arena->allocate(DType::kF32, {out.dim(0), out.dim(1)});
  run(result);
  add_into(ctx, {.x = out, .y = result});
}

}  // namespace

void ffn(OpContext& ctx, const Ffn& a) {
  if (a.add) {
    return add_result(ctx, a.out, [&](const View& result) {
      ffn(ctx, {.x = a.x, .weights = a.weights, .limit = a.limit, .out = result});
    });
  }
  OpTimer timer(ctx, OpKind::kFfn);
  check_tokens("ffn", a.x, a.out);
  LEVIN_CHECK(a.weights != nullptr, "ffn: no weights");
  check_weights(ctx, "ffn", *a.weights, a.x.dim(1));
  if (a.x.dim(0) == 0) return;
  ctx.backend->ffn(a);
  timer.add([&] { return ctx.backend->work(a); });
}

int64_t tuned_token_bytes(const ExpertWidths& w) {
  return w.n_active * (4 * w.d_model + 6 * w.d_hidden + 16) + 12 * w.d_model + 6 * w.d_shared + 64;
}

void expert_ffn(OpContext& ctx, const ExpertFfn& a) {
  OpTimer timer(ctx, OpKind::kFfn);
  check_tokens("expert_ffn", a.x, a.out);
  const int64_t n_tokens = a.x.dim(0);
  LEVIN_CHECK(a.topk.rank() == 2 && a.topk.dim(0) == n_tokens && a.weights.rank() == 2 &&
                  a.weights.dim(0) == n_tokens && a.weights.dim(1) == a.topk.dim(1) && a.weights.dtype() == DType::kF32,
              "expert_ffn: topk is {}, weights {}, expected both [{}, A], weights f32", a.topk.describe(),
              a.weights.describe(), n_tokens);
  for (const FfnWeights& w : a.experts) check_weights(ctx, "expert_ffn", w, a.x.dim(1));
  if (a.shared != nullptr) check_weights(ctx, "expert_ffn", *a.shared, a.x.dim(1));
  LEVIN_CHECK((a.stack != nullptr) == a.experts.empty(), "expert_ffn: {} experts {} a stack; one of the two is wanted",
              a.experts.size(), a.stack != nullptr ? "and" : "without");
  if (!a.add) {
    ctx.backend->expert_ffn(a);
  } else if (!ctx.backend->add_expert_ffn(a)) {
    add_result(ctx, a.out, [&](const View& result) {
      ExpertFfn alone = a;
      alone.out = result, alone.add = false;
      ctx.backend->expert_ffn(alone);
    });
  }
  timer.add([&] { return ctx.backend->work(a); });
}

void routed_ffn(OpContext& ctx, const RoutedFfn& a) {
  {
    OpTimer timer(ctx, OpKind::kFfn);
    if (ctx.backend->routed_ffn(a)) return timer.add([&] { return ctx.backend->work(a.experts); });
  }
  route_experts(ctx, a.route);
  expert_ffn(ctx, a.experts);
}

}  // namespace levin::ops
