// Steps of a model on a device: what ties a Model to threads, scratch memory and caches.
//
// A Runner executes; which tokens a step holds is for its caller to say. Tokens go in from the host. The rows that a pass
// gives stay where the model runs, as input of the passes after it; gather() picks some of them, fetch() and to_host() bring
// them to the host. Logits come to the host, or the tokens that a device chooses by them. Everything returned lives until the
// next call of begin_step(), or the second of begin_step_ahead().
//
// On a device weights, caches and scratch are there; a step's input goes in by one copy. Passes are enqueued, and only
// wait(), to_host() and the calls that return logits or tokens wait for them, and for all fetches before. A fault of the
// device throws a DeviceFault (tensor/device_memory.h).
//
// Ahead     a step may begin before the results of the last one are there. Its passes follow those of the last step, and
//           the host waits for the results of either by itself: so a device has work while the host reads results
//
// Edits     a pass whose input depends on results that only the device has yet is given what the host knows, and ops that edit
//           it there before it runs (ops/draft_steps.h)
//
// Graphs    passes over few rows are recorded once for each padded shape (StepShape) and form of pass, and replayed: the host
//           starts one graph instead of every kernel. The bits are the same. Passes of more than kMostGraphRows rows, where
//           kernels take longer than their start, and passes with a probe are not recorded, nor what the device has no
//           memory for any more
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/thread_pool.h"
#include "engine/build_step.h"
#include "engine/graph_plan.h"
#include "engine/head_rows.h"
#include "engine/recorded_calls.h"
#include "kv/cache.h"
#include "kv/sequence_pages.h"
#include "model/model.h"
#include "ops/cpu_backend.h"
#include "ops/cuda_backend.h"
#include "ops/op_times.h"

namespace levin {

constexpr int64_t kMostRowsAhead = 512;  // of the trunk in a step ahead

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
  int64_t n_step_rows = 0;       // of a step, all sequences together; 0: n_step_tokens
};

// What the MTP layer reads besides tokens: rows of earlier passes, where the model runs.
struct MtpRows {
  View state;                          // [M, d_state()] f32
  View topk = {};                      // [M, K] i32, MtpInput::topk; empty: the layer computes its own
  std::span<const int32_t> rows = {};  // [T]: which of them belongs to each token; empty: row t to token t
};

// Enqueues ops that change a step's tensors, which are where it is about to run. They leave the arena as it is.
using StepEdit = std::function<void(OpContext&, const Step&)>;

// A head that was started. What is on the host is there once the runner has waited.
struct HeadCall {
  std::vector<bool> by_rule;  // [N]: a device chooses the row's token
  View logits;                // [rows that are not, V] f32, on the host
  View chosen;                // [N, kChosenTokenWords] i32, on the host; empty on the CPU
  View chosen_there;          // the same on the device, if it chooses all of them
};

// A step of drafts: rows of the MTP layer, and the drafts that the head chose by them.
struct DraftStep {
  ForwardRows rows;  // hidden may be empty
  HeadCall head;
};

constexpr int64_t kScoreRows = 64;  // rows of a prompt whose logits are on the host at a time

class Runner {
 public:
  Runner(const Model& model, const RunnerOptions& options);
  ~Runner();

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
  int64_t most_rows() const { return n_step_rows_; }                 // of a pass, that memory is planned for
  bool keeps_all_rows() const { return pools_.keeps_all_rows(); }
  int64_t cache_bytes() const { return cache_.n_bytes(); }
  int64_t peak_scratch_bytes() const { return ctx_.arena->peak_bytes(); }

  // Records all graphs that steps with so many drafts may ask for, so that none is recorded later. kOutOfMemory where the
  // device has no room for all of them.
  Status record_graphs(int n_drafts);
  int64_t n_graphs() const { return passes_.n_recorded() + heads_.n_recorded(); }
  int64_t n_waits() const { return n_waits_; }  // of the host for the device, so far

  bool on_device() const { return cuda_ != nullptr; }
  Device device() const { return on_device() ? Device::kCuda : Device::kCpu; }
  ThreadPool& pool() { return pool_; }
  Isa isa() const { return isa_; }

  // Adds up the ops of the steps from now on; null: stop, and on a device wait for the last of them. Passes that are
  // measured are not replayed as graphs.
  void measure(OpTimes* times);

  // Everything returned before is gone. Steps are numbered in the order in which they begin.
  int64_t begin_step();
  // Whether steps may begin ahead: on a device, where no op is measured, and of a model whose caches keep all rows. Others
  // write over rows that are still to be kept.
  bool has_steps_ahead() const { return on_device() && keeps_all_rows() && ctx_.times == nullptr; }
  // What the last step returned stays until the next one begins. What the one before it returned, which must have
  // been waited for, is gone.
  int64_t begin_step_ahead();

  ArenaScope scope() { return ArenaScope(host_rows()); }  // frees at its end what came to the host since

