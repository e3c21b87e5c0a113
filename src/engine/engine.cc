#include "engine/engine.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "arch/load_config.h"
#include "base/clock.h"
#include "base/memory.h"
#include "engine/bench.h"
#include "engine/drafter.h"
#include "engine/engine_load.h"
#include "engine/fingerprint.h"
#include "engine/graph_plan.h"
#include "engine/runner.h"
#include "engine/step_loop.h"
#include "engine/trace.h"
#include "io/safetensors.h"
#include "model/memory_plan.h"
#include "model/op_forms.h"
#include "model/place_weights.h"
#include "ops/cuda_backend.h"
#include "ops/kernel_registry.h"

namespace levin {
namespace {

double mebibytes(int64_t n_bytes) { return static_cast<double>(n_bytes) / (1024.0 * 1024.0); }

// Nothing for dummy weights.
Result<std::optional<io::Checkpoint>> open_checkpoint(const EngineOptions& options) {
  if (options.load_format == LoadFormat::kDummy) return std::optional<io::Checkpoint>();
  LEVIN_ASSIGN(io::Checkpoint checkpoint, io::Checkpoint::open(options.model_folder));
  return std::optional(std::move(checkpoint));
}

bool has_tuned_kernels() { return cuda::find_device(0, cuda::KernelSet::kSm90).ok(); }

// The tuned kernels round as `official` does, and no other mode.
cuda::KernelSet device_kernels(const EngineOptions& options) {
  const bool tuned = options.kernels == DeviceKernels::kAuto && options.numerics == NumericsMode::kOfficial;
  return tuned && has_tuned_kernels() ? cuda::KernelSet::kSm90 : cuda::KernelSet::kPlain;
}

// What memory is set up for, decided before anything is read.
struct Room {
  int64_t n_context_tokens = 0;
  int64_t n_prefix_pages = 0;  // of prefixes, kept in addition to the caches
  int64_t scratch_bytes = 0;   // on a device
  int64_t weights_bytes = 0;
};

// A system that does not tell is taken to have enough.
int64_t available_host_bytes() {
  const MemoryInfo memory = memory_info();
  return memory.total_bytes > 0 ? memory.available_bytes : std::numeric_limits<int64_t>::max() / 2;
}

// Device memory in addition to what is planned: what the driver takes for its own while kernels run.
constexpr int64_t kDriverBytes = int64_t{256} << 20;

// Of any context that is chosen within the options.
int64_t most_graphs_bytes(const EngineOptions& options, const ModelConfig& config, const MemoryPlan& plan) {
  const int64_t longest = options.max_model_len_tokens > 0 ? options.max_model_len_tokens : config.max_position;
  const GraphPlan graphs = plan_graphs({.n_sequences = options.max_running,
                                        .n_tokens = std::max(longest + 1, options.cache_tokens),
                                        .n_drafts = plan.mtp_weights_bytes > 0 ? options.n_spec_steps : 0,
                                        .drafts_blocks = config.n_draft_block > 0,
                                        .shares_topk = config.share_topk_across_drafts});
  // what keeps windows and states has no tuned attention
  const bool tuned = device_kernels(options) == cuda::KernelSet::kSm90 && plan.sequence_bytes == 0;
  return graphs_bytes(graphs, config.n_layers, tuned);
}

// Of a step: decoding may have more than a chunk.
int64_t most_step_rows(const EngineOptions& options) {
  const SchedulerOptions steps{.step_tokens = options.chunk_tokens,
                               .chunk_tokens = options.chunk_tokens,
                               .max_running = options.max_running,
                               .lookahead_tokens = 1 + options.n_spec_steps};
  return steps.most_rows();
}

// `cuda` is null on the CPU. On a device weights, caches and workspace lie there, and prefixes on the host.
Result<Room> plan_room(const EngineOptions& options, const ModelConfig& config, const Numerics& numerics,
                       const std::optional<io::Checkpoint>& checkpoint, CudaBackend* cuda) {
  const int64_t n_graph_rows = cuda != nullptr && options.graphs ? kMostGraphRows : 0;
  MemoryPlan plan = plan_memory(
      config, numerics, checkpoint ? &*checkpoint : nullptr,
      {.n_sequences = options.max_running, .n_step_tokens = options.chunk_tokens, .n_undone = options.n_spec_steps},
      std::max(most_step_rows(options), n_graph_rows));
  ContextRequest request{.asked_tokens = options.max_model_len_tokens,
                         .max_position = config.max_position,
                         .available_bytes = available_host_bytes()};
  int64_t prefix_bytes = 0;
  if (options.share_prefixes && plan.block_bytes > 0) {
    const MemoryPlan on_host = cuda == nullptr ? plan : MemoryPlan{.block_bytes = plan.block_bytes};
    prefix_bytes = options.prefix_memory_bytes.value_or(choose_prefix_bytes(on_host, request));
  }
  const int64_t scratch_bytes = device_workspace_bytes(plan);
  if (cuda != nullptr) {
    plan.workspace_bytes = scratch_bytes + plan.step_rows_bytes + step_rows_bytes(config, kMostRowsAhead);
    if (options.graphs) plan.graphs_bytes = most_graphs_bytes(options, config, plan);
    request.available_bytes = std::max<int64_t>(0, cuda->available_bytes() - kDriverBytes);
    request.where = " on " + cuda->device().name;
  } else {
    plan.prefix_bytes = prefix_bytes;
  }
  const Result<int64_t> n_tokens = choose_context(plan, request);
  if (n_tokens.ok()) {
    LEVIN_TRY(check_cache_tokens(plan, request, options.cache_tokens));
    return Room{.n_context_tokens = *n_tokens,
                .n_prefix_pages = plan.block_bytes > 0 ? prefix_bytes / plan.block_bytes : 0,
                .scratch_bytes = scratch_bytes,
                .weights_bytes = plan.weights_bytes};
  }
  // a config that fits neither the tensors nor the memory is first of all wrong
  if (checkpoint) LEVIN_TRY(check_weights(config, *checkpoint));
  return n_tokens.error();
}

// Onto the device, if there is one.
Result<ModelWeights> read_weights(const EngineOptions& options, const ModelConfig& config, const Numerics& numerics,
                                  const std::optional<io::Checkpoint>& checkpoint, const LoadProgress& progress,
                                  CudaBackend* cuda, std::vector<std::string>* warnings) {
  ThreadPool pool(options.n_threads);
  const MatrixForm form = cuda != nullptr ? MatrixForm::kRowsInPlace : MatrixForm::kPanels;
  Result<ModelWeights> weights = checkpoint
                                     ? load_weights(config, numerics, *checkpoint, pool, progress, warnings, form)
                                     : dummy_weights(config, numerics, pool, form);
  if (weights.ok() && options.n_spec_steps > 0) add_draft_head(numerics, pool, *weights);
  if (weights.ok() && cuda != nullptr) LEVIN_TRY(place_weights(*cuda, pool, *weights));
  return weights;
}

Result<std::unique_ptr<CudaBackend>> open_device(const EngineOptions& options, const ModelConfig& config) {
  const Architecture& family = *config.family;
  if (options.device == Device::kCpu) return std::unique_ptr<CudaBackend>();
  if (!family.cuda_lacks.empty()) {
    return Error{ErrorKind::kUsage, fmt::format("--device cuda: {} runs on the CPU alone, CUDA lacks {}; leave "
                                                "--device out",
                                                family.name, family.cuda_lacks)};
  }
  return open_cuda(
      {.kernels = device_kernels(options), .scratch_bytes = tuned_scratch_bytes(config, options.chunk_tokens)});
}

// What runs each form in which the model calls the ops, so that no kernel is missed in a request.
Result<std::vector<ChosenKernel>> choose_kernels_of(const EngineOptions& options, const ModelConfig& config,
                                                    const Numerics& numerics,
                                                    const std::optional<io::Checkpoint>& checkpoint) {
  const KernelSet set = options.device == Device::kCpu
                            ? cpu_kernel_set(options.isa.value_or(cpu_info().preferred_isa()))
                            : cuda_kernel_set(device_kernels(options));
  return choose_kernels(set, op_forms(config, numerics, checkpoint ? &*checkpoint : nullptr));
}

// Of a device the models' products have one form; a head in e4m3 for drafts would not be faster.
Numerics numerics_on(Device device, Numerics numerics) {
  if (device == Device::kCuda) numerics.fp8_draft_head = false;
  return numerics;
}

// The set whose kernels run, "avx2", "cuda-sm90"; the device, if there is one; and the kernel of each form.
struct RunningKernels {
  std::string set;
  std::string device;  // "NVIDIA H100 (sm_90)"
  std::vector<ChosenKernel> chosen;

