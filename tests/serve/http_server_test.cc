// The HTTP server by itself, with a handler that does what the path says.
#include "serve/http_server.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string_view>
#include <thread>

#include "serve/http_client.h"
#include "serve/listener.h"
#include "support/must.h"

namespace levin::test {
namespace {

using serve::Exchange;
using serve::HttpResponse;
using serve::HttpServer;
using serve::HttpServerOptions;
using std::chrono::milliseconds;

constexpr std::chrono::seconds kPatience{60};  // with what takes milliseconds on an idle machine

class HttpServerTest : public ::testing::Test {
 protected:
  void start(HttpServerOptions options) {
    options.port = 0;
    server_ = must(HttpServer::listen(
        options, [this](std::shared_ptr<Exchange> exchange) { handle(std::move(exchange)); },
        [](int status, const std::string& message) { return HttpResponse{.status = status, .body = message}; }));
  }
  void TearDown() override {
    if (worker_.joinable()) worker_.join();
    held_ = nullptr;
    if (server_) server_->stop(milliseconds(2000));
  }

  void handle(std::shared_ptr<Exchange> exchange) {
    const std::string& path = exchange->request().path;
    if (path == "/echo") return exchange->respond({.body = exchange->request().body});
    if (path == "/lose") return;
    if (path == "/stream") {
      exchange->begin_stream({.content_type = "text/event-stream"});
      for (const char* word : {"data: one\n\n", "data: two\n\n"}) exchange->send(word);
      return exchange->end();
    }
    if (path == "/flood") {
      exchange->on_disconnect([this] { note_disconnect(); });
      exchange->begin_stream({.content_type = "text/plain"});
      for (int i = 0; i < 100; ++i) exchange->send(std::string(size_t{1} << 20, 'x'));
      return hold(std::move(exchange));
    }
    // "/hold" and "/wait": until the test says, as a stream and as a whole
    exchange->on_disconnect([this] { note_disconnect(); });
    if (path == "/hold") exchange->begin_stream({.content_type = "text/event-stream"});
    hold(std::move(exchange));
  }
  void hold(std::shared_ptr<Exchange> exchange) {
    const std::lock_guard lock(mutex_);
    held_ = std::move(exchange);
    changed_.notify_all();
  }
  void note_disconnect() {
    const std::lock_guard lock(mutex_);
    disconnected_ = true;
    changed_.notify_all();
  }
  bool wait_for_disconnect() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return disconnected_; });
  }
  std::shared_ptr<Exchange> wait_for_held() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kPatience, [&] { return held_ != nullptr; });
    return std::move(held_);
  }
  uint16_t port() const { return server_->port(); }

  std::unique_ptr<HttpServer> server_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool disconnected_ = false;
  std::shared_ptr<Exchange> held_;
  std::thread worker_;
};

// What comes up to and with `end`, in however many pieces, or to the end of the connection.
std::string read_to(HttpClient& client, std::string_view end) {
  std::string all;
  while (!all.ends_with(end)) {
    const std::string next = client.read_some();
    if (next.empty()) break;
    all += next;
  }
  return all;
}

