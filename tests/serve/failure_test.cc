// A request that fails while it runs gets an error in its own dialect, as a whole and in a stream, and disturbs no other. The requests here ask for a capital and a tilde, and forbid the tilde before the third token: after the first
// token nothing is left to choose.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <future>
#include <thread>

#include "base/check.h"
#include "base/device_fault.h"
#include "serve/served_demo.h"
#include "support/must.h"

namespace levin::test {
namespace {

constexpr char kQuestion[] = R"("messages": [{"role": "user", "content": "What is the capital of Japan?"}])";

class FailureTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    serve::ServerOptions options;
    options.more_routes = {{.method = "POST",
                            .path = "/throws",
                            .handle =
                                [](const serve::ServedModel&, const std::shared_ptr<serve::Exchange>&) {
                                  LEVIN_CHECK(kQuestion[0] == 0, "a handler of {}", "tests");
                                },
                            .what = "Throws"},
                           {.method = "POST",
                            .path = "/waits",
                            .handle =
                                [](const serve::ServedModel&, const std::shared_ptr<serve::Exchange>& exchange) {
                                  ++n_waiting_;
                                  while (!may_go_on_) std::this_thread::yield();
                                  exchange->respond({});
                                },
                            .what = "Waits"}};
    demo_ = std::make_unique<ServedDemo>(options);
  }
  static void TearDownTestSuite() { demo_ = nullptr; }
  // A request that fails once it has a token.
  static Reply post(const std::string& path, const std::string& members, bool stream,
                    const std::string& regex = "[A-Z]~") {
    const int32_t tilde = must(demo_->tokenizer().encode("~")).front();
    return ask(demo_->port(), path,
               "{" + members + R"(, "guided_regex": ")" + regex + R"(", "min_tokens": 3, "stop_token_ids": [)" +
                   std::to_string(tilde) + R"(], "stream": )" + (stream ? "true" : "false") + "}");
  }
  static void expect_error(const io::JsonValue& error) {
    EXPECT_EQ(at(error, "type"), io::JsonValue("invalid_request_error"));
    EXPECT_NE(at(error, "message").as_string()->find("no token is left at position"), std::string::npos)
        << io::dump_json(error);
  }

  static std::unique_ptr<ServedDemo> demo_;
  static inline std::atomic<int> n_waiting_{0};
  static inline std::atomic<bool> may_go_on_{false};
};
std::unique_ptr<ServedDemo> FailureTest::demo_;

TEST_F(FailureTest, OpenAiSaysSoAsAWholeAndInStreams) {
  const std::pair<const char*, std::string> requests[] = {
      {"/v1/chat/completions", std::string(kQuestion) + R"(, "max_tokens": 8)"},
      {"/v1/completions", R"("prompt": "import os", "max_tokens": 8)"},
      {"/v1/responses", R"("input": "What is the capital of Japan?", "max_output_tokens": 8)"}};
  for (const auto& [path, members] : requests) {
    const Reply whole = post(path, members, false);
    EXPECT_EQ(whole.status, 400) << path;
    expect_error(at(json(whole.body), "error"));
    const Reply stream = post(path, members, true);
    EXPECT_EQ(stream.status, 200) << path;
    const std::vector<std::string> events = events_of(stream.body);
    ASSERT_GT(events.size(), 1u) << path;
    const io::JsonValue last = json(events.back());
    if (std::string(path) != "/v1/responses") {
      expect_error(at(last, "error"));
      continue;
    }
    EXPECT_EQ(at(last, "type"), io::JsonValue("response.failed"));
    EXPECT_EQ(at(last, "response.status"), io::JsonValue("failed"));
    EXPECT_EQ(at(last, "response.error.code"), io::JsonValue("invalid_request_error"));
  }
}

TEST_F(FailureTest, AnthropicSaysSoAsAWholeAndInStreams) {
  const std::string members = std::string(kQuestion) + R"(, "max_tokens": 8)";
  const Reply whole = post("/v1/messages", members, false);
  EXPECT_EQ(whole.status, 400);
  EXPECT_EQ(at(json(whole.body), "type"), io::JsonValue("error"));
  expect_error(at(json(whole.body), "error"));
  const Reply stream = post("/v1/messages", members, true);
  EXPECT_EQ(stream.status, 200);
  EXPECT_NE(stream.body.find("event: error\n"), std::string::npos) << stream.body;
  expect_error(at(json(events_of(stream.body).back()), "error"));
}

