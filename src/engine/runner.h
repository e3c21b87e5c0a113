// Steps of a model on a device: what ties a Model to threads, scratch memory and caches.
//
// A Runner executes; which tokens a step holds is for its caller to say. Tokens go in from the host. The rows that a pass
// gives stay where the model runs, as input of the passes after it; gather() picks some of them, fetch() and to_host() bring
// them to the host. Logits come to the host, or the tokens that a device chooses by them. Everything returned lives until the
// next call of begin_step().
//
// On a device weights, caches and scratch are there; a step's input goes in by one copy. Passes are enqueued, and only
// wait(), to_host() and the calls that return logits or tokens wait for them, and for all fetches before. A fault of the
// device throws a DeviceFault (tensor/device_memory.h).
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
#include "engine/head_rows.h"
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

// What the MTP layer reads besides tokens: rows of earlier passes, where the model runs.
struct MtpRows {
  View state;                          // [M, d_state()] f32
  View topk = {};                      // [M, K] i32, MtpInput::topk; empty: the layer computes its own
  std::span<const int32_t> rows = {};  // [T]: which of them belongs to each token; empty: row t to token t
};

// A head that was started. What is on the host is there once the runner has waited.
struct HeadCall {
  std::vector<bool> by_rule;  // [N]: a device chooses the row's token
  View logits;                // [rows that are not, V] f32, on the host
  View chosen;                // [N, kChosenTokenWords] i32, on the host; empty on the CPU
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
  // Those of a prompt: one less. After a prefix-cache hit the MTP layer runs the last cached token's pair with them.
  int64_t max_chunk_tokens() const { return max_step_tokens() - 1; }
  int64_t max_drafts() const { return pools_.max_undone_tokens(); }  // that a step may have
  int64_t max_sequences() const { return pools_.max_sequences(); }   // at a time
  bool keeps_all_rows() const { return pools_.keeps_all_rows(); }
  int64_t cache_bytes() const { return cache_.n_bytes(); }
  int64_t peak_scratch_bytes() const { return ctx_.arena->peak_bytes(); }

  // Records all graphs that steps with so many drafts may ask for, so that none is recorded later.
  void record_graphs(int n_drafts);
  int64_t n_graphs() const { return passes_.n_recorded() + heads_.n_recorded(); }
  int64_t n_waits() const { return n_waits_; }  // of the host for the device, so far

  Device device() const { return on_device() ? Device::kCuda : Device::kCpu; }
  ThreadPool& pool() { return pool_; }
  Isa isa() const { return isa_; }

  // Adds up the ops of the steps from now on; null: stop, and on a device wait for the last of them. Passes that are
  // measured are not replayed as graphs.
  void measure(OpTimes* times);

  // Everything returned before is gone.
  void begin_step() {
    arena_.reset();
    device_rows_.reset();
  }

  ArenaScope scope() { return ArenaScope(arena_); }  // frees at its end what came to the host since

  // When the last result of the model was there.
  std::chrono::steady_clock::time_point last_result() const { return last_result_; }

  // Trunk over the chunks' tokens.
  ForwardRows trunk(std::span<const SequenceChunk> chunks, const Probe* probe = nullptr);
  // MTP over pairs: tokens[j] stands after position first_position + j, its row of `from` belongs to that position.
  // `wanted`: the rows of all chunks' tokens whose output is asked for, ascending; nullopt: all.
  ForwardRows mtp(std::span<const SequenceChunk> chunks, const MtpRows& from,
                  std::optional<std::span<const int32_t>> wanted = std::nullopt, const Probe* probe = nullptr);
  // Blocks of drafts, of a model that makes such (block_drafting()).
  ForwardRows draft_blocks(std::span<const SequenceChunk> blocks);
  DraftTerms draft_terms(View before, View state);  // before [N] i32 of the host, state [N, D]; terms on the host
  View logits(View hidden);                         // [N, D] -> [N, V] on the host
  View draft_logits(View hidden);                   // [N, D] -> [N, V] on the host, for choosing drafts
  // The head over some rows of hidden [T, D]: enqueued, or computed on the CPU. After wait() there is a result for each row.
  HeadCall start_head(View hidden, std::span<const HeadRow> rows) { return start_head(hidden, rows, false); }
  static std::vector<HeadResult> results_of(const HeadCall& call);
  std::vector<HeadResult> draft_head(View hidden, std::span<const HeadRow> rows);  // and waits
  std::vector<int32_t> argmax(View logits);                                        // [N, V] of the host -> N token ids

