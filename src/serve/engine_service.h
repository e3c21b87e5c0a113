// Runs the engine on its own thread. Requests may be submitted from any thread; their tokens are delivered in order.
//
// Between two steps the engine thread takes new and cancelled requests, so a cancelled request is in no later step.
// After a step the answer thread delivers the new tokens of each request as one batch, while the engine thread begins
// the next step. Only stop strings are searched for on the engine thread, because they end an answer within a step.
//
// A device that fails (DeviceFault) ends the engine thread: open requests end with an error of kind kNoDevice, and so does
// every later one.
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
  std::optional<Error> error;                // the request has failed; of the other members only shutting_down is set
  bool shutting_down = false;                // with error: because the server is ending
  std::unique_ptr<Generation> done;          // the request has finished: all of its tokens, and why
  std::optional<std::string> matched_stop;   // with done: the stop string that ended it
  int64_t n_reasoning_tokens = 0;            // with done
  int n_faults = 0;                          // with done: of the markup
};

// An open request, for monitoring.
struct OpenRequest {
  Ticket ticket = 0;
  int64_t n_prompt = 0;
  int64_t n_answer = 0;  // tokens so far
  double seconds = 0;    // since it was submitted to the engine
};

// The current step of the engine, for monitoring.
struct StepWatch {
  int64_t number = 0;  // steps begun so far
  double seconds = 0;  // since the step began; 0: between steps
  StepPhase phase = StepPhase::kIdle;
  std::vector<OpenRequest> requests;  // in it or waiting, by ticket; only while a step runs
};

// Called on the engine thread; may be empty.
struct EngineServiceHooks {
  std::function<void(const Error&)> on_lost_device;  // once, when all open requests have their error
  std::function<void()> before_step;                 // for tests
};

class EngineService {
 public:
  using Deliver = std::function<void(Batch&)>;

  EngineService(Engine& engine, Metrics& metrics, EngineServiceHooks hooks = {});
  ~EngineService();  // cancels open requests and returns after each has received its last batch

  const Engine& engine() const { return engine_; }

  // Reserves n of n_most places; false, and none reserved, if fewer are free. A place is freed when its request has
  // finished. To be called before anything is sent to the client.
  bool reserve(int64_t n, int64_t n_most);

  // Uses a reserved place. `deliver` is called on the answer thread, the last time with done or error;
  // `request.on_token` is not used.
  Ticket submit(GenerateRequest request, std::unique_ptr<text::AnswerText> text, Deliver deliver);
  void cancel(Ticket ticket);

  // For the watchdog, from any thread:
  StepWatch watch() const;
  // Ends every open request with an error, even while a step runs, and refuses new ones until recover().
  void give_up(const std::string& message);
  void recover() { stuck_ = false; }
  // Ends every open request with an error that says that the server is shutting down, and refuses new ones.
  void shut_down();
  bool stuck() const { return stuck_; }
  bool lost() const { return lost_; }  // the device

 private:
  using Clock = std::chrono::steady_clock;
  struct Running;
  void step();
  void work();
  void lose(const Error& error);
  bool take_commands();
  void start(Ticket ticket);
  void hand_on(Running& running);
  void wake_answers();
  static void deliver(Running& running, Batch& batch);
  void deliver_guarded(Running& running, Batch& batch);
  void finish(Ticket ticket, std::unique_ptr<Generation> done);
  void forget(Ticket ticket);
  void fail_all(const Error& error, bool shutting_down);
  void fail(const std::shared_ptr<Running>& running, const Error& error, bool shutting_down = false);
  void tell_load();

  Engine& engine_;
  Metrics& metrics_;
  const EngineServiceHooks hooks_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::shared_ptr<Running>> submitted_;  // these four are guarded by mutex_
  std::vector<Ticket> cancelled_;
  bool shutting_down_ = false;
  bool ending_ = false;
  std::atomic<Ticket> next_ticket_{1};
  std::atomic<int64_t> n_reserved_{0};
  std::map<Ticket, std::shared_ptr<Running>> running_;  // changed only by the engine thread...
  mutable std::mutex running_mutex_;                    // ...under this lock, under which others read it; before mutex_
  std::atomic<int64_t> n_steps_{0};
  std::atomic<Clock::rep> step_began_{0};  // 0: between steps
  std::atomic<bool> stuck_{false};         // these two become true under mutex_
  std::atomic<bool> lost_{false};
  using HandedOn = std::vector<std::pair<std::shared_ptr<Running>, std::unique_ptr<Batch>>>;
  HandedOn handed_on_;           // not yet taken by the answer thread
  Clock::time_point load_told_;  // when the metrics last received the load
  TaskQueue answers_{1};
  std::thread thread_;
};

}  // namespace levin::serve
