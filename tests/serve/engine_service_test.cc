// The engine on its thread: many clients at once, cancellation, stop strings, an end with work left. Dummy weights of
// a tiny model, so that the thread sanitizer sees all of it.
#include "serve/engine_service.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <new>
#include <thread>

#include "engine/tested_device.h"
#include "serve/answer_form.h"
#include "support/fixture.h"
#include "support/must.h"

namespace levin::test {
namespace {

using serve::Batch;
using serve::EngineService;
using serve::Metrics;

class EngineServiceTest : public ::testing::Test {
 protected:
  EngineServiceTest() {
    EngineOptions options;
    options.model_folder = fixture_folder("v32-odd").string();
    options.load_format = LoadFormat::kDummy;
    options.n_spec_steps = 2;
    options.max_model_len_tokens = 256;
    options.cache_tokens = 640;  // less than all of them want
    options.max_running = 4;
    engine_ = must(Engine::load(on_tested_device(options), {}));
  }

  static GenerateRequest request(int i) {
    GenerateRequest out{.prompt = {1, 2 + i % 3, 7}, .max_tokens = 4 + i % 9};
    out.sampling = {.temperature = i % 2 == 0 ? 0.0 : 0.9, .seed = static_cast<uint64_t>(i)};
    return out;
  }
  std::unique_ptr<text::AnswerText> text(std::vector<std::string> stop = {}) const {
    return std::make_unique<text::AnswerText>(tokenizer_, text::AnswerText::Options{.stop = std::move(stop)});
  }