  // Rows where the model runs: those of `rows` [M, W] that `which` names, and rows of the host followed by others.
  View gather(View rows, std::span<const int32_t> which);
  View place(View host, View after = {});  // [N, W], [M, W] -> [N + M, W]; host f32 or i32
  // A copy on the host, which is there once the runner has waited; on the CPU the rows themselves.
  View fetch(View rows);
  void wait();              // for all passes and fetches so far
  View to_host(View rows);  // fetches and waits

  // Blocks of sequences and their records (kv/cache.h).
  int64_t block_tokens() const { return cache_.block_tokens(); }
  int64_t block_bytes() const { return cache_.block_bytes(); }
  void copy_block(const SequencePages& pages, int64_t block, std::span<std::byte> out) const {
    cache_.copy_block(pages, block, out);
  }
  void set_block(const SequencePages& pages, int64_t block, std::span<const std::byte> record) {
    cache_.set_block(pages, block, record);
  }

 private:
  // Of a pass through trunk or MTP layer: which of its rows come out, and what goes in.
  enum class Form : uint8_t { kTrunk, kMtp, kMtpWithPicks, kMtpWanted, kMtpAppend };
  struct Forward {
    Form form = Form::kTrunk;
    std::span<const SequenceChunk> chunks;
    std::optional<std::span<const int32_t>> wanted;
    MtpRows from;
    const Probe* probe = nullptr;

    SlotRule rule() const { return form == Form::kTrunk ? SlotRule::kAtPosition : SlotRule::kAfterPosition; }
    int64_t n_tokens() const;
    int64_t n_rows() const;  // that come out
  };
  struct Input {
    Step step;
    MtpInput mtp;
  };
  // Rows of one kind on their way into a pass, and the row that stands for those that padding lacks.
  struct RowInput {
    View from;
    View padding;  // [1, W]
  };
  struct HeadInput {
    View hidden;  // [N, D] f32
    View rules;   // [N, kChoiceRuleWords] i32
  };
  struct HeadOutput {
    View logits;  // [N, V] f32; on the host of rows without a rule alone
    View chosen;  // [N, kChosenTokenWords] i32
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
  bool replays() const { return graphs_ && ctx_.times == nullptr; }
  ForwardRows forward(const Forward& f);
  ForwardRows forward_on_device(const Forward& f);
  ForwardRows compute(Form form, const Input& in, const Probe* probe);
  std::optional<StepShape> graph_shape(const Forward& f) const;
  Input send(const Forward& f, const std::optional<StepShape>& shape);
  View input_rows(const RowInput& in, View which, int64_t n_given);
  void record_pass(const PassKey& key);
  View compute_logits(View hidden, bool of_drafts);
  HeadOutput compute_head(const HeadInput& in, bool of_drafts);
  HeadInput send_head(View hidden, std::span<const HeadRow> rows, int64_t n_rows);
  void run_head(View hidden, std::span<const HeadRow> rows, bool of_drafts, const HeadOutput& to);
  HeadOutput start_head_on_device(View hidden, std::span<const HeadRow> rows, bool of_drafts);
  HeadCall start_head(View hidden, std::span<const HeadRow> rows, bool of_drafts);
  View logits_of(View hidden, bool of_drafts);
  void record_head(const HeadKey& key);
  View kept(View rows);
  ForwardRows kept(const ForwardRows& rows);
  Probe on_host(const Probe* probe);  // the same, whose functions get rows of the host

  const Model& model_;
  CudaBackend* cuda_;
  bool graphs_;
  Isa isa_;
  ThreadPool pool_;
  Arena arena_;        // of the host; pinned where results come from a device
  Arena device_rows_;  // of the device: rows that passes gave, which its scratch does not outlive
  CpuBackend cpu_;
  OpContext host_;
  OpContext ctx_;  // where the model runs
  Status ready_;
  SequencePools pools_;
  KvCache cache_;
  RecordedCalls<PassKey, ForwardRows> passes_;
  RecordedCalls<HeadKey, HeadOutput> heads_;
  int64_t n_waits_ = 0;
  std::chrono::steady_clock::time_point last_result_;
};

}  // namespace levin