TEST_F(HttpServerTest, AnswersOneAfterTheOtherOnAConnection) {
  start({});
  HttpClient client(port());
  for (const std::string body : {"first", "second"}) EXPECT_EQ(client.ask("/echo", body).body, body);
  // two requests at once wait for each other
  client.send(
      "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\naGET /stream?x=1 HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_EQ(client.read_reply().body, "a");
  EXPECT_EQ(client.read_reply().body, "data: one\n\ndata: two\n\n");
}

TEST_F(HttpServerTest, TakesAChunkedBodyAndSaysContinue) {
  start({});
  HttpClient client(port());
  client.send("POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.read_reply(true).status, 100);
  client.send("3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
  EXPECT_EQ(client.read_reply().body, "abcde");
}

TEST_F(HttpServerTest, EmptyLinesBeforeARequestAreNothing) {
  start({.idle_timeout = milliseconds(300)});
  HttpClient client(port());
  client.send("\r\n\r\nPOST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\none\r\n");
  EXPECT_EQ(client.read_reply().body, "one");
  client.send("\nPOST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\ntwo\r\n");
  EXPECT_EQ(client.read_reply().body, "two");
  EXPECT_EQ(client.read_reply().status, 0);  // with nothing but an empty line the connection is idle
}

TEST_F(HttpServerTest, SpeaksToOldClients) {
  start({});
  HttpClient client(port());
  client.send("GET /stream HTTP/1.0\r\n\r\n");
  const Reply reply = client.read_reply();
  EXPECT_EQ(reply.body, "data: one\n\ndata: two\n\n");
  EXPECT_EQ(reply.head.find("chunked"), std::string::npos);
  HttpClient other(port());  // to whom nothing is said before the answer, whatever it expects
  other.send("POST /echo HTTP/1.0\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\nabc");
  const Reply echo = other.read_reply();
  EXPECT_EQ(echo.status, 200);
  EXPECT_EQ(echo.body, "abc");
}

TEST_F(HttpServerTest, AHeadRequestHasNoBody) {
  start({});
  HttpClient client(port());
  client.send("HEAD /echo HTTP/1.1\r\nHost: h\r\n\r\nPOST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nb");
  EXPECT_EQ(client.read_reply(true).status, 200);
  EXPECT_EQ(client.read_reply().body, "b");
}

TEST_F(HttpServerTest, TakesTheWholeAddressAsATarget) {
  start({});
  HttpClient client(port());
  client.send("GET http://elsewhere:80/stream?x=1 HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_EQ(client.read_reply().body, "data: one\n\ndata: two\n\n");
}

TEST(HttpMessageTest, WritesDatesAsTheHeaderHasThem) {
  EXPECT_EQ(serve::http_date(784111777), "Sun, 06 Nov 1994 08:49:37 GMT");
  const size_t length = 0;
  EXPECT_NE(serve::response_head({}, {}, true, &length).find("\r\nDate: "), std::string::npos);
}

TEST(HttpMessageTest, AnAnswerThatHasNoBodyNamesNoLength) {
  const size_t length = 0;
  EXPECT_NE(serve::response_head({}, {.status = 200}, true, &length).find("Content-Length: 0"), std::string::npos);
  EXPECT_EQ(serve::response_head({}, {.status = 204}, true, &length).find("Content-Length"), std::string::npos);
}

struct Hostile {
  const char* what;
  std::string bytes;
  int status;
};

const std::string kChunked = "POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";

std::string many(std::string_view piece, int n) {
  std::string out;
  for (int i = 0; i < n; ++i) out += piece;
  return out;
}

TEST_F(HttpServerTest, RefusesWhatIsNoRequest) {
  start({.max_body_bytes = 1000});
  const Hostile cases[] = {
      {"not HTTP", "hello\r\n\r\n", 400},
      {"TLS", std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 \r\n\r\n", 16), 400},
      {"version 2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400},
      {"no host", "GET / HTTP/1.1\r\n\r\n", 400},
      {"two hosts", "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400},
      {"bad version", "GET / HTTP/9.9\r\n\r\n", 400},
      {"no path", "GET nowhere HTTP/1.1\r\nHost: h\r\n\r\n", 400},
      {"bad percent", "GET /%zz HTTP/1.1\r\nHost: h\r\n\r\n", 400},
      {"cut percent", "GET /a%4 HTTP/1.1\r\nHost: h\r\n\r\n", 400},
      {"bad header", "GET / HTTP/1.1\r\nHost: h\r\nno colon\r\n\r\n", 400},
      {"two lengths", "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400},
      {"negative length", "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n", 400},
      {"bad chunk", "POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
      {"long body", "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 1001\r\n\r\n", 413},
      {"long chunks",
       "POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n" + std::string(1001, 'x') +
           "\r\n0\r\n\r\n",
       413},
      {"long head", "GET / HTTP/1.1\r\nHost: h\r\nX: " + std::string(70'000, 'x') + "\r\n\r\n", 431},
      {"long trailers", kChunked + "1\r\na\r\n0\r\n" + many("T: x\r\n", 40'000) + "\r\n", 431},
      {"long extension", kChunked + "1;x=" + std::string(200'000, 'x') + "\r\na\r\n0\r\n\r\n", 431},
      {"long last extension", kChunked + "1\r\na\r\n0;x=" + std::string(200'000, 'x') + "\r\n\r\n", 431},
      {"body in gzip", "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\na", 415},
      {"transfer in gzip", "POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip\r\n\r\nabc", 501},
      {"transfer in two codings",
       "POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n1\r\na\r\n0\r\n\r\n", 501},
  };
  for (const Hostile& hostile : cases) {
    HttpClient client(port());
    client.send(hostile.bytes);
    const Reply reply = client.read_reply();
    EXPECT_EQ(reply.status, hostile.status) << hostile.what << ": " << reply.body;
    EXPECT_NE(reply.head.find("Connection: close"), std::string::npos) << hostile.what;
  }
  EXPECT_EQ(ask(port(), "/echo", "still here").body, "still here");
}

TEST_F(HttpServerTest, TakesTrailersAndExtensionsThatAreNotLong) {
  start({});
  HttpClient client(port());
  client.send(kChunked + many("1;name=value\r\na\r\n", 10'000) + "0;last\r\n" + many("T: x\r\n", 1'000) + "\r\n");
  EXPECT_EQ(client.read_reply().body, std::string(10'000, 'a'));
  EXPECT_EQ(client.ask("/echo", "next").body, "next");
}

TEST_F(HttpServerTest, NamesCodingsThatItDoesNotRead) {
  start({});
  EXPECT_EQ(ask(port(), "/echo", "a", {{"Content-Encoding", "br"}}).body,
            "Content-Encoding is br, and only identity is supported; send the body as it is");
  HttpClient client(port());
  client.send("POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: deflate\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.read_reply().body, "Transfer-Encoding is deflate, and only chunked is supported");
  EXPECT_EQ(ask(port(), "/echo", "a", {{"Content-Encoding", "Identity"}}).body, "a");
  EXPECT_EQ(ask(port(), "/echo", "", {{"Content-Encoding", "gzip"}}).status, 200);  // nothing to decode
}

TEST_F(HttpServerTest, GivesUpOnSlowRequests) {
  start({.head_timeout = milliseconds(100), .body_timeout = milliseconds(100), .idle_timeout = milliseconds(200)});
  HttpClient slow_head(port()), slow_body(port()), idle(port());
  slow_head.send("GET / HT");
  slow_body.send("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nab");
  for (HttpClient* client : {&slow_head, &slow_body, &idle}) EXPECT_EQ(client->read_some(), "");
}

TEST_F(HttpServerTest, CommentsKeepASilentStreamAlive) {
  start({.comment_interval = milliseconds(30)});
  HttpClient client(port());
  client.send("GET /hold HTTP/1.1\r\nHost: h\r\n\r\n");
  const std::shared_ptr<Exchange> exchange = wait_for_held();
  ASSERT_NE(exchange, nullptr);
  EXPECT_EQ(client.read_reply(true).status, 200);
  const std::string comment = "e\r\n: still here\n\n\r\n";
  EXPECT_TRUE(read_to(client, comment + comment).ends_with(comment + comment));
  exchange->send("data: x\n\n");
  exchange->end();
  const std::string rest = read_to(client, "0\r\n\r\n");
  EXPECT_TRUE(rest.ends_with("9\r\ndata: x\n\n\r\n0\r\n\r\n")) << rest;
}

TEST_F(HttpServerTest, NoticesAClientThatLeaves) {
  start({});
  HttpClient client(port());
  client.send("GET /hold HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_EQ(client.read_reply(true).status, 200);
  client.close();
  EXPECT_TRUE(wait_for_disconnect());
}

TEST_F(HttpServerTest, NoticesAClientThatLeavesBeforeAWholeAnswer) {
  start({});
  HttpClient client(port());
  client.send("GET /wait HTTP/1.1\r\nHost: h\r\n\r\n");
  const std::shared_ptr<Exchange> exchange = wait_for_held();
  client.close();
  EXPECT_TRUE(wait_for_disconnect());
}

TEST_F(HttpServerTest, NoticesAClientThatLeavesWithAnotherRequestUnderWay) {
  start({});
  HttpClient client(port());
  client.send("GET /wait HTTP/1.1\r\nHost: h\r\n\r\n");
  const std::shared_ptr<Exchange> exchange = wait_for_held();
  client.send("GET /wait HTTP/1.1\r\nHost: h\r\n\r\n");
  client.close();
  EXPECT_TRUE(wait_for_disconnect());
}

TEST_F(HttpServerTest, AnswersAClientThatHasClosedItsOwnSide) {
  start({});
  HttpClient streaming(port());
  streaming.send("GET /hold HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_EQ(streaming.read_reply(true).status, 200);
  streaming.end_sending();
  EXPECT_EQ(streaming.read_some(), "e\r\n: still here\n\n\r\n");  // the server has seen it
  std::shared_ptr<Exchange> exchange = wait_for_held();
  exchange->send("data: x\n\n");
  exchange->end();
  EXPECT_EQ(read_to(streaming, "0\r\n\r\n"), "9\r\ndata: x\n\n\r\n0\r\n\r\n");

  HttpClient whole(port());
  whole.send("GET /wait HTTP/1.1\r\nHost: h\r\n\r\n");
  exchange = wait_for_held();
  whole.end_sending();
  EXPECT_EQ(whole.read_reply(true).status, 100);
  exchange->respond({.body = "late"});
  EXPECT_EQ(whole.read_reply().body, "late");
}

TEST_F(HttpServerTest, NoticesAClientThatClosesOneSideAfterTheOther) {
  start({.comment_interval = milliseconds(30)});
  HttpClient client(port());
  client.send("GET /wait HTTP/1.1\r\nHost: h\r\n\r\n");
  const std::shared_ptr<Exchange> exchange = wait_for_held();
  client.end_sending();
  EXPECT_EQ(client.read_reply(true).status, 100);
  client.close();
  EXPECT_TRUE(wait_for_disconnect());
}

TEST_F(HttpServerTest, NoticesAClientThatDoesNotRead) {
  start({.max_unsent_bytes = size_t{1} << 20, .write_timeout = milliseconds(200)});
  HttpClient client(port());
  client.send("GET /flood HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_TRUE(wait_for_disconnect());
}

// One that reads on without a pause gets all of a long answer, however long that takes.
TEST_F(HttpServerTest, WaitsForAClientThatReadsSlowly) {
  constexpr size_t kBytes = size_t{32} << 20;
  start({.write_timeout = milliseconds(700)});
  HttpClient client(port());
  client.send("GET /wait HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
  const std::shared_ptr<Exchange> held = wait_for_held();
  held->respond({.body = std::string(kBytes, 'x')});
  size_t n_read = 0;
  for (std::string piece = client.read_some(); !piece.empty(); piece = client.read_some()) {
    n_read += piece.size();
    std::this_thread::sleep_for(milliseconds(2));
  }
  EXPECT_GT(n_read, kBytes);
}

TEST_F(HttpServerTest, ALostExchangeIsAnswered) {
  start({});
  EXPECT_EQ(ask(port(), "/lose").status, 500);
}

TEST_F(HttpServerTest, ManyIdleConnectionsDisturbNobody) {
  start({});
  std::vector<std::unique_ptr<HttpClient>> idle;
  for (int i = 0; i < 400; ++i) idle.push_back(std::make_unique<HttpClient>(port()));
  EXPECT_EQ(ask(port(), "/echo", "x").body, "x");
  EXPECT_EQ(idle[200]->ask("/echo", "y").body, "y");
}

TEST_F(HttpServerTest, TurnsAwayWhatIsTooMuch) {
  start({.max_connections = 2});
  HttpClient first(port()), second(port());
  EXPECT_EQ(first.ask("/echo", "x").status, 200);
  HttpClient third(port());
  EXPECT_EQ(third.read_reply().status, 503);
}

// All of the process's descriptors are taken but the one that the client needs.
TEST_F(HttpServerTest, SaysSoWhereNoDescriptorsAreLeft) {
  std::atomic<int> n_notes{0};
  start({.note = [&](const std::string&) { ++n_notes; }});
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{.rlim_cur = 256, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  // All descriptors are taken, those of the clients first and until the end: what is free, the server's thread has for a
  // moment whenever it looks whether somebody connects. Should it give one back meanwhile: once more.
  std::array<HttpClient, 40> clients;
  std::vector<int> taken;
  std::vector<int> refusals;
  for (HttpClient& client : clients) {
    if (refusals.size() == 3) break;
    for (int fd = ::dup(0); fd >= 0; fd = ::dup(0)) taken.push_back(fd);
    client.connect(port());
    client.send("GET /echo HTTP/1.1\r\nHost: h\r\n\r\n");
    const int status = client.read_reply().status;
    if (status != 200) refusals.push_back(status);
  }
  EXPECT_EQ(refusals, std::vector<int>(3, 503));
  EXPECT_EQ(n_notes, 1);
  for (const int fd : taken) ::close(fd);
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(ask(port(), "/echo", "back").body, "back");
}

TEST_F(HttpServerTest, StoppingLetsAnswersFinish) {
  start({});
  HttpClient idle(port()), busy(port());
  busy.send("GET /hold HTTP/1.1\r\nHost: h\r\n\r\n");
  const std::shared_ptr<Exchange> exchange = wait_for_held();
  ASSERT_NE(exchange, nullptr);
  worker_ = std::thread([&] { server_->stop(milliseconds(10'000)); });
  EXPECT_EQ(idle.read_some(), "");  // closed
  exchange->send("data: last\n\n");
  exchange->end();
  EXPECT_EQ(busy.read_reply().body, "data: last\n\n");
  worker_.join();
}

TEST_F(HttpServerTest, StoppingCutsOffWhatDoesNotFinish) {
  start({});
  HttpClient busy(port());
  busy.send("GET /hold HTTP/1.1\r\nHost: h\r\n\r\n");
  const std::shared_ptr<Exchange> exchange = wait_for_held();
  server_->stop(milliseconds(50));
  EXPECT_TRUE(wait_for_disconnect());
  exchange->send("data: too late\n\n");
  exchange->end();
}

TEST_F(HttpServerTest, StoppingStillTalksToThoseWhoCome) {
  start({});
  HttpClient busy(port());
  busy.send("GET /wait HTTP/1.1\r\nHost: h\r\n\r\n");
  const std::shared_ptr<Exchange> exchange = wait_for_held();
  worker_ = std::thread(
      [&] { server_->stop(milliseconds(3000), [&] { exchange->respond({.status = 503, .body = "over"}); }); });
  // The handler's to refuse, before stopping has begun as well.
  const auto says_close = [](const Reply& reply) { return reply.head.find("Connection: close") != std::string::npos; };
  Reply late;
  for (int i = 0; i < 100 && !says_close(late); ++i) {
    std::this_thread::sleep_for(milliseconds(10));
    late = ask(port(), "/echo", "late");
    EXPECT_EQ(late.body, "late");
  }
  EXPECT_TRUE(says_close(late)) << late.head;
  EXPECT_EQ(busy.read_reply().body, "over");
  worker_.join();
}

TEST(HttpServerAddress, SaysWhatCannotBeHad) {
  const auto listen = [](const std::string& host) {
    return HttpServer::listen(
        {.host = host, .port = 0}, [](std::shared_ptr<Exchange>) {},
        [](int, const std::string&) { return HttpResponse{}; });
  };
  const auto outcome = listen("not-an-address");
  ASSERT_FALSE(outcome.ok());
  EXPECT_NE(outcome.error().message.find("--host not-an-address is not an address"), std::string::npos);
  EXPECT_FALSE(listen("203.0.113.7").ok());  // nobody's
  for (const char* no_address : {"300.1.1.1", "1.2.3", "::1::", "12345"}) {
    const auto refused = listen(no_address);
    ASSERT_FALSE(refused.ok()) << no_address;
    EXPECT_NE(refused.error().message.find("is not an address; give one"), std::string::npos)
        << refused.error().message;
  }
}

TEST(HttpServerAddress, MayBeAName) {
  const auto server = must(HttpServer::listen(
      {.host = "localhost", .port = 0}, [](std::shared_ptr<Exchange> exchange) { exchange->respond({.body = "here"}); },
      [](int, const std::string&) { return HttpResponse{}; }));
  EXPECT_EQ(ask(server->port(), "/").body, "here");
}

TEST(ListenerTest, AnswersBeforeThereIsAModel) {
  const auto listener = must(serve::Listener::open({.port = 0}));
  HttpClient client(listener->port());
  for (const char* path : {"/health", "/v1/models"}) {
    const Reply loading = client.ask(path);
    EXPECT_EQ(loading.status, 503);
    EXPECT_NE(loading.head.find("Retry-After: "), std::string::npos) << loading.head;
    EXPECT_NE(loading.body.find("the model is loading"), std::string::npos) << loading.body;
  }
  listener->hand_over([](std::shared_ptr<Exchange> exchange) { exchange->respond({.body = "loaded"}); });
  EXPECT_EQ(client.ask("/health").body, "loaded");
  EXPECT_FALSE(serve::Listener::open({.port = listener->port()}).ok());
}

}  // namespace
}  // namespace levin::test
