// `levin load` against this server: the two must understand each other.
#include <gtest/gtest.h>

#include "apps/load/load_report.h"
#include "apps/load/load_run.h"
#include "serve/served_demo.h"

namespace levin::test {
namespace {

using namespace levin::app;

LoadOptions options(const ServedDemo& demo) {
  LoadOptions out{.n_requests = 6, .prompts = {{30, 3}, {90, 1}}, .n_shared_tokens = 70, .n_answer_tokens = 12};
  out.url = must(parse_url("127.0.0.1:" + std::to_string(demo.port())));
  return out;
}

TEST(LoadClientTest, MeasuresAServer) {
  const ServedDemo demo;
  const LoadClient client = must(LoadClient::connect(options(demo)));
  EXPECT_EQ(client.options().model, "demo");
  for (const LoadLevel& level : {LoadLevel{.concurrency = 3}, LoadLevel{.rate = 200}}) {
    const LevelReport report = report_of(client.run(level));
    EXPECT_EQ(report.n_ok, 6) << (report.errors.empty() ? "" : report.errors[0]);
    EXPECT_EQ(report.n_answer, 6 * 12);
    EXPECT_GE(report.n_prompt, 6 * 100);
    EXPECT_LE(report.n_prompt, 6 * 160);
    EXPECT_EQ(report.ttft_ms.size(), 6u);
    EXPECT_GT(report.mean_accept_length(), 1);
    EXPECT_GE(report.n_found, level.rate > 0 ? 64 : 0);
  }
  EXPECT_EQ(client.body(3), client.body(3));
  EXPECT_NE(client.body(3), client.body(4));
}

TEST(LoadClientTest, ChatsAndNamesWhatWasRefused) {
  const ServedDemo demo;
  LoadOptions o = options(demo);
  o.chat = true;
  EXPECT_EQ(report_of(must(LoadClient::connect(o)).run({.concurrency = 2})).n_ok, 6);
  o.prompts = {{4000, 1}};
  const LevelReport report = report_of(must(LoadClient::connect(o)).run({.concurrency = 2}));
  EXPECT_EQ(report.n_failed, 6);
  ASSERT_FALSE(report.errors.empty());
  EXPECT_NE(report.errors[0].find("context_length_exceeded"), std::string::npos) << report.errors[0];
}

TEST(LoadClientTest, SaysWhereNobodyListens) {
  LoadOptions o;
  o.url = must(parse_url("127.0.0.1:1"));
  const auto client = LoadClient::connect(o);
  ASSERT_FALSE(client.ok());
  EXPECT_NE(client.error().message.find("cannot reach 127.0.0.1 port 1"), std::string::npos);
}

}  // namespace
}  // namespace levin::test
