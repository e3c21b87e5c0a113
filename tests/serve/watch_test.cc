// A step that does not end, as the watchdog, the log and the clients see it.
#include "serve/watch.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

#include "io/mapped_file.h"
#include "serve/served_demo.h"
#include "support/temp_dir.h"

namespace levin::test {
namespace {

using namespace levin::serve;
namespace fs = std::filesystem;

const std::string kAsk = R"({"max_tokens": 4, "prompt": ")" + [] {
  std::string words;
  for (int i = 0; i < 60; ++i) words += "river stone " + std::to_string(i) + " ";
  return words;
}() + "\"}";

// What was logged, read back from a file.
class LogFile {
 public:
  explicit LogFile(LogFormat format) : log_(format, file_) {}
  ~LogFile() { std::fclose(file_); }
  Log& log() { return log_; }
  std::string text() const { return must(io::read_file(folder_ / "log")); }

 private:
  TempDir folder_;
  std::FILE* file_ = std::fopen((folder_ / "log").c_str(), "w");
  Log log_;
};

TEST(LogTest, WritesForPeopleAndForMachines) {
  LogFile text(LogFormat::kText), machine(LogFormat::kJson);
  for (LogFile* file : {&text, &machine}) file->log().info("ready", "at \"last\"\nand now", {{"port", 80}});
  EXPECT_EQ(text.text(), "ready     at \"last\"\nand now\n");
  const std::string line = machine.text();
  EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1) << line;
  EXPECT_EQ(at(json(line), "level"), io::JsonValue("info"));
  EXPECT_EQ(at(json(line), "message"), io::JsonValue("at \"last\"\nand now"));
  EXPECT_EQ(at(json(line), "port"), io::JsonValue(80));
  EXPECT_EQ(at(json(line), "ts").as_string()->size(), std::string("2026-01-31T12:00:00.123Z").size());
}

TEST(StuckReport, FitsAPage) {
  StepWatch step{.number = 7, .seconds = 12.5, .phase = StepPhase::kTrunk};
  for (int i = 0; i < 500; ++i)
    step.requests.push_back({.ticket = i, .n_prompt = 1000 + i, .n_answer = i, .seconds = 3});
  const std::string report = stuck_report(step, {});
  EXPECT_LT(std::count(report.begin(), report.end(), '\n'), 50);
  for (const char* part : {"step 7 has taken 12.5 s and is computing the trunk", "its 500 requests",
                           "1003 prompt tokens", "and 460 more", "--watchdog-timeout"}) {
    EXPECT_NE(report.find(part), std::string::npos) << part << "\n" << report;
  }
}

// The engine's thread is held where it reports a damaged page, inside a step.
class Gate {
 public:
  void hold() {
    std::unique_lock lock(mutex_);
    if (!closed_) return;
    reached_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return !closed_; });
  }
  bool wait_until_reached() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [&] { return reached_; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    closed_ = false;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = true, reached_ = false;
};

void damage(const fs::path& folder) {
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().extension() != ".page") continue;
    std::fstream(entry.path(), std::ios::binary | std::ios::in | std::ios::out).seekp(300).write("damage", 6);
  }
}

template <class Predicate>
bool wait_for(Predicate done) {
  for (int i = 0; i < 1000 && !done(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  return done();
}

TEST(WatchTest, AStepThatDoesNotEndIsReportedAndNotWaitedFor) {
  const TempDir folder;
  std::string right;
  {
    const ServedDemo demo({}, {.max_running = 64, .cache_dir = folder.path()});
    right = *at(json(ask(demo.port(), "/v1/completions", kAsk).body), "choices.0.text").as_string();
  }
  damage(folder.path());
  LogFile log(LogFormat::kText);
  Gate gate;
  ServerOptions options;
  options.watch.limit = std::chrono::milliseconds(500);
  options.log = &log.log();
  const ServedDemo demo(
      options, {.max_running = 64, .cache_dir = folder.path(), .note = [&](const std::string&) { gate.hold(); }});
  std::thread opener([&] {
    EXPECT_TRUE(gate.wait_until_reached());
    EXPECT_TRUE(wait_for([&] { return ask(demo.port(), "/health").status == 503; }));
    const Reply refused = ask(demo.port(), "/v1/completions", kAsk);
    EXPECT_EQ(refused.status, 503);
    EXPECT_EQ(at(json(refused.body), "error.code"), io::JsonValue("engine_stuck"));
    EXPECT_TRUE(wait_for([&] { return log.text().find("step ") != std::string::npos; }));
  });
  const Reply reply = ask(demo.port(), "/v1/completions", kAsk);  // ends while the step does not
  EXPECT_EQ(reply.status, 500);
  EXPECT_NE(reply.body.find("it is not waited for"), std::string::npos) << reply.body;
  opener.join();
  gate.open();
  EXPECT_TRUE(wait_for([&] { return ask(demo.port(), "/health").status == 200; }));
  Reply again;  // a slow machine may need longer than the limit for an honest step
  EXPECT_TRUE(wait_for([&] {
    again = ask(demo.port(), "/v1/completions", kAsk);
    return again.status == 200;
  }));
  EXPECT_EQ(at(json(again.body), "choices.0.text"), io::JsonValue(right));
  const std::string text = log.text();
  for (const char* part : {"planning and reading stored pages; its 1 requests", "prompt tokens", "has ended after all"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
}

// No other step follows that would show that this one has ended.
TEST(WatchTest, AServerRecoversThoughTheStuckStepWasTheLastOfAllRequests) {
  Gate gate;
  ServerOptions options;
  options.watch.limit = std::chrono::milliseconds(500);
  options.before_step = [&] { gate.hold(); };
  const ServedDemo demo(options);
  EXPECT_EQ(ask(demo.port(), "/v1/completions", R"({"max_tokens": 1, "prompt": "Hi"})").status, 500);
  EXPECT_EQ(ask(demo.port(), "/health").status, 503);
  gate.open();
  EXPECT_TRUE(wait_for([&] { return ask(demo.port(), "/health").status == 200; }));
}

TEST(WatchTest, ABusyServerSaysHowItFares) {
  LogFile log(LogFormat::kJson);
  ServerOptions options;
  options.watch.stats_interval = std::chrono::milliseconds(100);
  options.log = &log.log();
  const ServedDemo demo(options);
  ask(demo.port(), "/v1/completions", kAsk);
  EXPECT_TRUE(wait_for([&] { return log.text().find("\"stats\"") != std::string::npos; }));
  const std::string text = log.text();
  EXPECT_GT(*at(json(text.substr(0, text.find('\n'))), "prompt_tokens_per_s").to_double(), 0);
  EXPECT_TRUE(wait_for([&] {  // idle: once the answer's last tokens are told, nothing is added
    const size_t n_bytes = log.text().size();
    std::this_thread::sleep_for(std::chrono::milliseconds(250));
    return log.text().size() == n_bytes;
  }));
}

}  // namespace
}  // namespace levin::test
