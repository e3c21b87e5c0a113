// Steps of a model on a device: what ties a Model to threads, scratch memory and caches.
//
// A Runner executes; which tokens a step holds is for its caller to say. What goes in and what comes out lies on the host,
// wherever the model runs; results live in the runner's arena until the next call of begin_step().
//
// On a device weights, caches and scratch are there; a step's input goes in and hidden rows, states, picks, row status and
// logits come back. A fault of the device throws a DeviceFault (tensor/device_memory.h).
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/cpu.h"
#include "base/thread_pool.h"
#include "engine/build_step.h"
#include "kv/cache.h"
#include "kv/sequence_pages.h"
#include "model/model.h"
#include "ops/cpu_backend.h"
#include "ops/cuda_backend.h"
#include "ops/op_times.h"

namespace levin {

struct RunnerOptions {
  CudaBackend* cuda = nullptr;  // where the model's weights are; null: on the CPU
  int n_threads = 1;
  Isa isa = Isa::kPlain;
  int64_t n_cache_tokens = 0;  // rounded up to whole pages
  // What models with windows and compressors keep per sequence is sized by these; the others do not look at them.
  int64_t n_sequences = 16;      // at a time
  int64_t n_step_tokens = 512;   // of one sequence in a step
  int64_t n_undone_tokens = 16;  // drafts that a step may turn down
};

class Runner {
 public:
  Runner(const Model& model, const RunnerOptions& options);

  // Whether the device had room for the caches; without that nothing may be run.
  const Status& ready() const { return ready_; }

  const Model& model() const { return model_; }
  SequencePools& pools() { return pools_; }
  // Tokens of one sequence that a step may have; cutting longer runs of them changes no bit.
  int64_t max_step_tokens() const { return pools_.max_step_tokens(); }
  int64_t max_drafts() const { return pools_.max_undone_tokens(); }  // that a step may have
  int64_t max_sequences() const { return pools_.max_sequences(); }   // at a time
  bool keeps_all_rows() const { return pools_.keeps_all_rows(); }
  int64_t cache_bytes() const { return cache_.n_bytes(); }
  int64_t peak_scratch_bytes() const { return ctx_.arena->peak_bytes(); }

  ThreadPool& pool() { return pool_; }
  Isa isa() const { return isa_; }

  void measure(OpTimes* times) { ctx_.times = times; }  // ops of the steps from now on; null: stop

  void begin_step() { arena_.reset(); }  // everything returned before is gone

  ArenaScope scope() { return ArenaScope(arena_); }  // frees at its end what was returned since

  // When the last call that ran some of the model returned.
  std::chrono::steady_clock::time_point last_result() const { return last_result_; }

  // Trunk over the chunks' tokens.
  ForwardRows trunk(std::span<const SequenceChunk> chunks, const Probe* probe = nullptr);
  // MTP over pairs: tokens[j] stands after position first_position + j, its row of `in` belongs to that position.
  // `wanted`: the rows of all chunks' tokens whose output is asked for, ascending; nullopt: all.
  ForwardRows mtp(std::span<const SequenceChunk> chunks, const MtpInput& in,
                  std::optional<std::span<const int32_t>> wanted = std::nullopt, const Probe* probe = nullptr);
  // Blocks of drafts, of a model that makes such (block_drafting()).
  ForwardRows draft_blocks(std::span<const SequenceChunk> blocks);
  DraftTerms draft_terms(View before, View state);  // before [N] i32, state [N, D]
  View logits(View hidden);                         // [N, D] -> [N, V]
  View draft_logits(View hidden);                   // [N, D] -> [N, V], for choosing drafts
  std::vector<int32_t> argmax(View logits);         // [N, V] -> N token ids
  // Blocks of sequences and their records (kv/cache.h).
  int64_t block_tokens() const { return cache_.block_tokens(); }
  int64_t block_bytes() const { return cache_.block_bytes(); }
  void copy_block(const SequencePages& pages, int64_t block, std::span<std::byte> out) const {
    cache_.copy_block(pages, block, out);
  }
  void set_block(const SequencePages& pages, int64_t block, std::span<const std::byte> record) {
    cache_.set_block(pages, block, record);
  }

  View keep(View rows);  // a copy of [N, W] f32 or i32 that lives as long as the step

 private:
  bool on_device() const { return cuda_ != nullptr; }
  // Scratch of one call on the device; on the CPU, where results lie in the same arena, it is kept.
  std::unique_ptr<ArenaScope> call_scope();
  Step step_of(std::span<const SequenceChunk> chunks, SlotRule rule, std::optional<std::span<const int32_t>> wanted);
  View to_device(View rows);  // itself on the CPU, as below
  View to_host(View rows);
  ForwardRows to_host(const ForwardRows& rows);
  Probe on_host(const Probe* probe);  // the same, whose functions get rows of the host
  View logits_of(View hidden, View (Model::*head)(OpContext&, View) const);

  const Model& model_;
  CudaBackend* cuda_;
  Isa isa_;
  ThreadPool pool_;
  Arena arena_;  // of the host; pinned where results come from a device
  CpuBackend cpu_;
  OpContext host_;
  OpContext ctx_;  // where the model runs
  Status ready_;
  SequencePools pools_;
  KvCache cache_;
  std::chrono::steady_clock::time_point last_result_;
};

}  // namespace levin
