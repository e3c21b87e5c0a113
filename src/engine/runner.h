// Steps of a model on a device: what ties a Model to threads, scratch memory and caches.
//
// A Runner executes; which tokens a step holds is for its caller to say. What goes in and what comes out lies on the host,
// wherever the model runs; results live in the runner's arena until the next call of begin_step().
//
// On a device weights, caches and scratch are there; a step's input goes in by one copy, and hidden rows, states, indices, row
// status and logits come back. A fault of the device throws a DeviceFault (tensor/device_memory.h).
//
// Graphs    passes over few rows are recorded once for each padded shape (StepShape) and form of pass, and replayed: the host
//           starts one graph instead of every kernel. The bits are the same. Passes of more than kMostGraphRows rows, where
//           kernels take longer than their start, and passes with a probe are not recorded
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/cpu.h"
#include "base/thread_pool.h"
#include "engine/build_step.h"
#include "engine/recorded_calls.h"
#include "kv/cache.h"
#include "kv/sequence_pages.h"
#include "model/model.h"
#include "ops/cpu_backend.h"
#include "ops/cuda_backend.h"
#include "ops/op_times.h"

namespace levin {

constexpr int64_t kMostGraphRows = 128;

struct RunnerOptions {
  CudaBackend* cuda = nullptr;  // where the model's weights are; null: on the CPU
  bool graphs = true;           // on a device
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

  // Records all graphs that steps with so many drafts may ask for, so that none is recorded later.
  void record_graphs(int n_drafts);
  int64_t n_graphs() const { return passes_.n_recorded() + heads_.n_recorded(); }
  int64_t n_waits() const { return n_waits_; }  // of the host for the device, so far

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
  // Of a pass through trunk or MTP layer: which of its rows come out, and what goes in.
  enum class Form : uint8_t { kTrunk, kMtp, kMtpWithPicks, kMtpWanted, kMtpAppend };
  struct Forward {
    Form form = Form::kTrunk;
    std::span<const SequenceChunk> chunks;
    std::optional<std::span<const int32_t>> wanted;
    MtpInput in;
    const Probe* probe = nullptr;

    SlotRule rule() const { return form == Form::kTrunk ? SlotRule::kAtPosition : SlotRule::kAfterPosition; }
    int64_t n_rows() const;  // that come out
  };
  struct Input {
    Step step;
    MtpInput mtp;
  };
  struct PassKey {
    Form form = Form::kTrunk;
    StepShape shape;
    auto operator<=>(const PassKey&) const = default;
  };
  struct HeadKey {
    bool of_drafts = false;
    int64_t n_rows = 0;
    auto operator<=>(const HeadKey&) const = default;
  };

  bool on_device() const { return cuda_ != nullptr; }
  void wait();
  ForwardRows forward(const Forward& f);
  ForwardRows forward_on_device(const Forward& f);
  ForwardRows compute(Form form, const Input& in, const Probe* probe);
  std::optional<StepShape> graph_shape(const Forward& f) const;
  Input send(const Forward& f, const std::optional<StepShape>& shape);
  void record_pass(const PassKey& key);
  View head_on_device(View hidden, bool of_drafts);
  View head(View hidden, bool of_drafts);
  View logits_of(View hidden, bool of_drafts);
  void record_head(const HeadKey& key);
  View to_host(View rows);
  ForwardRows to_host(const ForwardRows& rows);
  Probe on_host(const Probe* probe);  // the same, whose functions get rows of the host

  const Model& model_;
  CudaBackend* cuda_;
  bool graphs_;
  Isa isa_;
  ThreadPool pool_;
  Arena arena_;  // of the host; pinned where results come from a device
  CpuBackend cpu_;
  OpContext host_;
  OpContext ctx_;  // where the model runs
  Status ready_;
  SequencePools pools_;
  KvCache cache_;
  RecordedCalls<PassKey, ForwardRows> passes_;
  RecordedCalls<HeadKey, View> heads_;
  int64_t n_waits_ = 0;
  std::chrono::steady_clock::time_point last_result_;
};

}  // namespace levin
