#include "serve/engine_service.h"

#include <chrono>
#include <exception>
#include <utility>

#include "base/device_fault.h"
#include "base/recovery.h"
#include "engine/engine_load.h"

namespace levin::serve {
namespace {

const Error kShuttingDown = {ErrorKind::kRuntime, "the server is shutting down"};

}  // namespace

// A request on its way. The engine's thread fills `batch`; the answer thread has what was handed on.
struct EngineService::Running {
  Ticket ticket = 0;
  RequestId id = 0;
  GenerateRequest request;
  // Pushed to by the engine's thread if it looks for stops, else by the answer thread.
  std::unique_ptr<text::AnswerText> text;
  Deliver deliver;
  Batch batch;
  RequestClock clock;
  int64_t n_prompt = 0;
  std::chrono::steady_clock::time_point begun;
  std::atomic<int64_t> n_answer{0};  // tokens so far
  bool has_failed = false;           // of the answer thread: what was thrown has ended it
};

EngineService::EngineService(Engine& engine, Metrics& metrics, EngineServiceHooks hooks)
    : engine_(engine), metrics_(metrics), hooks_(std::move(hooks)) {
  thread_ = std::thread([this] { work(); });
}

EngineService::~EngineService() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

bool EngineService::reserve(int64_t n, int64_t n_most) {
  if (n_reserved_.fetch_add(n) + n <= n_most) return true;
  n_reserved_ -= n;
  return false;
}

Ticket EngineService::submit(GenerateRequest request, std::unique_ptr<text::AnswerText> text, Deliver deliver) {
  auto running = std::make_shared<Running>();
  running->ticket = next_ticket_++;
  running->n_prompt = std::ssize(request.prompt);
  running->begun = Clock::now();
  running->request = std::move(request);
  running->text = std::move(text);
  running->deliver = std::move(deliver);
  const Ticket ticket = running->ticket;
  std::optional<Error> refusal;  // of what has happened since it was let in
  bool shutting_down = false;
  {
    const std::lock_guard lock(mutex_);
    shutting_down = shutting_down_;
    if (lost_) {
      refusal = {ErrorKind::kNoDevice, "the device has failed"};
    } else if (shutting_down) {
      refusal = kShuttingDown;
    } else if (stuck_) {
      refusal = {ErrorKind::kRuntime, "the engine is stuck; the server's log has a report"};
    } else {
      submitted_.push_back(running);
    }
  }
  if (refusal) {
    fail(running, *refusal, shutting_down);
    --n_reserved_;
  } else {
    wake_.notify_one();
  }
  return ticket;
}

void EngineService::cancel(Ticket ticket) {
  {
    const std::lock_guard lock(mutex_);
    cancelled_.push_back(ticket);
  }
  wake_.notify_one();
}

void EngineService::work() try {
  while (take_commands()) {
    step();
    std::vector<std::pair<Ticket, std::unique_ptr<Generation>>> over;
    for (auto& [ticket, running] : running_) {
      if (auto done = engine_.take(running->id)) {
        over.emplace_back(ticket, std::move(done));
      } else if (!running->batch.tokens.empty()) {
        running->clock.tokens(metrics_, static_cast<int64_t>(running->batch.tokens.size()));
        hand_on(*running);
      }
    }
    for (auto& [ticket, done] : over) finish(ticket, std::move(done));
    wake_answers();
    tell_load();
    if (running_.empty()) engine_.finish_records();  // there may be no next step for long
  }
} catch (const DeviceFault& fault) {
  lose({ErrorKind::kNoDevice, fault.what()});
}

void EngineService::lose(const Error& error) {
  {
    const std::lock_guard lock(mutex_);
    lost_ = true;
  }
  step_began_ = 0;  // it is not stuck; nor has it ended after all
  fail_all(error, false);
  {
    const std::lock_guard lock(running_mutex_);
    n_reserved_ -= std::ssize(running_);
    running_.clear();
  }
  if (hooks_.on_lost_device) hooks_.on_lost_device(error);
}

void EngineService::step() {
  ++n_steps_;
  step_began_ = Clock::now().time_since_epoch().count();
  if (hooks_.before_step) hooks_.before_step();
  const bool computed = engine_.step();
  step_began_ = 0;
  if (computed) metrics_.add_step(engine_.last_step());
}

// Counting the cache's pages takes longer the more there are, so it is not done in every step.
void EngineService::tell_load() {
  constexpr auto kInterval = std::chrono::milliseconds(50);
  const Clock::time_point now = Clock::now();
  if (!running_.empty() && now - load_told_ < kInterval) return;
  load_told_ = now;
  metrics_.set_load(engine_.load());
}

StepWatch EngineService::watch() const {
  StepWatch out{.number = n_steps_, .phase = engine_.phase()};
  const Clock::rep began = step_began_;
  if (began == 0) return out;
  const Clock::time_point now = Clock::now();
  const auto since = [&](Clock::time_point then) { return std::chrono::duration<double>(now - then).count(); };
  out.seconds = since(Clock::time_point(Clock::duration(began)));
  const std::lock_guard lock(running_mutex_);
  for (const auto& [ticket, running] : running_) {
    out.requests.push_back({.ticket = ticket,
                            .n_prompt = running->n_prompt,
                            .n_answer = running->n_answer,
                            .seconds = since(running->begun)});
  }
  return out;
}

void EngineService::give_up(const std::string& message) {
  {
    const std::lock_guard lock(mutex_);
    stuck_ = true;
  }
  fail_all({ErrorKind::kRuntime, message}, false);
}

void EngineService::shut_down() {
  {
    const std::lock_guard lock(mutex_);
    shutting_down_ = true;
  }
  fail_all(kShuttingDown, true);
}

void EngineService::fail_all(const Error& error, bool shutting_down) {
  const std::lock_guard running_lock(running_mutex_);  // all the while, so that none is on its way to running_
  std::vector<std::shared_ptr<Running>> submitted;     // of which the engine's thread knows nothing yet
  {
    const std::lock_guard lock(mutex_);
    submitted.swap(submitted_);
  }
  for (const std::shared_ptr<Running>& running : submitted) {
    fail(running, error, shutting_down);
    --n_reserved_;
  }
  for (const auto& [ticket, running] : running_) {
    cancel(ticket);
    fail(running, error, shutting_down);
  }
}

void EngineService::fail(const std::shared_ptr<Running>& running, const Error& error, bool shutting_down) {
  answers_.post([running, error, shutting_down] {
    Batch batch;
    batch.error = error;
    batch.shutting_down = shutting_down;
    running->deliver(batch);
  });
}

// Waits until there is work. False when the service ends and nothing runs any more.
bool EngineService::take_commands() {
  std::vector<Ticket> submitted, cancelled;
  bool ending = false;
  if (running_.empty()) {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return ending_ || !submitted_.empty(); });
  }
  {
    const std::lock_guard running_lock(running_mutex_);
    const std::lock_guard lock(mutex_);
    for (std::shared_ptr<Running>& running : std::exchange(submitted_, {})) {
      submitted.push_back(running->ticket);
      running_.emplace(submitted.back(), std::move(running));
    }
    cancelled.swap(cancelled_);
    ending = ending_;
  }
  for (const Ticket ticket : submitted) start(ticket);
  for (const Ticket ticket : cancelled) {
    if (const auto found = running_.find(ticket); found != running_.end()) engine_.cancel(found->second->id);
  }
  if (ending) {
    for (const auto& [ticket, running] : running_) engine_.cancel(running->id);
  }
  wake_answers();  // of what could not be started
  return !ending || !running_.empty();
}