  // When the last result of the model was there.
  Clock::time_point last_result() const { return last_result_; }
  // How long the device had nothing to do before the last trunk that was waited for, by its own clock; nullopt: nobody knows.
  std::optional<double> idle_before_trunk_s() const { return idle_before_trunk_s_; }

  // Trunk over the chunks' tokens: T rows, those of all chunks in their order (ForwardRows, model/model.h). A chunk
  // without room throws a StepFault (check_room(), engine/build_step.h).
  ForwardRows trunk(std::span<const SequenceChunk> chunks, const Probe* probe = nullptr);
  // MTP over pairs: tokens[j] stands after position first_position + j, its row of `from` belongs to that position.
  // `wanted`: the rows of all chunks' tokens whose output is asked for, ascending; nullopt: all.
  ForwardRows mtp(std::span<const SequenceChunk> chunks, const MtpRows& from,
                  std::optional<std::span<const int32_t>> wanted = std::nullopt, const Probe* probe = nullptr);
  // MTP over pairs that nobody wants rows of. state [T, d_state()] f32 of the host: row t belongs to token t.
  void append_pairs(std::span<const SequenceChunk> chunks, View state);
  // The same as trunk() and mtp() of tokens, or of pairs, that the device still changes. Without `wanted` all rows come out.
  ForwardRows edited_trunk(std::span<const SequenceChunk> chunks, const StepEdit& edit);
  ForwardRows edited_mtp(std::span<const SequenceChunk> chunks, const MtpRows& from,
                         std::optional<std::span<const int32_t>> wanted, const StepEdit& edit);
  // On a device: pairs that it still changes, one of each chunk, and the head for drafts over their rows, by rules [N,
  // kChoiceRuleWords] i32 that are there too. Recorded as one graph, of which nothing runs if all of the pairs have become
  // padding: what the step gives then means nothing.
  DraftStep edited_draft_step(std::span<const SequenceChunk> pairs, const MtpRows& from, View rules,
                              const StepEdit& edit);
  // Blocks of drafts, of a model that makes such (block_drafting()).
  ForwardRows draft_blocks(std::span<const SequenceChunk> blocks);
  DraftTerms draft_terms(View before, View state);  // before [N] i32 of the host, state [N, D]; terms on the host
  View logits(View hidden);                         // [N, D] -> [N, V] on the host
  View draft_logits(View hidden);                   // [N, D] -> [N, V] on the host, for choosing drafts
  // The head over some rows of hidden [T, D]: enqueued, or computed on the CPU. After wait() there is a result for each row.
  // `rules` [N, kChoiceRuleWords] i32, on a device: in place of those that the rows have.
  HeadCall start_head(View hidden, std::span<const HeadRow> rows, View rules = {}) {
    return start_head({.hidden = hidden, .rows = rows, .rules = rules}, false);
  }
  // The head for drafts over the rows of hidden [N, D] on a device, by rules [N, kChoiceRuleWords] i32 that are there too.
  HeadCall start_draft_head(View hidden, View rules);
  static std::vector<HeadResult> results_of(const HeadCall& call);
  std::vector<HeadResult> draft_head(View hidden, std::span<const HeadRow> rows);  // and waits
  std::vector<int32_t> argmax(View logits);                                        // [N, V] of the host -> N token ids

  // Rows where the model runs: those of `rows` [M, W] that `which` names, and rows of the host followed by others.
  View gather(View rows, std::span<const int32_t> which);
  View place(View host, View after = {});  // [N, W], [M, W] -> [N + M, W]; host f32 or i32
  // A copy on the host, which is there once the runner has waited; on the CPU the rows themselves.
  View fetch(View rows);
  void wait();  // for all passes and fetches so far
  // For those of one of the last two steps, and not for the step ahead of it.
  void wait_for(int64_t step);
  View to_host(View rows);  // fetches and waits

  // Blocks of sequences and their records (kv/cache.h).
  int64_t block_tokens() const { return cache_.block_tokens(); }
  int64_t block_bytes() const { return cache_.block_bytes(); }
  void copy_block(const SequencePages& pages, int64_t block, std::span<std::byte> out) const {
    cache_.copy_block(pages, block, out);
  }
  // The same in parallel with the steps that follow.
  std::unique_ptr<BlockCopy> start_copy(const SequencePages& pages, int64_t block, std::span<std::byte> out);
  void set_block(const SequencePages& pages, int64_t block, std::span<const std::byte> record);

 private:
  using Form = PassForm;
  struct Forward {
    Form form = Form::kTrunk;
    std::span<const SequenceChunk> chunks;
    std::optional<std::span<const int32_t>> wanted;
    MtpRows from;
    const Probe* probe = nullptr;
    const StepEdit* edit = nullptr;
    View rules = {};  // of drafts, on the device

