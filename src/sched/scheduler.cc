#include "sched/scheduler.h"

#include <algorithm>

#include "base/check.h"
#include "sched/trace.h"

namespace levin {

int64_t StepPlan::n_rows() const {
  int64_t n = 0;
  for (const StepEntry& entry : entries) n += entry.n_rows();
  return n;
}

Scheduler::Scheduler(const SchedulerOptions& options, PagePool& pool, TraceWriter* trace)
    : options_(options), pool_(pool), trace_(trace), tree_(pool) {
  LEVIN_CHECK(options.max_running > 0 && options.chunk_tokens > 0, "a scheduler for {} sequences in chunks of {}",
              options.max_running, options.chunk_tokens);
  if (trace_ != nullptr) trace_->begin(options_, pool_.n_pages());
}

Submission Scheduler::submit(const SequenceSpec& spec) {
  LEVIN_CHECK(spec.tokens != nullptr && !spec.tokens->empty(), "sequence {} has no tokens", spec.id);
  LEVIN_CHECK(!sequences_.contains(spec.id), "sequence {} was submitted before", spec.id);
  if (pages_for_tokens(spec.limit_tokens + 1) > pool_.n_pages()) return Submission::kTooLong;
  if (n_new_ >= options_.max_waiting) return Submission::kQueueFull;
  if (trace_ != nullptr) trace_->submit(spec);
  const Rank rank{spec.priority, n_submitted_++};
  sequences_.emplace(spec.id, Sequence{.spec = spec, .rank = rank, .table = BlockTable(pool_)});
  waiting_.emplace(rank, spec.id);
  ++n_new_;
  return Submission::kAccepted;
}

void Scheduler::remove(SequenceId id) {
  if (trace_ != nullptr) trace_->remove(id);
  const Sequence& s = at(id);
  if (waiting_.erase(s.rank) > 0 && !s.has_run) --n_new_;
  running_.erase(s.rank);
  sequences_.erase(id);
}

StepPlan Scheduler::plan() {
  StepPlan plan;
  plan_decoding(plan);
  plan_prefill(plan);
  admit(plan);
  LEVIN_CHECK(!plan.entries.empty() || sequences_.empty(), "nothing planned for {} sequences", sequences_.size());
  if (trace_ != nullptr) trace_->plan(plan);
  return plan;
}

void Scheduler::advance(SequenceId id, const Progress& progress) {
  Sequence& s = at(id);
  if (trace_ != nullptr) trace_->advance(id, progress);
  LEVIN_CHECK(
      progress.n_cached >= s.n_cached && progress.n_cached < s.n_tokens() && progress.n_settled <= progress.n_cached,
      "sequence {} of {} tokens advances from {} to {}, {} settled", id, s.n_tokens(), s.n_cached, progress.n_cached,
      progress.n_settled);
  s.n_cached = progress.n_cached;
  s.n_drafts = progress.n_drafts;
  if (!options_.share_prefixes) return;
  const size_t n_full = static_cast<size_t>(progress.n_settled / kPageTokens);
  LEVIN_CHECK(s.n_entered_pages + progress.resume.size() == n_full,
              "sequence {}: states for {} pages, entered {}, full {}", id, progress.resume.size(), s.n_entered_pages,
              n_full);
  if (n_full > s.n_entered_pages) {
    tree_.adopt(std::span(*s.spec.tokens).first(n_full * kPageTokens), s.table.first_pages(n_full), s.n_entered_pages,
                progress.resume);
  }
  s.n_entered_pages = n_full;
}

void Scheduler::forget_prefixes() {
  if (trace_ != nullptr) trace_->forget();
  tree_.evict(tree_.n_pages());
}

std::span<const int32_t> Scheduler::pages(SequenceId id) const { return sequences_.at(id).table.pages(); }

SchedulerCounts Scheduler::counts() const {
  SchedulerCounts out = totals_;
  out.n_waiting = static_cast<int64_t>(waiting_.size());
  out.n_running = static_cast<int64_t>(running_.size());
  out.n_pages = pool_.n_pages();
  out.n_free_pages = pool_.n_free();
  out.n_cached_pages = tree_.n_evictable();
  return out;
}

// ---- pages -------------------------------------------------------------------------------------------------------

// What a step of n_rows and the drafting behind it write.
int64_t Scheduler::slots_after(const Sequence& s, int64_t n_rows) const {
  return std::min(s.n_cached + n_rows + options_.lookahead_tokens, s.spec.limit_tokens + 1);
}

// Gives up cached prefixes until n_pages are free, if there are as many.
bool Scheduler::free_pages(int64_t n_pages) {
  const int64_t n_short = n_pages - pool_.n_free();
  return n_short <= 0 || tree_.evict(static_cast<int32_t>(n_short)) == n_short;
}

// Makes room for n_slots, at the cost of sequences that rank behind s.
bool Scheduler::secure(Sequence& s, int64_t n_slots, StepPlan& plan) {
  while (!free_pages(pages_for_tokens(n_slots) - static_cast<int64_t>(s.table.pages().size()))) {
    const auto last = std::prev(running_.end());
    if (last->first <= s.rank) return false;
    send_back(at(last->second), plan);
  }
  LEVIN_CHECK(s.table.grow(n_slots).ok(), "sequence {}: pages went while they were being counted", s.spec.id);
  return true;
}

// Drafts send nobody back.
bool Scheduler::room_for_drafts(Sequence& s) {
  const int64_t n_slots = slots_after(s, 1 + s.n_drafts);
  return free_pages(pages_for_tokens(n_slots) - static_cast<int64_t>(s.table.pages().size())) &&
         s.table.grow(n_slots).ok();
}

void Scheduler::send_back(Sequence& s, StepPlan& plan) {
  const SequenceId id = s.spec.id;
  std::erase_if(plan.entries, [id](const StepEntry& entry) { return entry.id == id; });
  plan.sent_back.push_back(id);
  running_.erase(s.rank);
  waiting_.emplace(s.rank, id);
  s.table.shorten(0);
  s.n_cached = 0;
  s.n_drafts = 0;
  ++totals_.n_sent_back;
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
    }
    next = running_.upper_bound(s.rank);  // those behind may have been sent back meanwhile
  }
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
  const int64_t n_left = s.n_tokens() - s.n_cached;
  const int64_t n_rows = std::min({n_left, options_.chunk_tokens, prefill_room(plan)});
  if (!secure(s, slots_after(s, n_rows), plan)) return;
  plan.entries.push_back({.id = s.spec.id,
                          .first_position = s.n_cached,
                          .n_tokens = n_rows,
                          .n_drafts = 0,
                          .gives_token = n_rows == n_left});
}

