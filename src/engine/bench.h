// Speed of a model by context depth, batch and speculation: what `levin bench` measures.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/result.h"
#include "engine/draft_depth.h"
#include "engine/runner.h"
#include "ops/machine_limits.h"

namespace levin {

struct BenchCase {
  int64_t depth_tokens = 0;  // context before what is measured
  int64_t batch = 1;         // sequences decoded side by side
  int n_spec_steps = 0;
};

struct BenchOptions {
  int64_t chunk_tokens = 512;   // prefill tokens of a step; prefill speed is that of one such chunk at the depth
  int64_t decode_tokens = 64;   // of every sequence
  bool measure_limits = false;  // also what the machine can do at most, beside each case
  int64_t verify_rows = 0;  // also time a pass of so many rows of one sequence beside one of a single row; 0: do not
  double min_confidence = kDefaultMinConfidence;  // of drafts that get another behind them (engine/step_loop.h)
  uint64_t seed = 1;                              // of the random token ids
};

// A pass of the trunk and the head over some rows of one sequence, as it checks drafts.
struct VerifyPass {
  int64_t n_rows = 0;
  double ms = 0;  // median
  OpTimes ops;    // seconds, each kind's own median
};

struct BenchRow {
  BenchCase what;
  double prefill_tokens_per_s = 0;
  double decode_tokens_per_s = 0;  // of all sequences together
  double decode_step_ms = 0;       // median
  double decode_step_waits = 0;    // of the host for a device, on average; 0 on the CPU
  double mean_accept_length = 0;   // tokens kept a pass; 1 without speculation
  OpTimes prefill_ops;             // seconds of the chunk
  double prefill_s = 0;            // of the chunk
  OpTimes decode_ops;              // seconds a step, on average
  double decode_step_s = 0;        // likewise, ops and all
  Isa isa = Isa::kPlain;           // the kernel set that ran
  MachineLimits limits;            // the best of these threads in all samples so far; zeros if not asked for
  std::vector<VerifyPass> verify;  // of one row, then of verify_rows; empty where it was not asked for
};

// Cache tokens that a case needs.
int64_t bench_cache_tokens(const BenchCase& what, const BenchOptions& options);

// With a probe of the runner's threads, it is sampled behind the chunk and behind the decode steps.
Result<BenchRow> run_bench(Runner& runner, const BenchCase& what, const BenchOptions& options,
                           LimitProbe* probe = nullptr);

}  // namespace levin
