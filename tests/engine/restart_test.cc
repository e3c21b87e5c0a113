// Prefixes outside of the caches: a process that is started again reads from the disk what another computed, one that
// keeps running finds it in memory, and either gives the same tokens, also after the other was killed at any moment.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <thread>

#include "engine/loaded_model.h"
#include "engine/same_tokens.h"
#include "engine/step_loop.h"
#include "kv/prefix_index.h"

namespace levin::test {
namespace {

constexpr int kSpecSteps = 3;

struct Answered {
  std::vector<int32_t> tokens;
  SpeculationStats speculation;
  int64_t n_found = 0;
};

// On a model whose pages hold all rows, and on one of windows, entries and compressor state.
class RestartTest : public ::testing::TestWithParam<const char*> {
 protected:
  struct Circumstance {
    int64_t chunk_tokens = 512;
    int64_t n_cache_tokens = 4096;
    bool stored = true;
    int64_t n_memory_pages = 0;
    std::filesystem::path folder = {};  // empty: the test's
  };

  // A loop as a process has it: everything of its own but the folder.
  struct Process {
    Process(const Model& model, const RestartTest& test, const Circumstance& c)
        : runner(model, runner_options(c.n_cache_tokens, 1)),
          store(c.stored ? test.open_store(model, c.folder) : nullptr),
          disk(store.get()),
          loop(runner, {.chunk_tokens = c.chunk_tokens,
                        .n_spec_steps = kSpecSteps,
                        .max_context_tokens = 2048,
                        .n_host_blocks = c.n_memory_pages,
                        .disk = std::move(store)}) {}
    // Finishes the records, which the loop leaves to its next step: tests read them between requests.
    Answered run(GenerateRequest request) {
      const RequestId id = must(loop.submit(std::move(request)));
      while (loop.step()) {
        if (const auto done = loop.take(id)) {
          loop.finish_records();
          return answered(*done);
        }
      }
      return {};
    }
    Runner runner;
    std::unique_ptr<PageStore> store;  // until the loop has it
    PageStore* disk;
    StepLoop loop;
  };

  std::unique_ptr<PageStore> open_store(const Model& model, const std::filesystem::path& folder) const {
    const CacheLayout layout = model.cache_layout();
    return must(PageStore::open({.folder = folder.empty() ? folder_.path() : folder,
                                 .max_bytes = int64_t{1} << 30,
                                 .fingerprint = {},
                                 .n_tokens = layout.block_tokens(),
                                 .n_row_bytes = layout.block_bytes(),
                                 .n_state = model.d_state(),
                                 .note = [this](const std::string& line) { notes_.push_back(line); }}));
  }
  static Answered answered(const Generation& g) {
    Answered out{.tokens = {}, .speculation = g.speculation, .n_found = g.n_hit_tokens};
    for (const TokenEvent& event : g.tokens) out.tokens.push_back(event.token);
    return out;
  }
  static GenerateRequest request(std::vector<int32_t> prompt, double temperature = 0) {
    GenerateRequest out{.prompt = std::move(prompt), .max_tokens = 24};
    out.sampling = {.temperature = temperature, .seed = 5};
    return out;
  }

  // Records of a process's blocks of these tokens, from memory.
  static std::vector<std::vector<std::byte>> records_of(const Process& process, std::vector<int32_t> tokens) {
    std::vector<std::vector<std::byte>> out;
    const PrefixIndex& index = process.loop.cache().index();
    BlockKey key = index.first_key();
    const auto n_block = static_cast<size_t>(process.runner.block_tokens());
    for (size_t begin = 0; begin + n_block <= tokens.size(); begin += n_block) {
      key = key_after(key, std::span(tokens).subspan(begin, n_block));
      const std::shared_ptr<const BlockRecord> record = index.memory().find(key);
      if (record == nullptr) break;
      out.push_back(record->rows);
      const auto* state = reinterpret_cast<const std::byte*>(record->state.data());
      out.emplace_back(state, state + record->state.size() * sizeof(float));
    }
    return out;
  }
  void SetUp() override {
    if (!why_not_here_.empty()) GTEST_SKIP() << why_not_here_;
  }
  void TearDown() override {
    for (const std::string& line : notes_) ADD_FAILURE() << line;
  }
  bool keeps_all_rows() const { return model_->cache_layout().keeps_all_rows(); }

