#include "engine/bench.h"

#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <random>

#include "base/clock.h"
#include "engine/row_span.h"
#include "engine/step_loop.h"

namespace levin {
namespace {

constexpr int kLimitSamples = 10;       // of a few milliseconds
constexpr int64_t kExampleBlocks = 16;  // that contexts are filled with

std::vector<int32_t> random_tokens(int64_t n_tokens, int64_t n_vocab, uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(n_tokens));
  for (int32_t& token : tokens) token = static_cast<int32_t>(engine() % static_cast<uint64_t>(n_vocab));
  return tokens;
}

// On a device events between ops, and passes without graphs, would slow what is timed.
bool measures_apart(const Runner& runner) { return runner.device() == Device::kCuda; }

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + std::ssize(values) / 2, values.end());
  return values[values.size() / 2];
}

VerifyPass median_pass(int64_t n_rows, const std::vector<double>& seconds, const std::vector<OpTimes>& ops) {
  VerifyPass out{.n_rows = n_rows, .ms = 1000 * median(seconds), .ops = {}};
  for (size_t kind = 0; kind < kOpKinds; ++kind) {
    std::vector<double> of_kind;
    for (const OpTimes& pass : ops) of_kind.push_back(pass.seconds[kind]);
    out.ops.seconds[kind] = median(std::move(of_kind));
  }
  return out;
}

// Passes of one row and of options.verify_rows in turn, all over the same tokens, of which chunk.tokens has enough; each
// takes back what the last one wrote.
std::vector<VerifyPass> measure_verify(Runner& runner, const BenchOptions& options, const SequenceChunk& chunk) {
  constexpr int kWarm = 3;
  const int64_t widths[] = {1, options.verify_rows};
  std::vector<double> seconds[2];
  std::vector<OpTimes> ops[2];
  for (int64_t round = 0; round < kWarm + options.decode_tokens; ++round) {
    for (size_t i = 0; i < 2; ++i) {
      SequenceChunk rows = chunk;
      rows.tokens = rows.tokens.first(static_cast<size_t>(widths[i]));
      OpTimes times;
      if (!measures_apart(runner)) runner.measure(&times);
      const Clock::time_point start = Clock::now();
      runner.begin_step();
      runner.logits(runner.trunk({&rows, 1}).hidden);
      if (round < kWarm) continue;
      seconds[i].push_back(seconds_since(start));
      ops[i].push_back(times);
    }
  }
  runner.measure(nullptr);
  return {median_pass(widths[0], seconds[0], ops[0]), median_pass(widths[1], seconds[1], ops[1])};
}

double seconds_of_chunk(Runner& runner, const SequenceChunk& chunk) {
  const Clock::time_point start = Clock::now();
  runner.begin_step();
  runner.trunk({&chunk, 1});
  runner.wait();
  return seconds_since(start);
}

// Computes a block of random tokens, in the draft layers too, and copies it.
BlockRecord example_block(Runner& runner, const BenchOptions& options, SequencePages& pages, int64_t block) {
  const int64_t n_tokens = runner.block_tokens(), end = (block + 1) * n_tokens;
  const std::vector<int32_t> tokens = random_tokens(end + 1, runner.model().config().n_vocab, options.seed);
  const int64_t n_step = std::min(n_tokens, runner.max_chunk_tokens());
  BlockRecord record{.state = {}, .rows = std::vector<std::byte>(static_cast<size_t>(runner.block_bytes()))};
  for (int64_t begin = block * n_tokens; begin < end; begin += n_step) {
    const int64_t n = std::min(n_step, end - begin);
    const auto chunk = [&](int64_t first) {
      return SequenceChunk{.tokens = std::span(tokens).subspan(static_cast<size_t>(first), static_cast<size_t>(n)),
                           .first_position = static_cast<int32_t>(begin),
                           .pages = &pages};
    };
    const SequenceChunk rows = chunk(begin), pairs = chunk(begin + 1);
    runner.begin_step();
    const View state = runner.trunk({&rows, 1}).state;
    if (!runner.model().has_mtp()) continue;
    runner.mtp({&pairs, 1}, {.state = state});
    const std::span<const float> values = row_span(runner.to_host(state.slice_first(n - 1, 1)), 0);
    record.state.assign(values.begin(), values.end());
  }
  runner.wait();
  runner.copy_block(pages, block, record.rows);
  return record;
}

