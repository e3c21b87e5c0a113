// The engine behind a thread of its own: requests go in from any thread, tokens come out in order.
//
// Between two steps the engine's thread takes what was submitted and cancelled meanwhile, so a cancelled request is in
// no later step. What a step gave is handed on in one batch a request, on the answer thread; the next step begins
// meanwhile.
// Only stop strings are looked for between the tokens, because they end an answer inside a step.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "serve/metrics.h"
#include "serve/task_queue.h"
#include "text/answer_text.h"

namespace levin::serve {

using Ticket = int64_t;

struct Batch {
  std::vector<TokenEvent> tokens;
  std::vector<text::OutputEvent> events;
  std::vector<RowLogprobs> prompt_logprobs;  // with a request's first tokens, if it asked for them
  std::optional<Error> error;                // the request is over, nothing else is set but, perhaps...
  bool shutting_down = false;                // ...that the server ends, and nothing is wrong with the request
  // The request is over: all of its tokens, and why.
  std::unique_ptr<Generation> done;
  std::optional<std::string> matched_stop;  // with done: the stop string that ended it
  int64_t n_reasoning_tokens = 0;           // with done
  int n_faults = 0;                         // with done: of the markup
};

// A request that is not over, as seen from outside.
struct OpenRequest {
  Ticket ticket = 0;
  int64_t n_prompt = 0;
  int64_t n_answer = 0;  // tokens so far
  double seconds = 0;    // since it was submitted to the engine
};

// The step that the engine is at.
struct StepWatch {
  int64_t number = 0;  // steps begun so far
  double seconds = 0;  // since it began; 0: between steps
  StepPhase phase = StepPhase::kIdle;
  std::vector<OpenRequest> requests;  // in it or waiting, by ticket; only while a step runs
};

class EngineService {
 public:
  using Deliver = std::function<void(Batch&)>;

  EngineService(Engine& engine, Metrics& metrics);
  ~EngineService();  // cancels what still runs; every request has got its last batch then

  const Engine& engine() const { return engine_; }

  // Takes n places of n_most; false, and none taken, where fewer are left. A place is free again when its request is
  // over. Taken before anything is promised to a client.
  bool reserve(int64_t n, int64_t n_most);

  // Fills a reserved place. `deliver` is called on the answer thread, the last time with done or error;
  // `request.on_token` is not used.
  Ticket submit(GenerateRequest request, std::unique_ptr<text::AnswerText> text, Deliver deliver);
  void cancel(Ticket ticket);

  // For whoever watches, from any thread:
  StepWatch watch() const;
  // Ends every open request with an error, whatever the engine does, and refuses others until recover().
  void give_up(const std::string& message);
  void recover() { stuck_ = false; }
  // Ends every open request with an error that says that the server is shutting down.
  void shut_down();
  bool stuck() const { return stuck_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Running;
  void step();
  void work();
  bool take_commands();
  void start(Ticket ticket);
  void hand_on(Running& running);
  void wake_answers();
  static void deliver(Running& running, Batch& batch);
  void finish(Ticket ticket, std::unique_ptr<Generation> done);
  void forget(Ticket ticket);
  void fail_all(const Error& error, bool shutting_down);
  void fail(const std::shared_ptr<Running>& running, const Error& error, bool shutting_down = false);
  void tell_load();

  Engine& engine_;
  Metrics& metrics_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::shared_ptr<Running>> submitted_;  // these three are guarded by mutex_
  std::vector<Ticket> cancelled_;
  bool ending_ = false;
  std::atomic<Ticket> next_ticket_{1};
  std::atomic<int64_t> n_reserved_{0};
  std::map<Ticket, std::shared_ptr<Running>> running_;  // of the engine's thread, which alone changes it...
  mutable std::mutex running_mutex_;                    // ...and holds this meanwhile, as all others who look
  std::atomic<int64_t> n_steps_{0};
  std::atomic<Clock::rep> step_began_{0};  // 0: between steps
  std::atomic<bool> stuck_{false};
  using HandedOn = std::vector<std::pair<std::shared_ptr<Running>, std::unique_ptr<Batch>>>;
  HandedOn handed_on_;           // and not yet with the answer thread
  Clock::time_point load_told_;  // to the metrics
  TaskQueue answers_{1};
  std::thread thread_;
};

}  // namespace levin::serve
