// What the load client makes of a server's bytes, and the statistics over them.
#include <gtest/gtest.h>

#include "apps/levin/machine_load.h"
#include "apps/load/http_client.h"
#include "apps/load/load_report.h"
#include "apps/report/percentile.h"
#include "apps/report/plot.h"
#include "support/must.h"

namespace levin::app {
namespace {

using levin::test::must;

TEST(UrlTest, TakesTheUsualForms) {
  const auto expect = [](const char* text, const char* host, int port, const char* base) {
    const Url url = must(parse_url(text));
    EXPECT_EQ(url.host, host) << text;
    EXPECT_EQ(url.port, port) << text;
    EXPECT_EQ(url.base, base) << text;
  };
  expect("http://127.0.0.1:8000", "127.0.0.1", 8000, "");
  expect("localhost:80/v1/", "localhost", 80, "");
  expect("http://host", "host", 80, "");
  expect("http://[::1]:9/a/b/v1", "::1", 9, "/a/b");
  for (const char* bad : {"https://host", "ftp://host", "", "http://:80", "host:0", "host:70000", "host:x", "[::1"})
    EXPECT_FALSE(parse_url(bad).ok()) << bad;
}

struct Read {
  Status status;
  std::string body;
  int code = 0;
  bool whole = false;
};

Read read(const std::string& bytes, size_t piece) {
  Read out;
  HttpReader reader;
  for (size_t at = 0; at < bytes.size() && out.status.ok(); at += piece)
    out.status = reader.feed(std::string_view(bytes).substr(at, piece), &out.body);
  if (out.status.ok()) out.status = reader.close();
  out.code = reader.status();
  out.whole = reader.whole();
  return out;
}

TEST(HttpReaderTest, PutsAnAnswerTogetherHoweverItIsCut) {
  const std::pair<std::string, std::string> cases[] = {
      {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "hello"},
      {"HTTP/1.1 200 OK\r\ncontent-length:0\r\n\r\n", ""},
      {"HTTP/1.0 200 OK\r\n\r\nuntil the end", "until the end"},
      {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: "
       "chunked\r\n\r\n3;x=1\r\nabc\r\nA\r\n0123456789"
       "\r\n0\r\nTrailer: x\r\n\r\n",
       "abc0123456789"},
      {"HTTP/1.1 204 No Content\r\n\r\n", ""},
  };
  for (const auto& [bytes, body] : cases) {
    for (const size_t piece : {size_t{1}, size_t{3}, bytes.size()}) {
      const Read found = read(bytes, piece);
      EXPECT_TRUE(found.status.ok() && found.whole) << bytes;
      EXPECT_EQ(found.body, body);
    }
  }
}

TEST(HttpReaderTest, RefusesWhatIsNoAnswer) {
  const std::string head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const std::string& bytes :
       {std::string("SSH-2.0\r\n\r\n"), std::string("HTTP/1.1 abc\r\n\r\n"), std::string("HTTP/1.1 200 OK\r\n"),
        std::string("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell"),
        std::string("HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhell"), head + "zz\r\n", head + "3\r\nabcd\r\n",
        head + "ffffffffffffffffff\r\n", head + "3\r\nabc\r\n", std::string(70'000, 'x'), std::string()}) {
    EXPECT_FALSE(read(bytes, 7).status.ok()) << bytes.substr(0, 80);
  }
}

TEST(EventLinesTest, FindsTheDataOfEvents) {
  std::vector<std::string> found;
  EventLines lines;
  for (const char c : std::string("data: {\"a\": 1}\r\n\r\n: comment\nevent: x\ndata:two\n\ndata: [DONE]\n\n"))
    lines.feed(std::string_view(&c, 1), [&](std::string_view data) { found.emplace_back(data); });
  EXPECT_EQ(found, (std::vector<std::string>{"{\"a\": 1}", "two", "[DONE]"}));
}

TEST(LoadRunTest, ReadsTheEventsOfBothDialects) {
  RequestRecord record;
  EXPECT_TRUE(take_event(R"({"choices": [{"delta": {"role": "assistant", "content": ""}}]})", 1, &record));
  EXPECT_EQ(record.first_s, 0);
  EXPECT_TRUE(take_event(R"({"choices": [{"delta": {"reasoning": "hm"}}]})", 2, &record));
  EXPECT_TRUE(take_event(R"({"choices": [{"text": "x"}]})", 2.5, &record));
  EXPECT_TRUE(take_event(R"({"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]})", 4, &record));
  EXPECT_TRUE(take_event(R"({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 9,
                             "prompt_tokens_details": {"cached_tokens": 4}}})",
                         5, &record));
  EXPECT_FALSE(take_event("[DONE]", 6, &record));
  EXPECT_EQ(record.first_s, 2);
  EXPECT_EQ(record.ended_s, 4);
  EXPECT_EQ(record.gaps_s, (std::vector<double>{0.5, 1.5}));
  EXPECT_EQ(record.n_prompt, 7);
  EXPECT_EQ(record.n_answer, 9);
  EXPECT_EQ(record.n_found, 4);
  EXPECT_TRUE(record.ok());
  EXPECT_FALSE(take_event(R"({"error": {"message": "too much", "code": "queue_full"}})", 6, &record));
  EXPECT_EQ(record.error, "too much");
  for (const char* strange : {"{", "3", "{\"choices\": 3}", "{\"choices\": [3, null]}", "{\"usage\": []}"}) {
    RequestRecord other;
    take_event(strange, 1, &other);
    EXPECT_EQ(other.first_s, 0) << strange;
  }
}