// None: contexts are computed.
Result<BlockRecords> blocks_to_fill_with(Runner& runner, const BenchOptions& options) {
  if (!options.fill_context) return BlockRecords();
  if (!runner.keeps_all_rows()) {
    return Error{ErrorKind::kUsage,
                 "--fill-context copies blocks of the cache, and this model keeps windows and states; leave it out"};
  }
  SequencePages pages(runner.pools());
  LEVIN_TRY(pages.grow(kExampleBlocks * runner.block_tokens() + 1));
  BlockRecords records;
  for (int64_t block = 0; block < kExampleBlocks; ++block)
    records.push_back(std::make_shared<const BlockRecord>(example_block(runner, options, pages, block)));
  return records;
}

// The rows of whole blocks before `depth`. Returns how many tokens that are.
int64_t fill(Runner& runner, const BlockRecords& records, const SequencePages& pages, int64_t depth) {
  const int64_t n_blocks = records.empty() ? 0 : depth / runner.block_tokens();
  for (int64_t block = 0; block < n_blocks; ++block)
    runner.set_block(pages, block, records[static_cast<size_t>(block) % records.size()]->rows);
  return n_blocks * runner.block_tokens();
}

// One chunk after `depth` tokens, which are run first, or filled in; verify passes before it.
Status measure_prefill(Runner& runner, const BenchOptions& options, const BlockRecords& assumed, BenchRow* row) {
  const int64_t depth = row->what.depth_tokens;
  const std::vector<int32_t> tokens =
      random_tokens(depth + options.chunk_tokens, runner.model().config().n_vocab, options.seed);
  SequencePages pages(runner.pools());
  LEVIN_TRY(pages.grow(std::ssize(tokens)));
  const auto chunk = [&](int64_t begin, int64_t end) {
    return SequenceChunk{.tokens = std::span(tokens).subspan(begin, end - begin),
                         .first_position = static_cast<int32_t>(begin),
                         .pages = &pages};
  };
  for (int64_t begin = fill(runner, assumed, pages, depth); begin < depth; begin += options.chunk_tokens) {
    row->prompt_s += seconds_of_chunk(runner, chunk(begin, std::min(begin + options.chunk_tokens, depth)));
  }
  const SequenceChunk last = chunk(depth, depth + options.chunk_tokens);
  if (options.verify_rows > 0) row->verify = measure_verify(runner, options, last);
  if (!measures_apart(runner)) runner.measure(&row->prefill_ops);
  row->prefill_s = row->prefill_ops_s = seconds_of_chunk(runner, last);
  if (measures_apart(runner) && options.measure_ops) {
    runner.measure(&row->prefill_ops);
    row->prefill_ops_s = seconds_of_chunk(runner, last);
  }
  runner.measure(nullptr);
  row->prompt_s = assumed.empty() ? row->prompt_s + row->prefill_s : 0;
  row->prefill_tokens_per_s = static_cast<double>(options.chunk_tokens) / row->prefill_s;
  return {};
}

// Preempted sequences are prefilled again, so a measurement with some is not one of decoding.
Error no_room(Runner& runner, const BenchCase& what, const BenchOptions& options) {
  return {
      ErrorKind::kUsage,
      fmt::format("decoding {} sequences at a depth of {} needs a cache of {} tokens, and it has {}; give a smaller "
                  "--batch or smaller --depths",
                  what.batch, what.depth_tokens, bench_cache_tokens(what, options), runner.pools().limits().n_tokens)};
}

struct DecodeRun {
  std::vector<double> step_ms, gap_us;
  double seconds = 0;
  int64_t n_tokens = 0;
  int64_t n_waits = 0;
  SpeculationStats speculation;

  double n_steps() const { return static_cast<double>(step_ms.size()); }
};

