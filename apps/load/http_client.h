// A client for HTTP/1.1 servers: one request on a connection of its own, the answer's body handed on as it comes.
//
// No TLS: https is refused by name. Every wait ends at the call's deadline; lengths and chunk sizes that a server claims
// are not believed beyond kMaxHeadBytes.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace levin::app {

struct Url {
  std::string host;
  uint16_t port = 80;
  std::string base;  // path before the routes, without a slash at its end; a "/v1" there is cut off
};
// "http://127.0.0.1:8000", "localhost:8000/v1", "http://[::1]:8000/some/proxy"
Result<Url> parse_url(std::string_view text);

struct HttpCall {
  std::string method = "GET";
  std::string path;  // after Url::base
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
  std::chrono::milliseconds timeout{600'000};  // for all of it
};

// Takes an answer apart as its bytes come.
class HttpReader {
 public:
  // Appends what `bytes` hold of the body to *body.
  Status feed(std::string_view bytes, std::string* body);
  // The server has closed: an error unless the answer was whole.
  Status close();
  int status() const { return status_; }  // 0: not known yet
  bool whole() const { return state_ == State::kWhole; }

 private:
  enum class State { kHead, kLength, kUntilClose, kChunkSize, kChunk, kChunkEnd, kTrailer, kWhole };
  Status read_head(std::string_view head);
  Status read_line(std::string_view line);

  static constexpr size_t kMaxHeadBytes = 64 << 10;
  State state_ = State::kHead;
  std::string pending_;  // of a head or a line
  uint64_t n_left_ = 0;  // of the body or chunk
  int status_ = 0;
};

// Returns the status; the body goes to on_body piece by piece. Errors (kRuntime) name host, port and what failed.
Result<int> http_call(const Url& url, const HttpCall& call, const std::function<void(std::string_view)>& on_body);

struct HttpReply {
  int status = 0;
  std::string body;
};
Result<HttpReply> http_call(const Url& url, const HttpCall& call);

// The data of server-sent events, as the bytes come.
class EventLines {
 public:
  void feed(std::string_view bytes, const std::function<void(std::string_view data)>& on_data);

 private:
  std::string pending_;
};

}  // namespace levin::app
