// Requests and answers of HTTP/1.1 as plain data, and the text of an answer's head.
#pragma once

#include <cstdint>
#include <ctime>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace levin::serve {

using Headers = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;  // "GET"
  std::string path;    // "/v1/models", percent-decoded, without the query
  std::string query;   // after '?', as it came
  Headers headers;     // names in lower case
  std::string body;
  bool version_1_0 = false;
  bool keep_alive = true;

  const std::string* header(std::string_view lower_case_name) const;  // the first of that name; nullptr: none
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  Headers headers;
  std::string body;
};

std::string_view reason_phrase(int status);

// The time of an answer as the Date header has it: "Sun, 06 Nov 1994 08:49:37 GMT".
std::string http_date(std::time_t time);

// "HTTP/1.1 200 OK" to the empty line, with the time of day. `length` nullptr: a stream, chunked unless the request was HTTP/1.0.
std::string response_head(const HttpRequest& request, const HttpResponse& response, bool keep_alive,
                          const size_t* length);

// One piece of a stream, framed as response_head() announced. The empty piece ends a chunked stream.
std::string stream_piece(const HttpRequest& request, std::string_view bytes);

// Splits a request target into path and query: "/path?query", or the whole address as proxies send it
// ("http://host/path"), whose host counts for nothing. False: there is no absolute path, or a percent sign codes nothing.
bool split_target(std::string_view target, std::string* path, std::string* query);

}  // namespace levin::serve
