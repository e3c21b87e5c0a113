// Where the time of a step goes: seconds by kind of op, and what the ops read and computed meanwhile, for a caller that gives
// an OpContext a place to add them up.
//
//   OpTimes times;
//   ctx.times = &times;  // run steps
//   times.of(OpKind::kSparseAttention)
//
// Every public op begins with an OpTimer. Without a place it costs a comparison.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string_view>

#include "ops/context.h"

namespace levin {

enum class OpKind : uint8_t {
  kEmbed,
  kNorm,  // with residual additions
  kRope,
  kRound,  // inputs of products and keys to narrower types, Hadamard rotation
  kMatmul,
  kMatmulPerHead,
  kCacheRows,
  kIndexTopk,  // scores and selection
  kSparseAttention,
  kRouteExperts,
  kFfn,  // dense and experts
  kStreams,
  kPoolWindows,
  kLinearAttention,
  kArgmax,
  kCopies,  // rows gathered, repeated, joined and scaled
};
constexpr size_t kOpKinds = 16;

std::string_view op_kind_name(OpKind kind);  // "sparse attention"

// The work of ops that read weights or the cache: each weight once for all rows, each cache row once for every query row
// that selected it, each key once for the query rows of a sequence. Activations are not counted.
struct OpWork {
  double bytes = 0;
  double f32_flop = 0;   // two for a multiply-add
  double bf16_flop = 0;  // of operands that the kernel set multiplies as bf16
  OpWork& operator+=(const OpWork& other);
};

struct OpTimes {
  std::array<double, kOpKinds> seconds{};
  std::array<OpWork, kOpKinds> work{};
  bool inside_op = false;  // an op that another op uses counts as part of it
  double of(OpKind kind) const { return seconds[static_cast<size_t>(kind)]; }
  const OpWork& work_of(OpKind kind) const { return work[static_cast<size_t>(kind)]; }
  double total() const;
  void divide(double n);  // sums of n steps become those of one
};

// The clock of a backend whose ops are enqueued: it runs with them, not with the calls.
class OpClock {
 public:
  virtual ~OpClock() = default;
  virtual void start() = 0;
  virtual void stop(double* seconds) = 0;  // the next synchronize() of the backend adds the time since start() to it
};

// Adds the time of its scope, and the work it is told of. Times on a device are there once somebody has waited for it.
class OpTimer {
 public:
  OpTimer(const OpContext& ctx, OpKind kind) {
    if (ctx.times != nullptr && !ctx.times->inside_op) start(ctx, kind);
  }
  ~OpTimer() {
    if (times_ != nullptr) stop();
  }
  // work() -> OpWork is asked for while somebody measures, and its own time is not the op's.
  template <class Work>
  void add(const Work& work) {
    if (times_ == nullptr) return;
    const Clock::time_point asked = Clock::now();
    times_->work[static_cast<size_t>(kind_)] += work();
    start_ += Clock::now() - asked;
  }

  OpTimer(const OpTimer&) = delete;
  OpTimer& operator=(const OpTimer&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  void start(const OpContext& ctx, OpKind kind);
  void stop();

  OpTimes* times_ = nullptr;
  OpKind kind_{};
  OpClock* clock_ = nullptr;  // of the device; null: the host's
  Clock::time_point start_;
};

}  // namespace levin
