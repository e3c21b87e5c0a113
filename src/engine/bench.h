// Measures the speed of a model by context depth, batch size and speculation, for `levin bench`.
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
  int64_t depth_tokens = 0;  // context length at which to measure
  int64_t batch = 1;         // sequences decoded together
  int n_spec_steps = 0;      // drafts per round; 0: no speculation
  bool adapt_depth = false;  // up to that many, down to 0, as is fastest (engine/draft_depth.h)
};

struct BenchOptions {
  int64_t chunk_tokens = 512;  // prefill tokens per step; prefill speed is that of one such chunk at the depth
  int64_t decode_tokens = 64;  // per sequence
  bool measure_ops =
      false;  // also measure the limits of the machine during each case; on a device the time of ops instead
  int64_t verify_rows = 0;  // also compare a pass of this many rows of one sequence with a pass of one row; 0: off
  double min_confidence = kDefaultMinConfidence;  // a chain of drafts stops below it (engine/step_loop.h)
  bool overlap = false;                           // as in EngineOptions
  // Of the tokens that are decoded. A draft is chosen with the noise of its position, so the higher the temperature, the more
  // drafts are right, whatever the weights: this is how speculation is measured at some acceptance without a trained model.
  double temperature = 0;
  uint64_t seed = 1;  // of the random token ids
  // Contexts are filled with copies of a few blocks that were computed, in memory of each sequence's own, instead of being
  // computed: deep ones cost hardly any time then. For models whose caches keep all rows.
  bool fill_context = false;
};

// A verification pass: target and head over some rows of one sequence.
struct VerifyPass {
  int64_t n_rows = 0;
  double ms = 0;  // median
  OpTimes ops;    // seconds, the median of each kind of op
};

struct BenchRow {
  BenchCase what;
  double prefill_tokens_per_s = 0;
  double decode_tokens_per_s = 0;  // of all sequences together
  double decode_step_ms = 0;       // median
  double decode_step_waits = 0;    // mean times per step that the host waits for a device; 0 on the CPU
  double decode_gap_us = 0;  // median time between steps in which the model waits for the host (StepTimes::host_gap_s)
  double mean_accept_length = 0;  // tokens per verification pass; 1 without speculation
  double prefill_s = 0;           // of the chunk
  double prompt_s = 0;       // of the tokens before the chunk, in chunks, and of the chunk: all of a prompt; 0: filled
  double decode_step_s = 0;  // mean duration of a step
  // Time by kind of op. On a device it is taken in runs of its own, without graphs and with events between the ops; empty
  // there without measure_ops.
  OpTimes prefill_ops;             // seconds of the chunk
  double prefill_ops_s = 0;        // of the chunk whose ops these are
  OpTimes decode_ops;              // mean seconds of a step
  double decode_ops_step_s = 0;    // mean duration of the steps whose ops these are
  Isa isa = Isa::kPlain;           // the kernel set that ran
  MachineLimits limits;            // the best samples of these threads so far; zeros without measure_limits
  std::vector<VerifyPass> verify;  // of one row, then of verify_rows; empty without verify_rows
};

// The cache capacity that a case needs, in tokens.
int64_t bench_cache_tokens(const BenchCase& what, const BenchOptions& options);

// Runs a case. `probe`, if given, must use the runner's threads; it is sampled after the chunk and after the decode
// steps. All sequences of the batch decode in the same steps: refuses a case that the cache has no room for.
Result<BenchRow> run_bench(Runner& runner, const BenchCase& what, const BenchOptions& options,
                           LimitProbe* probe = nullptr);

}  // namespace levin
