#include "ops/op_times.h"

#include <numeric>

#include "ops/backend.h"

namespace levin {

std::string_view op_kind_name(OpKind kind) {
  constexpr std::array<std::string_view, kOpKinds> kNames = {
      "embedding",      "norms and sums",   "rope",      "rounding",       "products", "products per head",
      "cache rows",     "indexer",          "attention", "expert routing", "ffn",      "residual streams",
      "pooled windows", "linear attention", "argmax",    "copies"};
  return kNames[static_cast<size_t>(kind)];
}

OpWork& OpWork::operator+=(const OpWork& other) {
  bytes += other.bytes;
  f32_flop += other.f32_flop;
  bf16_flop += other.bf16_flop;
  return *this;
}

void OpTimer::start(const OpContext& ctx, OpKind kind) {
  times_ = ctx.times;
  times_->inside_op = true;
  kind_ = kind;
  clock_ = ctx.backend->clock();
  if (clock_ != nullptr) return clock_->start();
  start_ = Clock::now();
}

void OpTimer::stop() {
  times_->inside_op = false;
  double& seconds = times_->seconds[static_cast<size_t>(kind_)];
  if (clock_ != nullptr) return clock_->stop(&seconds);
  seconds += std::chrono::duration<double>(Clock::now() - start_).count();
}

void OpTimes::divide(double n) {
  for (double& s : seconds) s /= n;
  for (OpWork& w : work) w = {.bytes = w.bytes / n, .f32_flop = w.f32_flop / n, .bf16_flop = w.bf16_flop / n};
}

double OpTimes::total() const { return std::accumulate(seconds.begin(), seconds.end(), 0.0); }

}  // namespace levin