  TempDir folder_;
  TempDir fixture_;
  const bool is_demo_ = std::string(GetParam()).starts_with("demo");
  const std::filesystem::path model_folder_ = is_demo_ ? demo_model_folder(GetParam()) : materialised(GetParam());
  const std::string why_not_here_ = why_not_on_tested_device(model_folder_);
  const std::unique_ptr<Model> model_ =
      why_not_here_.empty() ? load_model(model_folder_, {.numerics = NumericsMode::kFast}) : nullptr;
  const std::vector<int32_t> prompt_ =
      is_demo_ ? text_prompt(model_folder_, 70, 300) : random_prompts(model_folder_, 70, {300}).front();
  mutable std::vector<std::string> notes_;

 private:
  std::filesystem::path materialised(const std::string& name) {
    must(materialise(fixture_folder(name), fixture_.path()));
    return fixture_.path();
  }
};
INSTANTIATE_TEST_SUITE_P(Models, RestartTest,
                         ::testing::Values("demo-v32", "demo-glm", "v4-flash", "v4-fp4", "v4-dspark", "glm-next",
                                           "v41-flash"),
                         [](const auto& model) { return test_name(model.param); });

TEST_P(RestartTest, AnotherProcessGoesOnFromTheDisk) {
  const GenerateRequest what = request(prompt_, 0.8);
  Process first(*model_, *this, {.stored = false});
  const Answered cold = first.run(what);
  Process(*model_, *this, {}).run(what);
  for (const int64_t chunk : {512, 96, 20}) {
    Process again(*model_, *this, {.chunk_tokens = chunk});
    const Answered found = again.run(what);
    EXPECT_EQ(found.n_found, 256) << chunk;
    EXPECT_EQ(again.loop.n_restored_tokens(), 256) << chunk;
    EXPECT_EQ(found.tokens, cold.tokens) << chunk;
    EXPECT_EQ(found.speculation.accepted_per_position, cold.speculation.accepted_per_position) << chunk;
    // the MTP layer's rows and state among them, and all that was written after them
    if (!keeps_all_rows()) continue;
    EXPECT_TRUE(page_contents(again.runner) == page_contents(first.runner)) << chunk;
  }
}

// To the last bit, windows, compressor state and the MTP layer's rows and state among it, wherever the hit ends and
// however the rest is cut into steps.
TEST_P(RestartTest, WhatIsStoredAfterAHitIsWhatAColdRunStores) {
  const GenerateRequest what = request(random_prompts(model_folder_, 71, {700}).front(), 0.8);
  Process cold(*model_, *this, {.stored = false, .n_memory_pages = 100});
  const Answered right = cold.run(what);
  std::vector<int32_t> tokens = what.prompt;
  tokens.insert(tokens.end(), right.tokens.begin(), right.tokens.end());
  const auto stored = records_of(cold, tokens);
  const int64_t n_block = cold.runner.block_tokens();
  ASSERT_GE(std::ssize(stored), 2 * (700 / n_block));
  for (const int64_t n_known : {1, 2, 4}) {
    for (const int64_t chunk : {512, 150, 64}) {
      Process process(*model_, *this, {.chunk_tokens = chunk, .stored = false, .n_memory_pages = 100});
      GenerateRequest beginning = what;
      beginning.prompt.resize(static_cast<size_t>(n_known * n_block + 1));
      beginning.max_tokens = 2;
      process.run(beginning);
      const Answered found = process.run(what);
      EXPECT_EQ(found.n_found, n_known * n_block) << chunk;
      EXPECT_EQ(found.tokens, right.tokens) << n_known << " blocks, chunks of " << chunk;
      EXPECT_EQ(found.speculation.accepted_per_position, right.speculation.accepted_per_position);
      EXPECT_EQ(found.speculation.n_verify_passes, right.speculation.n_verify_passes);
      EXPECT_TRUE(records_of(process, tokens) == stored) << n_known << " blocks, chunks of " << chunk;
    }
  }
}

// Drafts right after a hit look at the MTP layer's rows from before it, and at the one made of the state that was kept.
TEST_P(RestartTest, DraftsRightAfterAHitAreThoseOfAColdRun) {
  const GenerateRequest beginning = request(random_prompts(model_folder_, 72, {259}).front());
  Process process(*model_, *this, {.stored = false, .n_memory_pages = 100});
  process.run(beginning);
  int64_t n_accepted = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    GenerateRequest what = beginning;
    what.sampling = {.temperature = 1.5, .seed = seed};
    what.max_tokens = 8;
    const Answered right = Process(*model_, *this, {.stored = false}).run(what), found = process.run(what);
    EXPECT_EQ(found.n_found, 256);
    EXPECT_EQ(found.tokens, right.tokens) << seed;
    EXPECT_EQ(found.speculation.accepted_per_position, right.speculation.accepted_per_position) << seed;
    n_accepted += right.speculation.n_accepted;
  }
  EXPECT_GT(n_accepted, 20);  // the noise is the same for drafts and targets
}

// What is in memory counts as found, and a memory that is too small for all makes no difference but that.
TEST_P(RestartTest, MemoryStandsBeforeTheDisk) {
  const Answered right = Process(*model_, *this, {.stored = false}).run(request(prompt_));
  Process(*model_, *this, {}).run(request(prompt_));
  for (const int64_t n_memory_pages : {1, 100}) {
    Process again(*model_, *this, {.n_memory_pages = n_memory_pages});
    EXPECT_EQ(again.run(request(prompt_)).tokens, right.tokens);
    EXPECT_EQ(again.loop.n_restored_tokens(), 256);
    again.loop.forget_prefixes();
    EXPECT_EQ(again.run(request(prompt_)).tokens, right.tokens);
    const int64_t n_in_memory = n_memory_pages == 1 ? again.runner.block_tokens() : 256;
    EXPECT_EQ(again.loop.n_restored_tokens(), 256 + 256 - n_in_memory);
    EXPECT_EQ(again.loop.counts().n_hit_tokens, n_in_memory);
  }
}

TEST_P(RestartTest, ADamagedRecordIsComputedAgain) {
  const Answered right = Process(*model_, *this, {}).run(request(prompt_));
  int64_t n_files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_.path())) {
    if (entry.path().extension() != ".page") continue;
    ++n_files;
    const auto middle = static_cast<int64_t>(entry.file_size()) / 2;
    std::fstream(entry.path(), std::ios::binary | std::ios::in | std::ios::out).seekp(middle).write("damage", 6);
  }
  EXPECT_GE(n_files, 256 / model_->cache_layout().block_tokens());
  Process again(*model_, *this, {});
  const Answered found = again.run(request(prompt_));
  EXPECT_EQ(found.tokens, right.tokens);
  EXPECT_EQ(found.n_found, 0);
  ASSERT_EQ(notes_.size(), 1u);  // what follows it is not looked for
  EXPECT_NE(notes_[0].find("its checksum is wrong"), std::string::npos) << notes_[0];
  notes_.clear();
}