// Of the choices here, those that begin with A fail at their second token, and those that begin with N have no end.
TEST_F(FailureTest, OneChoiceThatFailsEndsTheOthers) {
  const auto n_of = [](const std::string& name) {
    const std::string page = demo_->server().metrics();
    const size_t found = page.find(name);
    return found == std::string::npos ? -1.0 : std::atof(page.c_str() + page.find("} ", found) + 2);
  };
  const std::string cancelled = "finished_reason=\"cancelled\"", whole = "finished_reason=\"length\"";
  const double n_cancelled = n_of(cancelled), n_whole = n_of(whole);
  const Reply reply = post("/v1/completions",
                           R"("prompt": "x", "n": 8, "temperature": 100, "seed": 1, "max_tokens": 1900,
                              "ignore_eos": true)",
                           false, "A~|N1*");
  ASSERT_EQ(reply.status, 400);
  expect_error(at(json(reply.body), "error"));
  while (n_of(cancelled) == n_cancelled && n_of(whole) == n_whole) std::this_thread::yield();
  EXPECT_EQ(n_of(whole), n_whole);
}

TEST_F(FailureTest, AHandlerThatThrowsEndsItsRequestAlone) {
  const Reply reply = ask(demo_->port(), "/throws", "{}");
  EXPECT_EQ(reply.status, 500);
  EXPECT_EQ(at(json(reply.body), "error.type"), io::JsonValue("server_error"));
  EXPECT_NE(reply.body.find("a handler of tests"), std::string::npos) << reply.body;
}

TEST_F(FailureTest, AProbeDoesNotWaitForHandlersThatAreBusy) {
  std::vector<std::future<Reply>> busy;
  for (int i = 0; i < 5; ++i) {
    busy.push_back(std::async(std::launch::async, [] { return ask(demo_->port(), "/waits", "{}"); }));
  }
  while (n_waiting_ == 0) std::this_thread::yield();
  EXPECT_EQ(ask(demo_->port(), "/health").status, 200);
  EXPECT_EQ(ask(demo_->port(), "/metrics").status, 200);
  EXPECT_LT(n_waiting_, 5);
  may_go_on_ = true;
  for (std::future<Reply>& reply : busy) EXPECT_EQ(reply.get().status, 200);
}

TEST_F(FailureTest, OthersAreNotDisturbed) {
  EXPECT_EQ(post("/v1/completions", R"("prompt": "x")", false).status, 400);
  const Reply good = ask(demo_->port(), "/v1/chat/completions", std::string("{") + kQuestion + "}");
  EXPECT_EQ(at(json(good.body), "choices.0.message.content"), io::JsonValue("The capital of Japan is Tokyo."));
  EXPECT_EQ(demo_->server().metrics().find("finished_reason=\"error\"} 0\n"), std::string::npos);
}

// Of a device here whose failure is thrown where it would show; tests/serve/lost_device_test.py makes a real one fail.
TEST(LostDeviceTest, RunningAndNewRequestsGet503AndTheProgramIsTold) {
  std::atomic<int> n_steps{0};
  std::promise<Error> told;
  serve::ServerOptions options;
  options.before_step = [&] {
    if (++n_steps == 20) throw DeviceFault({ErrorKind::kRuntime, "the CUDA device failed: torn out"});
  };
  options.on_lost_device = [&](const Error& error) { told.set_value(error); };
  ServedDemo demo(options);
  const auto long_answer = [&](bool stream) {
    return ask(demo.port(), "/v1/completions",
               R"({"prompt": "import os", "max_tokens": 1000, "ignore_eos": true, "stream": )" +
                   std::string(stream ? "true" : "false") + "}");
  };
  std::vector<std::future<Reply>> whole;
  for (int i = 0; i < 3; ++i) whole.push_back(std::async(std::launch::async, long_answer, false));
  std::future<Reply> stream = std::async(std::launch::async, long_answer, true);
  const auto is_refusal = [](const io::JsonValue& body) {
    return at(body, "error.code") == io::JsonValue("device_lost") &&
           at(body, "error.type") == io::JsonValue("unavailable_error");
  };
  for (std::future<Reply>& answer : whole) {
    const Reply reply = answer.get();
    EXPECT_EQ(reply.status, 503);
    EXPECT_TRUE(is_refusal(json(reply.body))) << reply.body;
  }
  const Reply streamed = stream.get();
  if (streamed.status == 200) {
    EXPECT_TRUE(is_refusal(json(events_of(streamed.body).back()))) << streamed.body;
  } else {
    EXPECT_EQ(streamed.status, 503);  // it had not begun
  }
  const Error error = told.get_future().get();
  EXPECT_EQ(error.kind, ErrorKind::kNoDevice);
  EXPECT_EQ(error.message, "the CUDA device failed: torn out");
  EXPECT_EQ(long_answer(false).status, 503);
  EXPECT_EQ(long_answer(true).status, 503);
  EXPECT_EQ(ask(demo.port(), "/health", "").status, 503);
  EXPECT_EQ(n_steps, 20);
}

}  // namespace
}  // namespace levin::test