TEST(LoadReportTest, CountsAsTheUsualToolsDo) {
  EXPECT_EQ(percentile({}, 50), 0);
  EXPECT_EQ(percentile({4}, 99), 4);
  EXPECT_EQ(percentile({3, 1, 2, 4}, 50), 2.5);
  EXPECT_EQ(percentile({3, 1, 2, 4}, 100), 4);
  LevelResult result{.level = {.rate = 2}, .seconds = 2};
  result.speculation = {.n_passes = 10, .n_drafted = 30, .n_accepted = 15};
  result.requests.push_back({.begun_s = 0.5,
                             .first_s = 1,
                             .ended_s = 1.5,
                             .n_prompt = 10,
                             .n_found = 5,
                             .n_answer = 6,
                             .gaps_s = {0.2, 0.3}});
  result.requests.push_back({.error = "refused"});
  result.requests.push_back({.error = "refused"});
  const LevelReport report = report_of(result);
  EXPECT_EQ(report.ttft_ms, std::vector<double>{500});
  EXPECT_EQ(report.e2e_ms, std::vector<double>{1000});
  EXPECT_EQ(report.tpot_ms, std::vector<double>{100});
  EXPECT_EQ(report.errors, std::vector<std::string>{"refused"});
  EXPECT_EQ(report.n_failed, 2);
  EXPECT_EQ(report.answer_tokens_per_s(), 3);
  EXPECT_EQ(report.mean_accept_length(), 2.5);
  const std::string text = report_text(report);
  for (const char* part :
       {"2 requests/s: 3 requests", "2 failed", "50% of them", "mean acceptance length 2.50", "failed: refused"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  const std::string one = report_svg(std::vector{report}, "a model & <here>");
  for (const char* part : {">TPOT<", "TTFT and E2E, ms", "TPOT and ITL, ms", "a model &amp; &lt;here>"})
    EXPECT_NE(one.find(part), std::string::npos) << part;
  EXPECT_EQ(one.find("Throughput"), std::string::npos);
  const std::string levels = report_svg(std::vector{report, report}, "");
  for (const char* part : {"TTFT p99", "Throughput, answer tokens/s", "requests/s"})
    EXPECT_NE(levels.find(part), std::string::npos) << part;
}

TEST(LoadReportTest, RepetitionsHaveAMedianAndASpread) {
  const auto run = [](double seconds, std::string error) {
    LevelResult result{.level = {.concurrency = 1}, .seconds = seconds};
    result.speculation = {.n_passes = 1, .n_drafted = 3, .n_accepted = 2, .accepted_per_position = {1, 1}};
    result.requests.push_back({.begun_s = 0, .first_s = 1, .ended_s = seconds, .n_prompt = 2, .n_answer = 40});
    if (!error.empty()) result.requests.push_back({.error = std::move(error)});
    return report_of(result);
  };
  LevelReport report = run(2, "");
  EXPECT_EQ(report_text(report).find("repetitions"), std::string::npos);
  report.add(run(4, "refused"));
  report.add(run(5, "refused"));
  EXPECT_EQ(report.throughput, (std::vector<double>{20, 10, 8}));
  EXPECT_EQ(report.e2e_ms, (std::vector<double>{2000, 4000, 5000}));
  EXPECT_EQ(report.n_ok, 3);
  EXPECT_EQ(report.errors, std::vector<std::string>{"refused"});
  EXPECT_EQ(report.speculation.accepted_per_position, (std::vector<double>{3, 3}));
  EXPECT_EQ(report.mean_accept_length(), 3);
  EXPECT_NE(report_text(report).find("3 repetitions: median 10.0 answer tokens/s, +- 60.0%\n"), std::string::npos);
  const std::string plot = report_svg(std::vector{report, report}, "");
  EXPECT_NE(plot.substr(plot.find("Throughput")).find("stroke=\"#1f77b4\"/>"), std::string::npos);  // the range
}

TEST(LoadReportTest, HasNoStatisticsOfNothing) {
  LevelResult result{.level = {.concurrency = 4}, .seconds = 1};
  result.requests.push_back({.error = "Connection refused"});
  EXPECT_EQ(report_text(report_of(result)),
            "4 at a time: 1 requests in 1.00 s, all failed\nfailed: Connection refused\n");
}

// E2E of seconds and TPOT of milliseconds each fill their own plot.
TEST(FigureTest, EveryPlotHasItsOwnScale) {
  const Plot large{.title = "large", .x_label = {}, .y_label = {}, .lines = {{.name = "a", .points = {{1, 5000}}}}};
  const Plot small{.title = "small", .x_label = {}, .y_label = {}, .lines = {{.name = "b", .points = {{1, 0.05}}}}};
  const std::string svg = figure_svg({.title = "T", .subtitle = today(), .plots = {large, small}});
  const size_t first = svg.find("cy=\""), second = svg.find("cy=\"", first + 1);
  ASSERT_NE(second, std::string::npos);
  const double y_large = std::stod(svg.substr(first + 4)), y_small = std::stod(svg.substr(second + 4));
  EXPECT_NEAR(y_small - y_large, 380, 1e-6);  // the height of a plot: the same place in both
}

TEST(MachineLoadTest, SeesWhatOthersDo) {
  const auto parse = [](const char* text) { return parse_proc_stat(text, 100); };
  const std::optional<CpuTimes> times = parse("cpu  100 20 30 4000 50 6 7 80 9 10\ncpu0 1 2 3\n");
  ASSERT_TRUE(times);
  EXPECT_DOUBLE_EQ(times->busy_s, 1.63);  // guests are among the users; waiting for a disk is idle
  EXPECT_DOUBLE_EQ(times->stolen_s, 0.8);
  for (const char* strange : {"", "cpu0 1 2 3 4 5 6 7 8", "cpu 1 2 3", "cpu a b c d e f g h"})
    EXPECT_FALSE(parse(strange)) << strange;
  const CpuTimes begin{.busy_s = 10, .stolen_s = 1, .own_s = 3};
  EXPECT_DOUBLE_EQ(busy_elsewhere(begin, {.busy_s = 14, .stolen_s = 1, .own_s = 7}, 2), 0);
  EXPECT_DOUBLE_EQ(busy_elsewhere(begin, {.busy_s = 14, .stolen_s = 2, .own_s = 6}, 2), 1);
  EXPECT_DOUBLE_EQ(busy_elsewhere(begin, {.busy_s = 10, .stolen_s = 1, .own_s = 3.01}, 2), 0);
}

TEST(MachineLoadTest, WarnsOfIt) {
  EXPECT_EQ(load_warning(0.05, 2), "");
  EXPECT_EQ(load_warning(0.5, 64), "");
  EXPECT_NE(load_warning(0.9, 2).find("0.9 of its 2 processors busy"), std::string::npos);
  EXPECT_NE(load_warning(2, 64), "");
}

}  // namespace
}  // namespace levin::app