void Scheduler::admit(StepPlan& plan) {
  while (!waiting_.empty() && prefill_room(plan) > 0) {
    Sequence& s = at(waiting_.begin()->second);
    // whoever was sent back just now has no pages to come back to
    if (std::find(plan.sent_back.begin(), plan.sent_back.end(), s.spec.id) != plan.sent_back.end()) return;
    if (!admit_one(s, plan)) return;
    add_chunk(s, plan);
  }
}

bool Scheduler::admit_one(Sequence& s, StepPlan& plan) {
  PrefixTree::Match found;
  // the last token has to be computed, for it gives the next one
  if (options_.share_prefixes && s.spec.look_up)
    found = tree_.find(std::span(*s.spec.tokens).first(s.spec.tokens->size() - 1));
  s.table.begin_with(std::move(found.pages));
  const auto fits = [&] {
    if (static_cast<int64_t>(running_.size()) >= options_.max_running) return false;
    const int64_t n_held = static_cast<int64_t>(s.table.pages().size());
    const int64_t n_needed = pages_for_tokens(slots_after(s, s.n_tokens())) - n_held;
    const int64_t n_spare = static_cast<int64_t>(running_.size());  // so that none of them is sent back at once
    if (n_needed + n_spare <= pool_.n_free()) return true;          // counting the others takes longer
    return n_needed + n_spare <= pool_.n_free() + tree_.n_evictable();
  };
  while (!fits()) {
    const auto last = std::prev(running_.end());
    if (last->first.first <= s.rank.first) {  // of no worse priority
      s.table.shorten(0);
      return false;
    }
    send_back(at(last->second), plan);
  }
  waiting_.erase(s.rank);
  running_.emplace(s.rank, s.spec.id);
  if (!s.has_run) --n_new_;
  s.has_run = true;
  s.n_entered_pages = s.table.pages().size();
  s.n_cached = static_cast<int64_t>(s.n_entered_pages) * kPageTokens;
  totals_.n_queried_tokens += s.n_tokens();
  totals_.n_found_tokens += s.n_cached;
  plan.admitted.push_back({.id = s.spec.id, .n_cached = s.n_cached, .resume = std::move(found.resume)});
  return true;
}

}  // namespace levin