// The answer is stored with the prompt, and what was in nobody's memory is looked for in the folder too.
TEST_P(RestartTest, TheSecondTurnOfAConversationFindsTheFirst) {
  Answered first = Process(*model_, *this, {}).run(request(prompt_));
  std::vector<int32_t> second = prompt_;
  second.insert(second.end(), first.tokens.begin(), first.tokens.end());
  second.insert(second.end(), prompt_.begin(), prompt_.begin() + 90);
  const Answered cold = Process(*model_, *this, {.stored = false}).run(request(second));
  Process again(*model_, *this, {.chunk_tokens = 128});
  EXPECT_EQ(again.run(request(second)).tokens, cold.tokens);
  // Whole blocks of the 300 tokens and 23 of the answer: five of 64, or two of 128.
  const int64_t n_block = model_->cache_layout().block_tokens(), n_restored = 323 / n_block * n_block;
  EXPECT_EQ(again.loop.n_restored_tokens(), n_restored);
  again.disk->flush();                                 // blocks are written while the loop runs on
  EXPECT_EQ(again.run(request(second)).n_found, 384);  // in memory now, or of this process's on disk
  EXPECT_EQ(again.loop.n_restored_tokens(), keeps_all_rows() ? n_restored : n_restored + 384);
}

TEST_P(RestartTest, LogProbabilitiesOfAPromptAreComputed) {
  Process(*model_, *this, {}).run(request(prompt_));
  Process again(*model_, *this, {});
  GenerateRequest what = request(prompt_);
  what.prompt_logprobs = true;
  size_t n_scored = 0;
  what.on_prompt = [&](const std::vector<RowLogprobs>& logprobs) { n_scored = logprobs.size(); };
  EXPECT_EQ(again.run(what).n_found, 0);
  EXPECT_EQ(n_scored, prompt_.size() - 1);
}

