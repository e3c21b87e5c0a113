// HTTP/1.1 on a socket: reads requests, hands each to a handler, writes what the handler's thread or any other says.
//
//   LEVIN_ASSIGN(auto server, HttpServer::listen({.port = 8000}, [&](std::shared_ptr<Exchange> exchange) { ... }));
//   ...
//   server->stop(std::chrono::seconds(30));
//
// Threads   one thread of the server's own does all input and output; the handler is called on it and must not wait.
//           Every call of an Exchange may come from any thread and returns at once
// Answers   respond() once, or begin_stream(), send() as often as wanted, end(). An exchange that is dropped without an
//           answer is answered with 500
// Silence   a stream that has nothing to say for options.comment_interval carries a comment, so that no proxy or client
//           takes it for dead
// Leaving   a client that closes its connection while its answer is being made is noticed at once: on_disconnect, then
//           sends are dropped. One that only closes its own side (shutdown(SHUT_WR), `nc -N`) is answered: a comment, or
//           for a whole answer "100 Continue", tells the two apart, since a closed connection resets what reaches it; it
//           is repeated every options.comment_interval.
//           HTTP/1.0 has no such word: there a closed side means that the client has left, unless it reads a stream. One
//           that does not read for options.write_timeout, or lets more than max_unsent_bytes pile up, has left too
// Limits    head, trailers and the extensions of a chunk 64 KiB each (431), body (413), connections and file descriptors
//           (503); malformed input is 400, a body in a coding other than chunked or identity 501 or 415. The connection
//           is closed after each of these, and without an answer where a request does not arrive in time
// No TLS: that is a proxy's business. The server outlives every Exchange it gave out.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "serve/http_message.h"

namespace levin::serve {

struct HttpServerOptions {
  std::string host = "127.0.0.1";  // an address, or a name: all of its addresses
  uint16_t port = 8000;            // 0: a free one
  size_t max_body_bytes = size_t{64} << 20;
  size_t max_connections = 4096;
  size_t max_unsent_bytes = size_t{4} << 20;
  std::chrono::milliseconds head_timeout{30'000};
  std::chrono::milliseconds body_timeout{120'000};
  std::chrono::milliseconds idle_timeout{120'000};  // between requests of a connection
  std::chrono::milliseconds write_timeout{60'000};
  std::chrono::milliseconds comment_interval{5'000};
  std::function<void(const std::string&)> note = {};  // gets warnings for the log, on the server's thread
};

class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual const HttpRequest& request() const = 0;
  virtual void respond(HttpResponse response) = 0;
  virtual void begin_stream(HttpResponse head) = 0;  // status, type and headers; the body is ignored
  virtual void send(std::string bytes) = 0;
  virtual void end() = 0;
  // Called on the server's thread, once, if the client leaves before the answer's end. Set it before the answer begins.
  virtual void on_disconnect(std::function<void()> call) = 0;
};

class HttpServer {
 public:
  using Handler = std::function<void(std::shared_ptr<Exchange>)>;
  // Turns what went wrong below the handler into a body; the status is set.
  using Refusal = std::function<HttpResponse(int status, const std::string& message)>;

  // Errors (kUsage) name the address and why it cannot be had.
  static Result<std::unique_ptr<HttpServer>> listen(const HttpServerOptions& options, Handler handler, Refusal refusal);
  virtual ~HttpServer() = default;

  virtual uint16_t port() const = 0;
  virtual bool loopback_only() const = 0;  // no other machine can reach it
  // Connections without a request are closed, answers in the making finish. Requests that come meanwhile still reach the
  // handler, which should refuse them; nobody waits for theirs. After `grace`, `give_up` is called: it may end the
  // answers that are left with an error, and they have two more seconds for that. What is left then is cut off.
  virtual void stop(std::chrono::milliseconds grace, const std::function<void()>& give_up = {}) = 0;
};

}  // namespace levin::serve