    SlotRule rule() const { return form == Form::kTrunk ? SlotRule::kAtPosition : SlotRule::kAfterPosition; }
    int64_t n_tokens() const;
    int64_t n_rows() const;  // that come out
  };
  struct Input {
    Step step;
    MtpInput mtp;
    View rules;  // [T, kChoiceRuleWords] i32, of drafts
  };
  // Rows of one kind on their way into a pass, and the row that stands for those that padding lacks.
  struct RowInput {
    View from;
    View padding;  // [1, W]
  };
  // Of a head: which rows of what, and how their tokens are chosen.
  struct HeadRows {
    View hidden;
    std::span<const HeadRow> rows;
    View rules = {};  // on the device, in place of the rows' own; may be empty

    HeadRows part(int64_t first, int64_t n) const;
  };
  struct HeadInput {
    View hidden;  // [N, D] f32
    View rules;   // [N, kChoiceRuleWords] i32
  };
  struct HeadOutput {
    View logits;      // [N, V] f32; on the host of rows without a rule alone
    View chosen;      // [N, kChosenTokenWords] i32
    View there = {};  // the same, kept on the device; empty: nobody needs it
  };
  // Of the device's clock, which writes them.
  struct Stamps {
    int64_t trunk_began = 0;
    int64_t work_ended = 0;  // that was waited for
  };
  // What belongs to every other step: two steps may be under way.
  struct Side {
    Arena host_rows;    // pinned where results come from a device
    Arena device_rows;  // rows that passes gave, which the device's scratch does not outlive
    std::unique_ptr<WorkMark> end;
    Stamps* stamps = nullptr;  // pinned
  };
  struct PassOutput {
    ForwardRows rows;
    View chosen = {};  // [T, kChosenTokenWords] i32, of drafts
  };

  bool replays() const { return graphs_ && ctx_.times == nullptr; }
  static Form mtp_form(const MtpRows& from, const std::optional<std::span<const int32_t>>& wanted);
  ForwardRows forward(const Forward& f);
  PassOutput forward_on_device(const Forward& f);
  PassOutput run_pass(const Forward& f, const std::optional<StepShape>& shape);
  ForwardRows compute(Form form, const Input& in, const Probe* probe);
  PassOutput compute_pass(Form form, const Input& in, const Probe* probe);
  std::optional<StepShape> graph_shape(const Forward& f) const;
  Input send(const Forward& f, const std::optional<StepShape>& shape);
  View input_rows(const RowInput& in, View which, int64_t n_given);
  Status record_pass(const PassKey& key);
  Status record_head(const HeadKey& key);
  bool is_recorded(const PassKey& key);
  bool is_recorded(const HeadKey& key);
  void note_recording(const Status& status);
  View compute_logits(View hidden, bool of_drafts);
  HeadOutput compute_head(const HeadInput& in, bool of_drafts);
  HeadInput send_head(const HeadRows& in, int64_t n_rows);
  void run_head(const HeadRows& in, bool of_drafts, const HeadOutput& to);
  HeadOutput start_head_on_device(const HeadRows& in, bool of_drafts);
  HeadCall start_head(const HeadRows& in, bool of_drafts);
  Status open_sides();
  Side& side_of(int64_t step) { return sides_[static_cast<size_t>(step % 2)]; }
  Arena& host_rows() { return side_of(step_).host_rows; }
  Arena& device_rows() { return side_of(step_).device_rows; }
  Arena& rows_where_model_runs() { return on_device() ? device_rows() : host_rows(); }
  void hold_for_copies();
  void stamp_end();
  void note_results(const Side& side);
  View logits_of(View hidden, bool of_drafts);
  View kept(View rows);
  ForwardRows kept(const ForwardRows& rows);
  PassOutput kept(const PassOutput& out);
  Probe on_host(const Probe* probe);  // the same, whose functions get rows of the host

  const Model& model_;
  CudaBackend* cuda_;
  bool graphs_;
  bool has_graph_memory_ = true;  // for more of them
  Isa isa_;
  ThreadPool pool_;
  std::array<Side, 2> sides_;
  int64_t step_ = 0;
  bool has_unwaited_pass_ = false;  // of the MTP layer by itself, whose rows may be copied already
  bool is_ahead_ = false;           // a step began ahead of another, and nobody has waited for all since
  CpuBackend cpu_;
  OpContext host_;
  OpContext ctx_;  // where the model runs
  Status ready_;
  int64_t n_step_rows_;
  SequencePools pools_;
  KvCache cache_;
  RecordedCalls<PassKey, PassOutput> passes_;
  RecordedCalls<HeadKey, HeadOutput> heads_;
  int64_t n_freed_pages_ = 0;  // before the last step
  int64_t n_waits_ = 0;
  Clock::time_point last_result_;

  Buffer stamps_;       // pinned
  Buffer trunk_began_;  // of the device
  Stamps last_stamps_;
  std::optional<double> idle_before_trunk_s_;
};

}  // namespace levin
