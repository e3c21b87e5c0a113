// A scheduler's calls and plans as text, and the same run again from that text.
//
// One line a call, blanks between the words, token ids last:
//
//   levin-schedule 2 STEP CHUNK RUNNING WAITING LOOKAHEAD SHARE BLOCK HOST_BLOCKS [PREFILL_FIRST] :
//       TOKENS SEQUENCES STEP_TOKENS UNDONE WINDOW RATIO...        of the caches: limits, then kinds of pages; 3 in
//                                                                  place of 2: the MTP layer has entries too
//   submit ID PRIORITY LIMIT LOOK_UP : TOKEN...
//   remove ID
//   forget
//   advance ID N_CACHED N_COMMITTED N_DRAFTS N_RESUME : TOKEN...     those that came since the sequence's last line
//   ahead N_DRAFTS none        or        ahead N_DRAFTS step ID@FIRST+TOKENS+DRAFTS...
//   plan back ID... admitted ID+N_CACHED... restored ID+N_CACHED... step ID@FIRST+TOKENS+DRAFTS...
//
// Records in host memory are kept again by the replay; blocks that came from a disk are not in a trace, so a run that
// read some does not replay.
// What a replay needs and no more: so a plan that went wrong in service is a test case. It holds the tokens of all
// requests; it is written only where someone asked for it.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "sched/scheduler.h"

namespace levin {

class TraceWriter {
 public:
  explicit TraceWriter(std::function<void(std::string_view line)> write) : write_(std::move(write)) {}

  void begin(const SchedulerOptions& options, const CacheManager& cache);
  void submit(const SequenceSpec& spec);
  void remove(SequenceId id);
  void forget();
  void plan(const StepPlan& plan);
  void plan_ahead(int64_t n_drafts, const std::optional<StepPlan>& plan);
  void advance(SequenceId id, const Progress& progress);

 private:
  struct Known {
    const std::vector<int32_t>* tokens;
    size_t n_written;
  };
  std::string new_tokens(Known& known);

  std::function<void(std::string_view line)> write_;  // a line, without its end
  std::map<SequenceId, Known> known_;
};

// Runs a trace through a new scheduler. An error names the first line that does not read, or whose plan comes out
// differently. Returns the number of plans.
Result<int64_t> replay_trace(std::string_view trace);

}  // namespace levin