  const text::Tokenizer tokenizer_ = must(text::Tokenizer::load(std::string(LEVIN_SOURCE_DIR) + "/models/demo-v32"));
  Metrics metrics_{"tiny"};
  std::unique_ptr<Engine> engine_;
};

std::vector<int32_t> ids_of(const Generation& generation) {
  std::vector<int32_t> out;
  for (const TokenEvent& event : generation.tokens) out.push_back(event.token);
  return out;
}

TEST_F(EngineServiceTest, AnswersManyClientsAtOnce) {
  constexpr int kClients = 3, kEach = 6;
  std::vector<std::vector<int32_t>> alone;
  for (int i = 0; i < kClients * kEach; ++i) alone.push_back(ids_of(must(engine_->generate(request(i)))));

  std::vector<std::vector<int32_t>> streamed(alone.size()), whole(alone.size());
  std::atomic<int> n_over{0}, n_cut{0};
  {
    EngineService service(*engine_, metrics_);
    std::vector<std::thread> clients;
    for (int c = 0; c < kClients; ++c) {
      clients.emplace_back([&, c] {
        for (int k = 0; k < kEach; ++k) {
          const int i = c * kEach + k;
          ASSERT_TRUE(service.reserve(1, 100));
          const serve::Ticket ticket = service.submit(request(i), text(), [&, i](Batch& batch) {
            for (const TokenEvent& event : batch.tokens) streamed[static_cast<size_t>(i)].push_back(event.token);
            if (!batch.done) return;
            whole[static_cast<size_t>(i)] = ids_of(*batch.done);
            if (batch.done->finish_reason == FinishReason::kCancelled) ++n_cut;
            ++n_over;
          });
          if (k % 3 == 2) service.cancel(ticket);
        }
      });
    }
    for (std::thread& client : clients) client.join();
    while (n_over < kClients * kEach) std::this_thread::yield();
  }
  for (size_t i = 0; i < alone.size(); ++i) {
    EXPECT_EQ(streamed[i], whole[i]) << i;
    ASSERT_LE(whole[i].size(), alone[i].size());
    EXPECT_TRUE(std::equal(whole[i].begin(), whole[i].end(), alone[i].begin())) << i;
  }
  EXPECT_LE(n_cut, kClients * kEach / 3);
}

TEST_F(EngineServiceTest, GivesEveryRequestItsLastBatchWhenItEnds) {
  std::atomic<int> n_over{0};
  {
    EngineService service(*engine_, metrics_);
    for (int i = 0; i < 8; ++i) {
      GenerateRequest what = request(i);
      what.max_tokens = 200;
      service.submit(std::move(what), text({"never there"}), [&](Batch& batch) { n_over += batch.done ? 1 : 0; });
    }
  }
  EXPECT_EQ(n_over, 8);
}

TEST_F(EngineServiceTest, RefusesInABatchAndFreesThePlace) {
  EngineService service(*engine_, metrics_);
  ASSERT_TRUE(service.reserve(1, 1));
  EXPECT_FALSE(service.reserve(1, 1));
  std::atomic<bool> refused{false};
  service.submit({.prompt = {}}, text(), [&](Batch& batch) { refused = batch.error.has_value(); });
  while (!refused) std::this_thread::yield();
  while (!service.reserve(1, 1)) std::this_thread::yield();
}

TEST_F(EngineServiceTest, AnAnswerThatThrowsEndsAloneAndOnce) {
  std::atomic<int> n_over{0}, n_right{0}, n_failed{0};
  std::atomic<bool> failed{false};
  {
    EngineService service(*engine_, metrics_);
    service.submit(request(0), text(), [&](Batch& batch) {
      if (!batch.error) throw std::bad_alloc();
      failed = batch.error->kind == ErrorKind::kOutOfMemory;
      n_over += n_failed++ == 0 ? 1 : 0;
    });
    for (int i = 1; i < 4; ++i) {
      service.submit(request(i), text(), [&](Batch& batch) {
        n_right += batch.done && !batch.error ? 1 : 0;
        n_over += batch.done || batch.error ? 1 : 0;
      });
    }
    while (n_over < 4) std::this_thread::yield();
  }
  EXPECT_TRUE(failed);
  EXPECT_EQ(n_failed, 1);
  EXPECT_EQ(n_right, 3);
}

// Wherever the requests are on their way to the engine when the server shuts down, and also if they come after that.
TEST_F(EngineServiceTest, EveryRequestHearsThatTheServerShutsDown) {
  constexpr int kRequests = 32;
  for (int round = 0; round < 100; ++round) {
    std::atomic<int> n_told{0}, n_over{0};
    std::atomic<bool> all_there{false}, is_down{false};
    int n_steps = 0;
    const auto wait = [&] {
      const std::atomic<bool>& event = n_steps++ == 0 ? all_there : is_down;
      while (!event) std::this_thread::yield();
    };
    EngineService service(*engine_, metrics_, {.before_step = wait});
    const auto submit = [&](int i) {
      GenerateRequest what = request(i);
      what.max_tokens = 200;
      const auto told = std::make_shared<bool>(false);
      service.submit(std::move(what), text(), [&, told](Batch& batch) {
        if (*told || (!batch.error && !batch.done)) return;
        *told = true;
        n_told += batch.shutting_down ? 1 : 0;
        ++n_over;
      });
    };
    for (int i = 0; i < kRequests; ++i) submit(i);
    all_there = true;
    const auto then = std::chrono::steady_clock::now() + std::chrono::microseconds(round);
    while (std::chrono::steady_clock::now() < then) {
    }
    service.shut_down();
    is_down = true;
    submit(kRequests);
    while (n_over < kRequests + 1) std::this_thread::yield();
    ASSERT_EQ(n_told, kRequests + 1) << "round " << round;
  }
}

// One form shared by requests that run side by side: its matchers belong to the engine's thread.
TEST_F(EngineServiceTest, SharesAForm) {
  const text::ChatFormat format = must(text::ChatFormat::make(text::make_deepseek_v32_chat, tokenizer_));
  serve::AnswerForms forms(tokenizer_, format, engine_->config().n_vocab);
  std::atomic<int> n_over{0}, n_right{0};
  EngineService service(*engine_, metrics_);
  for (int i = 0; i < 4; ++i) {
    GenerateRequest what = request(i);
    what.max_tokens = 100;
    what.structure = must(forms.make({.text = {.kind = serve::TextForm::Kind::kRegex, .regex = "[a-z]{3}-[0-9]{2}"}}));
    const auto shown = std::make_shared<std::string>();
    service.submit(std::move(what), text(), [&, shown](Batch& batch) {
      for (const text::OutputEvent& event : batch.events) *shown += event.text;
      if (!batch.done) return;
      n_right += shown->size() == 6 && shown->at(3) == '-' ? 1 : 0;
      ++n_over;
    });
  }
  while (n_over < 4) std::this_thread::yield();
  EXPECT_EQ(n_right, 4);
}

}  // namespace
}  // namespace levin::test
