#include "engine/prefix_trial.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "support/must.h"

namespace levin::test {
namespace {

constexpr int64_t kTexts = 3;
constexpr int64_t kMaxAnswer = 24;  // of an answer alone, the longest that a trial asks for
constexpr int64_t kMaxSteps = 20'000;

std::vector<int32_t> tokens_of(const Generation& g) {
  std::vector<int32_t> out;
  for (const TokenEvent& event : g.tokens) out.push_back(event.token);
  return out;
}

// At, just before or just after a multiple of `unit`, from 1 to `most`.
int64_t near_multiple(Decisions& decisions, int64_t unit, int64_t most) {
  const int64_t multiple = unit * decisions.below(most / unit + 1);
  return std::clamp<int64_t>(multiple + decisions.one_of<int64_t>({0, 1, -1, 2, -2}), 1, most);
}

RunnerOptions limits_of(Decisions& decisions, RunnerOptions options, const LoopOptions& loop) {
  const int64_t n_pages = decisions.one_of<int64_t>({40, 8, 12, 20});
  options.n_cache_tokens = n_pages * kPageTokens;
  options.n_sequences = loop.max_running;
  options.n_step_tokens = loop.chunk_tokens + decisions.one_of<int64_t>({0, 0, 1, 30});
  options.n_undone_tokens = loop.n_spec_steps + decisions.one_of<int64_t>({0, 0, 3});
  return options;
}

LoopOptions loop_options(Decisions& decisions) {
  const bool small_chunks = decisions.one_in(8);
  return {.chunk_tokens = small_chunks ? decisions.one_of<int64_t>({7, 30, 1})
                                       : decisions.one_of<int64_t>({96, 128, 64, 127, 129, 65, 63, 200}),
          .n_spec_steps = static_cast<int>(decisions.below(6)),
          .min_confidence = decisions.one_of<double>({0, kDefaultMinConfidence}),
          .max_context_tokens = PrefixTrials::kContext,
          .max_running = decisions.one_of<int64_t>({1, 2, 4}),
          .prefill_first = decisions.one_in(4),
          .overlap = decisions.one_in(3),
          .n_host_blocks = decisions.one_of<int64_t>({40, 6, 2, 0})};
}

}  // namespace

int64_t Decisions::below(int64_t n) {
  if (n <= 1) return 0;
  if (!from_bytes_) return static_cast<int64_t>(random_() % static_cast<uint64_t>(n));
  if (bytes_.empty()) return 0;
  const int64_t value = bytes_.front();
  bytes_ = bytes_.subspan(1);
  return value % n;
}

PrefixTrials::PrefixTrials(const Model& model, const RunnerOptions& options)
    : model_(model), options_(options), roomy_(model, [&] {
        RunnerOptions roomy = options;
        roomy.n_cache_tokens = kContext + kPageTokens;
        return roomy;
      }()) {
  std::mt19937 random(17);
  const auto n_vocab = static_cast<uint32_t>(model.config().n_vocab - 1);
  for (int64_t i = 0; i < kTexts; ++i) {
    Tokens& text = texts_.emplace_back();
    for (int64_t j = 0; j < kContext - kMaxAnswer - 1; ++j) text.push_back(static_cast<int32_t>(random() % n_vocab));
  }
}

// The beginning of one text, continued as another.
PrefixTrials::Tokens PrefixTrials::draw_prompt(Decisions& decisions, int64_t chunk_tokens) const {
  const int64_t most = std::ssize(texts_.front());
  const int64_t unit = decisions.one_of<int64_t>({roomy_.block_tokens(), kPageTokens, chunk_tokens, 32});
  const int64_t n_common = near_multiple(decisions, unit, most);
  const int64_t n_tokens =
      std::min(most, n_common + near_multiple(decisions, std::max<int64_t>(chunk_tokens, 8), most));
  Tokens prompt = texts_[decisions.one_in(3) ? 1 : 0];
  const Tokens& other = texts_[static_cast<size_t>(decisions.below(kTexts))];
  std::copy(other.begin() + n_common, other.end(), prompt.begin() + n_common);
  prompt.resize(static_cast<size_t>(n_tokens));
  return prompt;
}

GenerateRequest PrefixTrials::draw_request(Decisions& decisions, int64_t chunk_tokens) const {
  GenerateRequest request{.prompt = draw_prompt(decisions, chunk_tokens)};
  request.max_tokens = 1 + decisions.below(decisions.one_in(3) ? kMaxAnswer : 6);
  request.sampling.seed = static_cast<uint64_t>(decisions.below(3));
  request.sampling.temperature = request.sampling.seed == 0 ? 0 : 0.8;
  request.priority = decisions.one_in(6) ? -1 : 0;
  return request;
}

const PrefixTrials::Tokens& PrefixTrials::answer_alone(const GenerateRequest& request) {
  const auto [found, is_new] = alone_.try_emplace({request.prompt, request.sampling.seed});
  if (!is_new && std::ssize(found->second) >= request.max_tokens) return found->second;
  StepLoop loop(roomy_, {.max_context_tokens = kContext, .share_prefixes = false});
  const RequestId id = must(loop.submit(request));
  while (loop.step()) continue;
  return found->second = tokens_of(*loop.take(id));
}

std::string PrefixTrials::judge(const GenerateRequest& request, const Generation& done) {
  ++counts_.n_answers;
  counts_.n_hit_tokens += done.n_hit_tokens;
  counts_.n_drafted += done.speculation.n_drafted;
  counts_.n_drafts_accepted += done.speculation.n_accepted;
  if (done.error) return fmt::format("a prompt of {} tokens: {}\n", request.prompt.size(), done.error->message);
  const Tokens found = tokens_of(done);
  Tokens right = answer_alone(request);
  const bool cancelled = done.finish_reason == FinishReason::kCancelled;
  right.resize(cancelled ? std::min(found.size(), right.size()) : static_cast<size_t>(request.max_tokens));
  if (found == right) return {};
  return fmt::format("a prompt of {} tokens after a hit of {}: [{}], alone [{}]\n", request.prompt.size(),
                     done.n_hit_tokens, fmt::join(found, " "), fmt::join(right, " "));
}

std::string PrefixTrials::run(Decisions& decisions) {
  const LoopOptions options = loop_options(decisions);
  Runner runner(model_, limits_of(decisions, options_, options));
  StepLoop loop(runner, options);
  std::map<RequestId, GenerateRequest> open;
  std::string wrong;
  int64_t n_left = 2 + decisions.below(9);
  bool waits = false;  // with the next request for the end of the others
  for (int64_t n_steps = 0; n_left > 0 || !open.empty(); ++n_steps) {
    if (n_steps == kMaxSteps) return wrong + "the loop does not end\n";
    if (n_left > 0 && (open.empty() || (!waits && decisions.one_in(4)))) {
      waits = decisions.one_in(2);
      GenerateRequest request = draw_request(decisions, options.chunk_tokens);
      const Result<RequestId> id = loop.submit(request);
      if (id.ok()) open.emplace(*id, std::move(request));  // otherwise it would not fit the pages
      --n_left;
    }
    if (!open.empty() && decisions.one_in(50)) loop.cancel(open.begin()->first);
    if (decisions.one_in(60)) loop.forget_prefixes();
    loop.step();
    std::erase_if(open, [&](const auto& entry) {
      const std::unique_ptr<Generation> done = loop.take(entry.first);
      if (done) wrong += judge(entry.second, *done);
      return done != nullptr;
    });
  }
  counts_.n_preempted += loop.counts().n_preempted;
  if (wrong.empty()) return wrong;
  return fmt::format("{}chunks of {}, {} drafts, {} at a time, {} pages, {} records{}{}\n", wrong, options.chunk_tokens,
                     options.n_spec_steps, options.max_running, runner.pools().rows().n_pages(), options.n_host_blocks,
                     options.prefill_first ? ", prefill first" : "", options.overlap ? ", overlapped" : "");
}

}  // namespace levin::test