// Company, a cache too small for it, and pages that go to the disk and come back while others run.
TEST_P(RestartTest, TheDiskServesPreemptedRequests) {
  std::vector<GenerateRequest> requests;
  std::vector<Answered> alone;
  for (int i = 0; i < 6; ++i) {
    std::vector<int32_t> prompt = prompt_;
    prompt.resize(static_cast<size_t>(100 + 40 * i));
    prompt[static_cast<size_t>(20 * i)] = 7;
    requests.push_back(request(prompt, i % 2 == 0 ? 0 : 0.8));
    alone.push_back(Process(*model_, *this, {.stored = false}).run(requests.back()));
  }
  for (int turn = 0; turn < 2; ++turn) {
    Process process(*model_, *this, {.chunk_tokens = 150, .n_cache_tokens = 10 * kPageTokens});
    std::vector<RequestId> ids;
    for (const GenerateRequest& r : requests) ids.push_back(must(process.loop.submit(r)));
    while (process.loop.step()) continue;
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(answered(*process.loop.take(ids[i])).tokens, alone[i].tokens) << i;
    }
    EXPECT_GE(process.loop.n_restored_tokens(), turn == 0 ? 0 : 500);
  }
}

// This program once more, in the same test, where it writes to the folder until it is killed. Started anew and not forked,
// because a device does not come along.
class OtherProcess {
 public:
  // Returns when it is about to write.
  explicit OtherProcess(const std::filesystem::path& folder) {
    int ready[2];
    EXPECT_EQ(::pipe2(ready, O_CLOEXEC), 0);
    const std::string filter = std::string("--gtest_filter=") + full_test_name();
    const std::vector<std::string> variables = environment(folder);
    std::vector<char*> pointers;
    for (const std::string& variable : variables) pointers.push_back(const_cast<char*>(variable.c_str()));
    pointers.push_back(nullptr);
    child_ = ::fork();
    if (child_ == 0) {
      ::dup2(ready[1], STDOUT_FILENO);
      ::execle("/proc/self/exe", "test_restart", filter.c_str(), static_cast<char*>(nullptr), pointers.data());
      ::_exit(127);
    }
    ::close(ready[1]);
    std::string said;
    char piece[256];
    for (ssize_t n = 1; n > 0 && said.find(kReady) == std::string::npos;) {
      n = ::read(ready[0], piece, sizeof(piece));
      said.append(piece, static_cast<size_t>(std::max<ssize_t>(n, 0)));
    }
    ::close(ready[0]);
    EXPECT_NE(said.find(kReady), std::string::npos) << said;
  }
  void kill() const {
    EXPECT_EQ(::kill(child_, SIGKILL), 0);
    EXPECT_EQ(::waitpid(child_, nullptr, 0), child_);
  }

  // Of the process that is the other one: where it writes.
  static const char* folder() { return std::getenv(kWriterFolder); }
  static void tell_ready() {
    std::puts(kReady);
    std::fflush(stdout);
  }

 private:
  static constexpr const char* kWriterFolder = "LEVIN_TEST_WRITER_FOLDER";
  static constexpr const char* kReady = "ready to write";

  static std::string full_test_name() {
    const ::testing::TestInfo* test = ::testing::UnitTest::GetInstance()->current_test_info();
    return std::string(test->test_suite_name()) + "." + test->name();
  }
  // Without what chooses among the tests.
  static std::vector<std::string> environment(const std::filesystem::path& folder) {
    std::vector<std::string> out = {std::string(kWriterFolder) + "=" + folder.string()};
    for (char** variable = environ; *variable != nullptr; ++variable) {
      if (!std::string_view(*variable).starts_with("GTEST_")) out.emplace_back(*variable);
    }
    return out;
  }

  pid_t child_ = -1;
};

// `tools/serve_trial kill` does the same with the whole server, as often as wanted.
TEST_P(RestartTest, AKillAtAnyMomentNeverGivesAWrongToken) {
  if (OtherProcess::folder() != nullptr) {
    Process process(*model_, *this, {.chunk_tokens = 64, .folder = OtherProcess::folder()});
    OtherProcess::tell_ready();
    while (true) process.run(request(prompt_));
  }
  const Answered right = Process(*model_, *this, {.stored = false}).run(request(prompt_));
  std::mt19937 random(11);
  int64_t most_restored = 0;
  for (int round = 0; round < 5; ++round) {
    OtherProcess writer(folder_.path());
    std::this_thread::sleep_for(std::chrono::milliseconds(5 + random() % 150));
    writer.kill();
    Process again(*model_, *this, {});
    EXPECT_EQ(again.run(request(prompt_)).tokens, right.tokens) << round;
    most_restored = std::max(most_restored, again.loop.n_restored_tokens());
  }
  EXPECT_GT(most_restored, 0);
}

}  // namespace
}  // namespace levin::test