  std::string name() const { return device.empty() ? set : fmt::format("{} on {}", set, device); }
};

RunningKernels running_kernels(const EngineOptions& options, const CudaBackend* cuda, Isa isa,
                               std::vector<ChosenKernel> chosen) {
  if (cuda == nullptr) return {std::string(isa_name(isa)), "", std::move(chosen)};
  return {std::string(cuda::kernel_set_name(device_kernels(options))),
          fmt::format("{} (sm_{})", cuda->device().name, cuda->device().arch), std::move(chosen)};
}

// Which ops run on which kernels of a device that has two sets, a line each; or why the tuned ones are not used.
std::string kernel_choice_text(const EngineOptions& options, const RunningKernels& kernels) {
  if (options.device == Device::kCpu) return {};
  constexpr std::string_view kIndent = "          ";
  if (kernels.set == cuda::kernel_set_name(cuda::KernelSet::kSm90)) {
    std::string text;
    for (const std::string& line : kernel_lines(kernels.chosen)) text += fmt::format("{}{}\n", kIndent, line);
    return text;
  }
  if (options.kernels == DeviceKernels::kPlain || !has_tuned_kernels()) return {};
  return fmt::format("{}cuda-sm90 is not used: its tuned kernels round as --numerics official does\n", kIndent);
}

// The capacity of the KV cache, and the longest context if there is room for several.
std::string cache_text(int64_t n_context_tokens, int64_t n_cache_tokens) {
  if (n_cache_tokens <= n_context_tokens) return fmt::format("{} tokens", n_context_tokens);
  return fmt::format("{} tokens, at most {} per request", n_cache_tokens, n_context_tokens);
}

// Of weights that take a while.
std::string weights_rate_text(const WeightsLoad& weights) {
  constexpr int64_t kFewBytes = int64_t{1} << 30;
  if (weights.n_bytes < kFewBytes) return "";
  return fmt::format(", {:.1f} GB of weights at {:.2f} GB/s", static_cast<double>(weights.n_bytes) / 1e9,
                     weights.gb_per_s());
}

std::string_view drafter_text(const Model& model) {
  if (!model.has_mtp()) return "";
  return model.block_drafting() != nullptr ? " and a block drafter" : " and MTP";
}

// Null where none is asked for. A drafter that needs taps resumes from the state stored with a page; rows of any other are
// written by the trunk's own step, whether somebody drafts or not.
Result<std::unique_ptr<PageStore>> open_disk(const EngineOptions& options, const Model& model, const Drafter& drafter,
                                             const std::string& kernels,
                                             const std::optional<io::Checkpoint>& checkpoint) {
  if (options.cache_dir.empty()) return std::unique_ptr<PageStore>();
  const CacheLayout layout = model.cache_layout();
  LEVIN_ASSIGN(const Digest fingerprint, cache_fingerprint({.model_folder = options.model_folder,
                                                            .overrides = overrides_text(options.overrides),
                                                            .checkpoint = checkpoint ? &*checkpoint : nullptr,
                                                            .numerics = model.numerics().describe(),
                                                            .kernels = kernels,
                                                            .n_page_tokens = layout.block_tokens(),
                                                            .drafts = drafter.needs_taps()}));
  return PageStore::open({.folder = options.cache_dir,
                          .max_bytes = options.cache_dir_bytes,
                          .fingerprint = fingerprint,
                          .n_tokens = layout.block_tokens(),
                          .n_row_bytes = layout.block_bytes(),
                          .n_state = drafter.needs_taps() ? model.d_state() : 0,
                          .note = options.note});
}

Status record_graphs(Runner& runner, int n_drafts) {
  const Status status = runner.record_graphs(n_drafts);
  if (status.ok()) return {};
  Error error = status.error();
  error.message += fmt::format(" after {} graphs; give a smaller --max-model-len or --cache-tokens, or --graphs off",
                               runner.n_graphs());
  return error;
}

}  // namespace

struct Engine::State {
  std::unique_ptr<CudaBackend> cuda;  // null on the CPU
  EngineOptions options;
  std::vector<std::string> warnings;
  RunningKernels kernels;
  Room room;
  Isa isa;
  WeightsLoad weights;
  double load_s = 0;
  std::unique_ptr<Model> model;
  Runner runner;
  std::unique_ptr<StepLoop> loop;  // made by start()
  int64_t n_graphs_at_load = 0;
  int64_t graph_bytes_at_load = 0;   // of the device
  std::optional<LimitProbe> limits;  // made when a case is first measured with them
  std::optional<double> device_read_gb_per_s;

