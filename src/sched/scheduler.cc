#include "sched/scheduler.h"

#include <algorithm>

#include "base/check.h"
#include "sched/trace.h"

namespace levin {

// All sequences decode, or all but those that have the page of rows which prefill gets in any case.
int64_t SchedulerOptions::most_rows() const {
  const int64_t with_prefill = (max_running - 1) * lookahead_tokens + std::min(kPageTokens, max_running * chunk_tokens);
  return std::max({step_tokens, max_running * lookahead_tokens, with_prefill});
}

int64_t StepPlan::n_rows() const {
  int64_t n = 0;
  for (const StepEntry& entry : entries) n += entry.n_rows();
  return n;
}

Scheduler::Scheduler(const SchedulerOptions& options, CacheManager& cache, TraceWriter* trace)
    : options_(options), cache_(cache), trace_(trace) {
  LEVIN_CHECK(options.max_running > 0 && options.chunk_tokens > 0, "a scheduler for {} sequences in chunks of {}",
              options.max_running, options.chunk_tokens);
  if (trace_ != nullptr) trace_->begin(options_, cache_);
}

Submission Scheduler::submit(const SequenceSpec& spec) {
  LEVIN_CHECK(spec.tokens != nullptr && !spec.tokens->empty(), "sequence {} has no tokens", spec.id);
  LEVIN_CHECK(!sequences_.contains(spec.id), "sequence {} was submitted before", spec.id);
  if (!cache_.pools().could_hold(spec.limit_tokens + 1)) return Submission::kTooLong;
  if (n_new_ >= options_.max_waiting) return Submission::kQueueFull;
  if (trace_ != nullptr) trace_->submit(spec);
  const Rank rank{spec.priority, n_submitted_++};
  sequences_.emplace(spec.id, Sequence{.spec = spec, .rank = rank, .cache = SequenceCache(cache_.pools())});
  waiting_.emplace(rank, spec.id);
  ++n_new_;
  return Submission::kAccepted;
}

void Scheduler::remove(SequenceId id) {
  if (trace_ != nullptr) trace_->remove(id);
  Sequence& s = at(id);
  cache_.release(s.cache);
  if (waiting_.erase(s.rank) > 0 && !s.has_run) --n_new_;
  running_.erase(s.rank);
  sequences_.erase(id);
}

StepPlan Scheduler::plan() {
  for (const auto& [rank, id] : running_) {
    commit_restored(at(id));
    at(id).n_planned_rows = 0;
  }
  StepPlan plan;
  if (!options_.prefill_first) plan_decoding(plan);
  plan_prefill(plan);
  admit(plan);
  if (options_.prefill_first && plan.entries.empty()) plan_decoding(plan);
  LEVIN_CHECK(!plan.entries.empty() || !plan.restored.empty() || sequences_.empty(), "nothing planned for {} sequences",
              sequences_.size());
  if (trace_ != nullptr) trace_->plan(plan);
  return plan;
}

std::optional<StepPlan> Scheduler::plan_ahead(int64_t n_drafts) {
  std::optional<StepPlan> plan = decoding_ahead(n_drafts);
  if (trace_ != nullptr) trace_->plan_ahead(n_drafts, plan);
  return plan;
}

void Scheduler::advance(SequenceId id, const Progress& progress) {
  Sequence& s = at(id);
  if (trace_ != nullptr) trace_->advance(id, progress);
  LEVIN_CHECK(
      progress.n_cached >= s.n_cached && progress.n_cached < s.n_tokens() && progress.n_committed <= progress.n_cached,
      "sequence {} of {} tokens advances from {} to {}, {} committed", id, s.n_tokens(), s.n_cached, progress.n_cached,
      progress.n_committed);
  commit_restored(s);
  s.n_cached = progress.n_cached;
  s.n_committed = progress.n_committed;
  s.n_drafts = progress.n_drafts;
  cache_.commit(s.cache, *s.spec.tokens, progress.n_committed, progress.resume);
}

void Scheduler::forget_prefixes() {
  if (trace_ != nullptr) trace_->forget();
  cache_.forget_prefixes();
}

SchedulerCounts Scheduler::counts() const {
  SchedulerCounts out = totals_;
  out.n_waiting = static_cast<int64_t>(waiting_.size());
  out.n_running = static_cast<int64_t>(running_.size());
  const CacheUsage usage = cache_.usage();
  out.n_pages = usage.n_pages;
  out.n_free_pages = usage.n_free;
  out.n_cached_pages = usage.n_cached;
  return out;
}

// ---- pages -------------------------------------------------------------------------------------------------------

// What a step of n_rows and the drafting after it write.
int64_t Scheduler::slots_after(const Sequence& s, int64_t n_rows) const {
  return std::min(s.n_cached + n_rows + options_.lookahead_tokens, s.spec.limit_tokens + 1);
}

// Makes room for n_slots, at the cost of sequences that rank below s.
bool Scheduler::secure(Sequence& s, int64_t n_slots, StepPlan& plan) {
  while (!cache_.grow(s.cache, n_slots)) {
    const auto last = std::prev(running_.end());
    if (last->first <= s.rank) return false;
    preempt(at(last->second), plan);
  }
  return true;
}

// Drafts send nobody back.
bool Scheduler::room_for_drafts(Sequence& s) { return cache_.grow(s.cache, slots_after(s, 1 + s.n_drafts)); }

void Scheduler::preempt(Sequence& s, StepPlan& plan) {
  const SequenceId id = s.spec.id;
  std::erase_if(plan.entries, [id](const StepEntry& entry) { return entry.id == id; });
  std::erase_if(plan.restored, [id](const Restored& restored) { return restored.id == id; });
  plan.preempted.push_back(id);
  running_.erase(s.rank);
  waiting_.emplace(s.rank, id);
  cache_.release(s.cache);
  s.restored.clear();
  s.n_cached = s.n_committed = 0;
  s.n_drafts = s.n_planned_rows = 0;
  ++totals_.n_preempted;
}

// ---- the step ----------------------------------------------------------------------------------------------------

void Scheduler::plan_decoding(StepPlan& plan) {
  for (auto next = running_.begin(); next != running_.end();) {
    Sequence& s = at(next->second);
    if (s.decoding() && secure(s, slots_after(s, 1), plan)) {
      plan.entries.push_back({.id = s.spec.id,
                              .first_position = s.n_cached,
                              .n_tokens = 1,
                              .n_drafts = room_for_drafts(s) ? s.n_drafts : 0,
                              .gives_token = true});
      s.n_planned_rows = plan.entries.back().n_rows();
    }
    next = running_.upper_bound(s.rank);  // those after it may have been preempted meanwhile
  }
}

// A sequence whose next token is its last one has no further row.
std::optional<StepPlan> Scheduler::decoding_ahead(int64_t n_drafts) {
  if (may_admit()) return std::nullopt;
  StepPlan plan;
  for (const auto& [rank, id] : running_) {
    Sequence& s = at(id);
    if (!s.decoding() || s.n_planned_rows == 0) return std::nullopt;
    if (s.n_tokens() + 1 >= s.spec.limit_tokens) continue;
    const StepEntry entry{.id = id,
                          .first_position = s.n_cached + s.n_planned_rows,
                          .n_tokens = 1,
                          .n_drafts = n_drafts,
                          .gives_token = true};
    if (!cache_.grow(s.cache, slots_after(s, s.n_planned_rows + entry.n_rows()))) return std::nullopt;
    plan.entries.push_back(entry);
  }
  if (plan.entries.empty()) return std::nullopt;
  for (const StepEntry& entry : plan.entries) at(entry.id).n_planned_rows = entry.n_rows();
  return plan;
}

bool Scheduler::may_admit() const {
  if (waiting_.empty()) return false;
  const bool is_full = std::ssize(running_) >= options_.max_running;
  return !is_full || waiting_.begin()->first.first < running_.rbegin()->first.first;
}

void Scheduler::plan_prefill(StepPlan& plan) {
  for (auto next = running_.begin(); next != running_.end() && prefill_room(plan) > 0;) {
    Sequence& s = at(next->second);
    if (!s.decoding()) add_chunk(s, plan);
    next = running_.upper_bound(s.rank);
  }
}

int64_t Scheduler::prefill_room(const StepPlan& plan) const {
  int64_t n_decoding = 0, n_prefill = 0;
  for (const StepEntry& entry : plan.entries) {
    (sequences_.at(entry.id).decoding() ? n_decoding : n_prefill) += entry.n_rows();
  }
  return std::max(options_.step_tokens - n_decoding, kPageTokens) - n_prefill;
}

void Scheduler::add_chunk(Sequence& s, StepPlan& plan) {
  const int64_t n_rows = std::min({s.n_tokens() - s.n_cached, options_.chunk_tokens, prefill_room(plan)});
  if (!secure(s, slots_after(s, n_rows), plan)) return;
  const int64_t n_before = s.n_cached, end = n_before + n_rows;
  restore(s, n_rows, plan);
  const int64_t next_block = s.n_cached / cache_.options().n_block_tokens;
  if (s.n_cached > n_before && (s.n_cached >= end || cache_.has_record(s.cache, *s.spec.tokens, next_block))) return;
  plan.entries.push_back({.id = s.spec.id,
                          .first_position = s.n_cached,
                          .n_tokens = end - s.n_cached,
                          .n_drafts = 0,
                          .gives_token = end == s.n_tokens()});
}
void Scheduler::admit(StepPlan& plan) {
  while (!waiting_.empty() && prefill_room(plan) > 0) {
    Sequence& s = at(waiting_.begin()->second);
    // a sequence preempted just now has no pages to come back to
    if (std::find(plan.preempted.begin(), plan.preempted.end(), s.spec.id) != plan.preempted.end()) return;
    if (!admit_one(s, plan)) return;
    add_chunk(s, plan);
  }
}

// Whether a sequence that waits can run along with those that do, none of which is to be preempted at once.
bool Scheduler::fits(const Sequence& s) const {
  if (std::ssize(running_) >= options_.max_running) return false;
  std::vector<const SequenceCache*> others;
  for (const auto& [rank, id] : running_) others.push_back(&sequences_.at(id).cache);
  return cache_.has_room(s.cache, slots_after(s, s.n_tokens()), others);
}

// The same if all of worse priority, of which there are some, were preempted. Where that does not suffice, nobody is.
bool Scheduler::would_fit(const Sequence& s) const {
  std::vector<const SequenceCache*> others;
  for (const auto& [rank, id] : running_) {
    if (rank.first <= s.rank.first) others.push_back(&sequences_.at(id).cache);
  }
  if (others.size() == running_.size() || std::ssize(others) >= options_.max_running) return false;
  return cache_.would_have_room(s.cache, slots_after(s, s.n_tokens()), others);
}

bool Scheduler::admit_one(Sequence& s, StepPlan& plan) {
  PrefixHit hit;
  if (s.spec.look_up) hit = cache_.begin(s.cache, *s.spec.tokens);
  const bool may_preempt = !fits(s) && would_fit(s);
  while (!fits(s)) {
    const bool has_worse = !running_.empty() && running_.rbegin()->first.first > s.rank.first;
    if (!may_preempt || !has_worse) {
      cache_.release(s.cache);
      return false;
    }
    preempt(at(running_.rbegin()->second), plan);
  }
  waiting_.erase(s.rank);
  running_.emplace(s.rank, s.spec.id);
  if (!s.has_run) --n_new_;
  s.has_run = true;
  s.n_cached = s.n_committed = hit.n_tokens;
  totals_.n_queried_tokens += s.n_tokens();
  totals_.n_hit_tokens += s.n_cached;
  plan.admitted.push_back({.id = s.spec.id, .n_cached = s.n_cached, .resume = std::move(hit.resume)});
  return true;
}

// ---- blocks that exist as records ----------------------------------------------------------------------------------

// Restores what there is of the blocks that a chunk of n_rows would fill, also of the one it would fill in part.
void Scheduler::restore(Sequence& s, int64_t n_rows, StepPlan& plan) {
  const int64_t n_block = cache_.options().n_block_tokens;
  // blocks with rows that are not committed have states that would be lost
  if (!s.spec.look_up || s.n_cached / n_block != s.n_committed / n_block) return;
  const int64_t first = s.n_cached / n_block, end = (s.n_cached + n_rows + n_block - 1) / n_block * n_block;
  if (!cache_.has_record(s.cache, *s.spec.tokens, first)) return;
  const int64_t n_room = cache_.grow(s.cache, std::min(end, s.n_tokens())) ? end : s.cache.pages().n_tokens();
  Restored restored{.id = s.spec.id, .n_before = s.n_cached, .blocks = {}};
  restored.blocks = cache_.restore(s.cache, *s.spec.tokens, first, n_room);
  if (restored.blocks.empty()) return;
  s.n_cached = s.n_committed = (first + std::ssize(restored.blocks)) * n_block;
  s.n_drafts = 0;
  s.restored = restored.blocks;
  restored.n_cached = s.n_cached;
  plan.restored.push_back(std::move(restored));
}

// What the last plan restored has its rows by now, so that others may find it.
void Scheduler::commit_restored(Sequence& s) {
  if (s.restored.empty()) return;
  cache_.commit_restored(s.cache, *s.spec.tokens, s.restored);
  s.restored.clear();
}

}  // namespace levin
