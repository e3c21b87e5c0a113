#include "sched/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <deque>
#include <iterator>
#include <optional>
#include <vector>

namespace levin {
namespace {

std::string step_words(const StepPlan& plan) {
  std::string out = " step";
  for (const StepEntry& e : plan.entries) {
    fmt::format_to(std::back_inserter(out), " {}@{}+{}+{}", e.id, e.first_position, e.n_tokens, e.n_drafts);
  }
  return out;
}

std::string ahead_line(int64_t n_drafts, const std::optional<StepPlan>& plan) {
  return fmt::format("ahead {}{}", n_drafts, plan ? step_words(*plan) : " none");
}

std::string plan_line(const StepPlan& plan) {
  std::string out = "plan back";
  const auto add = std::back_inserter(out);
  for (const SequenceId id : plan.preempted) fmt::format_to(add, " {}", id);
  out += " admitted";
  for (const Admitted& a : plan.admitted) fmt::format_to(add, " {}+{}", a.id, a.n_cached);
  out += " restored";
  for (const Restored& r : plan.restored) fmt::format_to(add, " {}+{}", r.id, r.n_cached);
  return out + step_words(plan);
}

// The words of a line before " : " and the numbers after it.
struct TraceLine {
  std::vector<std::string_view> words;
  std::vector<int32_t> tokens;
};

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> out;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    if (end > 0) out.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

template <class T>
std::optional<T> number(std::string_view word) {
  T value = 0;
  const auto [end, code] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (code != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return value;
}

std::optional<TraceLine> read_line(std::string_view text) {
  TraceLine line;
  const size_t colon = text.find(" :");
  line.words = split(text.substr(0, colon));
  if (line.words.empty()) return std::nullopt;
  if (colon == std::string_view::npos) return line;
  for (const std::string_view word : split(text.substr(colon + 2))) {
    const std::optional<int32_t> token = number<int32_t>(word);
    if (!token) return std::nullopt;
    line.tokens.push_back(*token);
  }
  return line;
}

constexpr size_t kNone = 0;      // of the words
constexpr size_t kPriority = 2;  // of those of submit

// All words from the second on as numbers; nothing if there are not `count` of them, or up to `n_optional` more, or if one is
// below zero that may not be.
std::optional<std::vector<int64_t>> numbers(const TraceLine& line, size_t count, size_t n_optional = 0,
                                            size_t may_be_negative = kNone) {
  std::vector<int64_t> out;
  for (size_t i = 1; i < line.words.size(); ++i) {
    const std::optional<int64_t> value = number<int64_t>(line.words[i]);
    const int64_t least = i == may_be_negative ? INT32_MIN : 0;
    if (!value || *value < least || *value > INT32_MAX) return std::nullopt;
    out.push_back(*value);
  }
  if (out.size() < count || out.size() > count + n_optional) return std::nullopt;
  return out;
}

class Replay {
 public:
  // Empty when the line was played; otherwise what is wrong with it.
  std::string play(std::string_view text);
  int64_t n_plans() const { return n_plans_; }

 private:
  std::string begin(const TraceLine& line);
  std::string submit(const TraceLine& line);
  std::string remove(const TraceLine& line);
  std::string advance(const TraceLine& line);
  std::string ahead(const TraceLine& line);

  std::optional<SequencePools> pools_;
  std::optional<CacheManager> cache_;
  std::map<SequenceId, std::vector<int32_t>> tokens_;
  std::optional<Scheduler> scheduler_;  // goes before the cache and the tokens
  int64_t n_plans_ = 0;
};

std::string Replay::play(std::string_view text) {
  const std::optional<TraceLine> line = read_line(text);
  if (!line) return "it does not read as words and token ids";
  const std::string_view call = line->words[0];
  if (call == "levin-schedule") return begin(*line);
  if (!scheduler_) return "the first line is to be 'levin-schedule 2 ...'";
  if (call == "submit") return submit(*line);
  if (call == "remove") return remove(*line);
  if (call == "forget") return scheduler_->forget_prefixes(), "";
  if (call == "advance") return advance(*line);
  if (call != "plan" && call != "ahead") return fmt::format("there is no call '{}'", call);
  ++n_plans_;
  const std::string found = call == "plan" ? plan_line(scheduler_->plan()) : ahead(*line);
  return found == text ? "" : fmt::format("the plan is now '{}'", found);
}

std::string Replay::begin(const TraceLine& line) {
  const auto v = numbers(line, 9, 1);
  const std::vector<int32_t>& c = line.tokens;  // of the caches
  const bool reads = v && ((*v)[0] == 2 || (*v)[0] == 3) && (*v)[2] > 0 && (*v)[3] > 0 && (*v)[7] > 0 &&
                     c.size() >= 5 && c[0] > 0 && c[1] > 0 && *std::min_element(c.begin(), c.end()) >= 0 &&
                     std::find(c.begin() + 5, c.end(), 0) == c.end();
  if (!reads) return "it does not read as a first line";
  if (scheduler_) return "there is a first line already";
  pools_.emplace(PageKinds{.n_window = c[4], .ratios = {c.begin() + 5, c.end()}, .mtp_entries = (*v)[0] == 3},
                 CacheLimits{.n_tokens = c[0], .n_sequences = c[1], .n_step_tokens = c[2], .n_undone = c[3]});
  if (pools_->keeps_all_rows() && (*v)[7] != kPageTokens) return "it does not read as a first line";
  cache_.emplace(*pools_, CacheOptions{.n_block_tokens = (*v)[7],
                                       .share_prefixes = (*v)[6] != 0,
                                       .max_host_blocks = (*v)[8],
                                       .disk = nullptr,
                                       .copy_block = [](const SequencePages&, int64_t, std::span<std::byte>) {
                                         return std::unique_ptr<BlockCopy>();
                                       }});
  scheduler_.emplace(SchedulerOptions{.step_tokens = (*v)[1],
                                      .chunk_tokens = (*v)[2],
                                      .max_running = (*v)[3],
                                      .max_waiting = (*v)[4],
                                      .lookahead_tokens = (*v)[5],
                                      .prefill_first = v->size() > 9 && (*v)[9] != 0},
                     *cache_);
  return "";
}

std::string Replay::submit(const TraceLine& line) {
  const auto v = numbers(line, 4, 0, kPriority);
  if (!v || line.tokens.empty()) return "it does not read as 'submit ID PRIORITY LIMIT LOOK_UP : TOKEN...'";
  const auto [at, added] = tokens_.emplace((*v)[0], line.tokens);
  if (!added) return fmt::format("sequence {} is there already", (*v)[0]);
  const Submission outcome = scheduler_->submit({.id = (*v)[0],
                                                 .priority = static_cast<int32_t>((*v)[1]),
                                                 .limit_tokens = (*v)[2],
                                                 .tokens = &at->second,
                                                 .look_up = (*v)[3] != 0});
  return outcome == Submission::kAccepted ? "" : "it is now refused";
}

std::string Replay::remove(const TraceLine& line) {
  const auto v = numbers(line, 1);
  if (!v || !tokens_.contains((*v)[0])) return "it does not name a sequence";
  scheduler_->remove((*v)[0]);
  tokens_.erase((*v)[0]);
  return "";
}

std::string Replay::advance(const TraceLine& line) {
  const auto v = numbers(line, 5);
  if (!v || !tokens_.contains((*v)[0])) {
    return "it does not read as 'advance ID N_CACHED N_COMMITTED N_DRAFTS N_RESUME : TOKEN...'";
  }
  std::vector<int32_t>& tokens = tokens_.at((*v)[0]);
  tokens.insert(tokens.end(), line.tokens.begin(), line.tokens.end());
  if ((*v)[1] >= static_cast<int64_t>(tokens.size())) return "it has rows for more tokens than there are";
  const std::vector<ResumeState> resume(static_cast<size_t>((*v)[4]), std::make_shared<const std::vector<float>>());
  scheduler_->advance((*v)[0], {.n_cached = (*v)[1], .n_committed = (*v)[2], .n_drafts = (*v)[3], .resume = resume});
  return "";
}

std::string Replay::ahead(const TraceLine& line) {
  const std::optional<int64_t> n_drafts = line.words.size() > 1 ? number<int64_t>(line.words[1]) : std::nullopt;
  if (!n_drafts || *n_drafts < 0) return "it does not read as 'ahead N_DRAFTS none' or 'ahead N_DRAFTS step ...'";
  return ahead_line(*n_drafts, scheduler_->plan_ahead(*n_drafts));
}

}  // namespace

void TraceWriter::begin(const SchedulerOptions& o, const CacheManager& cache) {
  const CacheOptions& c = cache.options();
  const CacheLimits& limits = cache.pools().limits();
  const PageKinds& kinds = cache.pools().kinds();
  write_(fmt::format("levin-schedule {} {} {} {} {} {} {:d} {} {}{} : {} {} {} {} {} {}", kinds.mtp_entries ? 3 : 2,
                     o.step_tokens, o.chunk_tokens, o.max_running, o.max_waiting, o.lookahead_tokens, c.share_prefixes,
                     c.n_block_tokens, c.max_host_blocks, o.prefill_first ? " 1" : "", limits.n_tokens,
                     limits.n_sequences, limits.n_step_tokens, limits.n_undone, kinds.n_window,
                     fmt::join(kinds.ratios, " ")));
}

std::string TraceWriter::new_tokens(Known& known) {
  std::string out;
  for (; known.n_written < known.tokens->size(); ++known.n_written) {
    fmt::format_to(std::back_inserter(out), " {}", (*known.tokens)[known.n_written]);
  }
  return out;
}

void TraceWriter::submit(const SequenceSpec& spec) {
  Known& known = known_.insert_or_assign(spec.id, Known{.tokens = spec.tokens, .n_written = 0}).first->second;
  write_(fmt::format("submit {} {} {} {:d} :{}", spec.id, spec.priority, spec.limit_tokens, spec.look_up,
                     new_tokens(known)));
}

void TraceWriter::remove(SequenceId id) {
  known_.erase(id);
  write_(fmt::format("remove {}", id));
}

void TraceWriter::forget() { write_("forget"); }

void TraceWriter::plan(const StepPlan& plan) { write_(plan_line(plan)); }

void TraceWriter::plan_ahead(int64_t n_drafts, const std::optional<StepPlan>& plan) {
  write_(ahead_line(n_drafts, plan));
}

void TraceWriter::advance(SequenceId id, const Progress& progress) {
  write_(fmt::format("advance {} {} {} {} {} :{}", id, progress.n_cached, progress.n_committed, progress.n_drafts,
                     progress.resume.size(), new_tokens(known_.at(id))));
}

Result<int64_t> replay_trace(std::string_view trace) {
  Replay replay;
  for (int64_t line_number = 1; !trace.empty(); ++line_number) {
    const std::string_view line = trace.substr(0, trace.find('\n'));
    trace.remove_prefix(std::min(line.size() + 1, trace.size()));
    if (const std::string fault = replay.play(line); !fault.empty()) {
      return Error{ErrorKind::kUsage, fmt::format("schedule trace, line {}: '{}': {}", line_number, line, fault)};
    }
  }
  return replay.n_plans();
}

}  // namespace levin