void EngineService::start(Ticket ticket) {
  Running& running = *running_.at(ticket);
  running.request.on_token = [&running](const TokenEvent& event) {
    running.batch.tokens.push_back(event);
    running.n_answer.fetch_add(1, std::memory_order_relaxed);
    if (!running.text->looks_for_stops()) return Verdict::kGoOn;
    running.text->push(event.token, running.batch.events);
    return running.text->matched_stop() != nullptr ? Verdict::kStop : Verdict::kGoOn;
  };
  running.request.on_prompt = [&running](std::vector<RowLogprobs> logprobs) {
    running.batch.prompt_logprobs = std::move(logprobs);
  };
  running.clock.begin(running.n_prompt);
  const Result<RequestId> id = engine_.submit(std::move(running.request));
  if (id.ok()) {
    running.id = *id;
    return;
  }
  running.batch.error = id.error();
  hand_on(running);
  forget(ticket);
}

void EngineService::forget(Ticket ticket) {
  {
    const std::lock_guard lock(running_mutex_);
    running_.erase(ticket);
  }
  --n_reserved_;
}

void EngineService::hand_on(Running& running) {
  handed_on_.emplace_back(running_.at(running.ticket), std::make_unique<Batch>(std::exchange(running.batch, {})));
}

// Waking the answer thread takes longer than what else is to be done between two steps: once for all requests.
void EngineService::wake_answers() {
  if (handed_on_.empty()) return;
  const auto batches = std::make_shared<HandedOn>(std::exchange(handed_on_, {}));
  answers_.post([this, batches] {
    for (const auto& [running, batch] : *batches) deliver_guarded(*running, *batch);
  });
}

// What is thrown by the text or the form of an answer ends that answer alone, with one error: tokens that the engine has made
// before it hears of that are dropped.
void EngineService::deliver_guarded(Running& running, Batch& batch) {
  if (running.has_failed) return;
  try {
    const Recovery recovery;
    deliver(running, batch);
  } catch (const std::exception& thrown) {
    running.has_failed = true;
    Batch failed;
    failed.error = failure_of(thrown);
    running.deliver(failed);
    cancel(running.ticket);
  }
}

void EngineService::deliver(Running& running, Batch& batch) {
  text::AnswerText& text = *running.text;
  if (!text.looks_for_stops()) {
    for (const TokenEvent& event : batch.tokens) text.push(event.token, batch.events);
  }
  if (batch.done) {
    text.finish(batch.events);
    if (text.matched_stop() != nullptr) batch.matched_stop = *text.matched_stop();
    batch.n_reasoning_tokens = text.n_reasoning_tokens();
    batch.n_faults = text.n_faults();
  }
  running.deliver(batch);
}

void EngineService::finish(Ticket ticket, std::unique_ptr<Generation> done) {
  Running& running = *running_.at(ticket);
  running.clock.tokens(metrics_, static_cast<int64_t>(running.batch.tokens.size()));
  running.clock.end(metrics_, *done);
  running.batch.error = done->error;
  running.batch.done = std::move(done);
  hand_on(running);
  forget(ticket);
}

}  // namespace levin::serve