// All sequences of a case, from the first step after their prompts on. times: of the ops of these steps, as sums; may be null.
Result<DecodeRun> run_decode(Runner& runner, const BenchOptions& options, const BenchCase& what,
                             const BlockRecords& assumed, OpTimes* times) {
  StepLoop loop(runner, {.chunk_tokens = options.chunk_tokens,
                         .n_spec_steps = what.n_spec_steps,
                         .adapt_depth = what.adapt_depth,
                         .min_confidence = options.min_confidence,
                         .max_context_tokens = what.depth_tokens + options.decode_tokens + 2,
                         .max_running = what.batch,
                         .share_prefixes = false,
                         .prefill_first = true,
                         .overlap = options.overlap && runner.on_device(),
                         .assumed = assumed});
  DecodeRun run;
  std::vector<RequestId> ids;
  int64_t n_decoding = 0;
  for (int64_t i = 0; i < what.batch; ++i) {
    GenerateRequest request{
        .prompt = random_tokens(std::max<int64_t>(what.depth_tokens, 1), runner.model().config().n_vocab,
                                options.seed + 1 + static_cast<uint64_t>(i)),
        .max_tokens = options.decode_tokens + 1};
    request.sampling.temperature = options.temperature;
    request.sampling.seed = options.seed + static_cast<uint64_t>(i);  // of one seed all would draw the same noise
    request.on_token = [&, first = true](const TokenEvent&) mutable {
      (first ? n_decoding : run.n_tokens) += 1;
      first = false;
      return Verdict::kGoOn;
    };
    LEVIN_ASSIGN(const RequestId id, loop.submit(std::move(request)));
    ids.push_back(id);
  }
  while (n_decoding < what.batch && loop.step()) {  // prompts
    const bool waits_for_others = n_decoding < what.batch && run.n_tokens > 0;
    if (waits_for_others) return no_room(runner, what, options);
  }
  run.n_tokens = 0;  // that came with the last of the first tokens
  const int64_t n_waits_before = runner.n_waits();
  runner.measure(times);
  const Clock::time_point start = Clock::now();
  for (Clock::time_point before = start; loop.step(); before = Clock::now()) {
    run.step_ms.push_back(1000 * seconds_since(before));
    if (loop.last_step().host_gap_s) run.gap_us.push_back(1e6 * *loop.last_step().host_gap_s);
  }
  run.seconds = seconds_since(start);
  run.n_waits = runner.n_waits() - n_waits_before;
  runner.measure(nullptr);
  if (loop.counts().n_preempted > 0) return no_room(runner, what, options);
  for (const RequestId id : ids) {
    const std::unique_ptr<Generation> done = loop.take(id);
    run.speculation.n_kept += done->speculation.n_kept;
    run.speculation.n_verify_passes += done->speculation.n_verify_passes;
  }
  return run;
}

Status measure_decode(Runner& runner, const BenchOptions& options, const BlockRecords& assumed, BenchRow* row) {
  const bool apart = measures_apart(runner);
  LEVIN_ASSIGN(const DecodeRun run,
               run_decode(runner, options, row->what, assumed, apart ? nullptr : &row->decode_ops));
  row->decode_tokens_per_s = static_cast<double>(run.n_tokens) / run.seconds;
  row->decode_step_ms = median(run.step_ms);
  row->decode_gap_us = run.gap_us.empty() ? 0 : median(run.gap_us);
  row->mean_accept_length = run.speculation.mean_accept_length();
  row->decode_step_s = row->decode_ops_step_s = run.seconds / run.n_steps();
  row->decode_step_waits = static_cast<double>(run.n_waits) / run.n_steps();
  double n_measured = run.n_steps();
  if (apart && options.measure_ops) {
    LEVIN_ASSIGN(const DecodeRun of_ops, run_decode(runner, options, row->what, assumed, &row->decode_ops));
    row->decode_ops_step_s = of_ops.seconds / of_ops.n_steps();
    n_measured = of_ops.n_steps();
  }
  row->decode_ops.divide(n_measured);
  return {};
}

}  // namespace

// Whole pages of every sequence, and the one more that admission keeps free for each.
int64_t bench_cache_tokens(const BenchCase& what, const BenchOptions& options) {
  const int64_t n_slots = what.depth_tokens + options.decode_tokens + 3 + what.n_spec_steps;
  const int64_t n_pages = (n_slots + kPageTokens - 1) / kPageTokens + 1;
  return std::max(what.depth_tokens + options.chunk_tokens, what.batch * n_pages * kPageTokens);
}

Result<BenchRow> run_bench(Runner& runner, const BenchCase& what, const BenchOptions& options, LimitProbe* probe) {
  if (options.verify_rows - 1 > runner.max_drafts() || options.verify_rows > options.chunk_tokens) {
    return Error{ErrorKind::kUsage,
                 fmt::format("a pass of {} rows: there is room for {} drafts and a chunk of {} tokens; give fewer rows",
                             options.verify_rows, runner.max_drafts(), options.chunk_tokens)};
  }
  BenchRow row{.what = what, .isa = runner.isa()};
  const auto sample = [&] {
    for (int i = 0; probe != nullptr && i < kLimitSamples; ++i) probe->sample();
  };
  LEVIN_ASSIGN(const BlockRecords assumed, blocks_to_fill_with(runner, options));
  LEVIN_TRY(measure_prefill(runner, options, assumed, &row));
  sample();
  LEVIN_TRY(measure_decode(runner, options, assumed, &row));
  sample();
  if (probe != nullptr) row.limits = probe->best();
  return row;
}

}  // namespace levin