  State(std::unique_ptr<CudaBackend> device, EngineOptions o, std::vector<std::string> w, RunningKernels k,
        const Room& r, Isa chosen_isa, std::unique_ptr<Model> m)
      : cuda(std::move(device)),
        options(std::move(o)),
        warnings(std::move(w)),
        kernels(std::move(k)),
        room(r),
        isa(chosen_isa),
        model(std::move(m)),
        runner(*model, {.cuda = cuda.get(),
                        .graphs = options.graphs,
                        .n_threads = options.n_threads,
                        .isa = isa,
                        .n_cache_tokens = std::max(room.n_context_tokens + 1, options.cache_tokens),
                        .n_sequences = options.max_running,
                        .n_step_tokens = options.chunk_tokens,
                        .n_undone_tokens = options.n_spec_steps,
                        .n_step_rows = most_step_rows(options)}) {}

  void start(std::unique_ptr<Drafter> drafter, std::shared_ptr<PageStore> disk) {
    const LoopOptions loop_options{.chunk_tokens = options.chunk_tokens,
                                   .n_spec_steps = options.n_spec_steps,
                                   .adapt_depth = options.adapt_spec_depth,
                                   .min_confidence = options.min_confidence,
                                   .max_context_tokens = room.n_context_tokens,
                                   .max_running = options.max_running,
                                   .share_prefixes = options.share_prefixes,
                                   .overlap = options.overlap && cuda != nullptr,
                                   .n_host_blocks = room.n_prefix_pages,
                                   .disk = std::move(disk)};
    loop = std::make_unique<StepLoop>(runner, loop_options, std::move(drafter));
  }
};

Engine::Engine(std::unique_ptr<State> state) : state_(std::move(state)) {}
Engine::~Engine() = default;

Result<std::unique_ptr<Engine>> Engine::load(const EngineOptions& options, const LoadProgress& progress) {
  const Clock::time_point start = Clock::now();
  LEVIN_ASSIGN(ParsedConfig parsed, load_model_config(options.model_folder, *options.registry, options.overrides));
  LEVIN_ASSIGN(const Numerics mode, make_numerics(options.numerics, options.kv_cache_dtype));
  const Numerics numerics = numerics_on(options.device, numerics_of_family(mode, *parsed.config.family));
  LEVIN_ASSIGN(std::unique_ptr<CudaBackend> cuda, open_device(options, parsed.config));
  LEVIN_ASSIGN(const std::optional<io::Checkpoint> checkpoint, open_checkpoint(options));
  LEVIN_ASSIGN(std::vector<ChosenKernel> chosen, choose_kernels_of(options, parsed.config, numerics, checkpoint));
  LEVIN_ASSIGN(const Room room, plan_room(options, parsed.config, numerics, checkpoint, cuda.get()));
  std::vector<std::string> warnings = std::move(parsed.warnings);
  const Clock::time_point weights_start = Clock::now();
  LEVIN_ASSIGN(ModelWeights weights,
               read_weights(options, parsed.config, numerics, checkpoint, progress, cuda.get(), &warnings));
  const WeightsLoad weights_load{.n_bytes = room.weights_bytes, .seconds = seconds_since(weights_start)};
  if (cuda != nullptr) cuda->arena().reserve(room.scratch_bytes);
  const Isa isa = options.isa.value_or(cpu_info().preferred_isa());
  std::unique_ptr<Model> model = make_model(std::move(parsed.config), numerics, std::move(weights));
  if (options.prefix_memory_bytes && model->cache_layout().keeps_all_rows()) {
    warnings.emplace_back("--prefix-memory is not used: requests share the cache pages of this model directly");
  }
  RunningKernels kernels = running_kernels(options, cuda.get(), isa, std::move(chosen));
  auto state = std::make_unique<State>(std::move(cuda), options, std::move(warnings), std::move(kernels), room, isa,
                                       std::move(model));
  LEVIN_TRY(state->runner.ready());
  std::unique_ptr<Drafter> drafter = make_drafter(state->runner, options.n_spec_steps);
  LEVIN_ASSIGN(std::unique_ptr<PageStore> disk,
               open_disk(options, *state->model, *drafter, state->kernels.name(), checkpoint));
  state->start(std::move(drafter), std::move(disk));
  if (state->cuda != nullptr && options.graphs_at_load) {
    const int64_t available_before = state->cuda->available_bytes();
    LEVIN_TRY(record_graphs(state->runner, options.n_spec_steps));
    state->n_graphs_at_load = state->runner.n_graphs();
    state->graph_bytes_at_load = available_before - state->cuda->available_bytes();
  }
  state->weights = weights_load;
  state->load_s = seconds_since(start);
  return std::unique_ptr<Engine>(new Engine(std::move(state)));
}

const EngineOptions& Engine::options() const { return state_->options; }
const ModelConfig& Engine::config() const { return state_->model->config(); }
const Numerics& Engine::numerics() const { return state_->model->numerics(); }
const std::vector<std::string>& Engine::warnings() const { return state_->warnings; }
bool Engine::can_draft() const { return state_->runner.model().has_mtp(); }
int64_t Engine::max_context_tokens() const { return state_->room.n_context_tokens; }

double Engine::load_seconds() const { return state_->load_s; }
const WeightsLoad& Engine::weights_load() const { return state_->weights; }
std::string_view Engine::kernel_set() const { return state_->kernels.set; }

std::string Engine::describe() const {
  const ModelConfig& c = config();
  const std::string prefixes = state_->room.n_prefix_pages > 0
                                   ? fmt::format("; host memory for prefixes of {} tokens",
                                                 state_->room.n_prefix_pages * state_->runner.block_tokens())
                                   : "";
  const std::string graphs =
      state_->n_graphs_at_load > 0
          ? fmt::format("graphs    {}, {:.1f} MiB\n", state_->n_graphs_at_load, mebibytes(state_->graph_bytes_at_load))
          : "";
  const std::string overrides =
      state_->options.overrides.empty() ? "" : fmt::format("override  {}\n", overrides_text(state_->options.overrides));
  return fmt::format(
      "model     {}, {} layers{}, {} experts ({} active), vocabulary {}\n"
      "{}"
      "numerics  {}\n"
      "kernels   {}, {} thread{}\n"
      "{}"
      "cache     {}, {:.1f} MiB{}\n"
      "{}"
      "loaded    in {:.2f} s{}",
      c.family->name, c.n_layers, drafter_text(*state_->model), c.n_experts, c.n_active, c.n_vocab, overrides,
      numerics().describe(), state_->kernels.name(), state_->options.n_threads,
      state_->options.n_threads == 1 ? "" : "s", kernel_choice_text(state_->options, state_->kernels),
      cache_text(state_->room.n_context_tokens, state_->options.cache_tokens), mebibytes(state_->runner.cache_bytes()),
      prefixes, graphs, state_->load_s, weights_rate_text(state_->weights));
}

Result<Generation> Engine::generate(GenerateRequest request) {
  StepLoop& loop = *state_->loop;
  LEVIN_ASSIGN(const RequestId id, loop.submit(std::move(request)));
  while (loop.step()) {
    std::unique_ptr<Generation> done = loop.take(id);
    if (done == nullptr) continue;
    if (done->error) return *done->error;
    return std::move(*done);
  }
  return Error{ErrorKind::kRuntime, fmt::format("request {} was lost", id)};
}

Status Engine::check(const GenerateRequest& request) const { return state_->loop->check(request); }
Result<RequestId> Engine::submit(GenerateRequest request) { return state_->loop->submit(std::move(request)); }
bool Engine::step() { return state_->loop->step(); }
void Engine::finish_records() { state_->loop->finish_records(); }
void Engine::cancel(RequestId id) { state_->loop->cancel(id); }
std::unique_ptr<Generation> Engine::take(RequestId id) { return state_->loop->take(id); }
const StepTimes& Engine::last_step() const { return state_->loop->last_step(); }
StepPhase Engine::phase() const { return state_->loop->phase(); }
EngineLoad Engine::load() const {
  EngineLoad load{state_->loop->counts(),
                  {},
                  0,
                  0,
                  state_->loop->n_restored_tokens(),
                  state_->runner.n_graphs() - state_->n_graphs_at_load};
  const PrefixIndex& index = state_->loop->cache().index();
  load.n_memory_pages = index.memory().n_pages();
  load.n_memory_bytes = index.memory().n_bytes();
  if (index.disk() != nullptr) load.store = index.disk()->counts();
  return load;
}

Result<std::vector<double>> Engine::score(const std::vector<int32_t>& ids) {
  const int64_t n_ids = static_cast<int64_t>(ids.size());
  if (n_ids > state_->room.n_context_tokens) {
    return Error{ErrorKind::kUsage,
                 fmt::format("{} tokens to score exceed the context of {}; give less text or raise --max-model-len",
                             n_ids, state_->room.n_context_tokens)};
  }
  for (const int32_t id : ids) {
    if (id < 0 || id >= config().n_vocab) {
      return Error{ErrorKind::kUsage,
                   fmt::format("token id {} is outside the vocabulary of {} tokens", id, config().n_vocab)};
    }
  }
  state_->loop->forget_prefixes();
  Runner& runner = state_->runner;
  SequencePages pages(runner.pools());
  LEVIN_TRY(pages.grow(n_ids));
  std::vector<double> logprobs(ids.size(), 0);
  const int64_t chunk_tokens = std::min(state_->options.chunk_tokens, runner.max_step_tokens());
  for (int64_t begin = 0; begin + 1 < n_ids; begin += chunk_tokens) {
    const int64_t count = std::min(chunk_tokens, n_ids - 1 - begin);
    const SequenceChunk chunk{
        .tokens = std::span(ids).subspan(begin, count), .first_position = static_cast<int32_t>(begin), .pages = &pages};
    runner.begin_step();
    const View hidden = runner.trunk({&chunk, 1}).hidden;
    for (int64_t row = 0; row < count; row += kScoreRows) {  // logits of few rows at a time
      const ArenaScope scratch = runner.scope();
      const View logits = runner.logits(hidden.slice_first(row, std::min(kScoreRows, count - row)));
      for (int64_t r = 0; r < logits.dim(0); ++r) {
        const std::span<const float> values(logits.row<float>(r), static_cast<size_t>(logits.dim(1)));
        const int64_t next = begin + row + r + 1;
        logprobs[next] = row_logprobs(values, ids[next], 0).chosen.logprob;
      }
    }
  }
  return logprobs;
}

Result<BenchRow> Engine::bench(const BenchCase& what, const BenchOptions& options) {
  state_->loop->forget_prefixes();
  const bool limits = options.measure_ops && state_->cuda == nullptr;  // they are the processor's
  if (limits && !state_->limits) state_->limits.emplace(state_->runner.pool());
  LEVIN_ASSIGN(BenchRow row, run_bench(state_->runner, what, options, limits ? &*state_->limits : nullptr));
  if (options.measure_ops && state_->cuda != nullptr) {
    if (!state_->device_read_gb_per_s) state_->device_read_gb_per_s = state_->cuda->measure_read_gb_per_s();
    row.limits.read_gb_per_s = *state_->device_read_gb_per_s;
  }
  return row;
}

Result<TraceResult> Engine::trace(const TraceOptions& options) {
  if (const int64_t n_tokens = trace_cache_tokens(options); n_tokens > state_->room.n_context_tokens) {
    return Error{
        ErrorKind::kUsage,
        fmt::format(
            "prompt, greedy and drafted tokens need a context of {} tokens, and it has {}; give fewer, or raise "
            "--max-model-len if the model has more",
            n_tokens, state_->room.n_context_tokens)};
  }
  state_->loop->forget_prefixes();
  return levin::trace(state_->runner, options);
}

}  // namespace levin
