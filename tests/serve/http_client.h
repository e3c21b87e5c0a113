// A client of few words for tests: one socket, bytes out, bytes in.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace levin::test {

struct Reply {
  int status = 0;  // 0: the server closed without an answer
  std::string head;
  std::string body;  // of a chunked answer: its pieces put together
};

class HttpClient {
 public:
  HttpClient();  // has its descriptor; connect() next
  explicit HttpClient(uint16_t port) : HttpClient() { connect(port); }
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  void connect(uint16_t port);
  bool send(std::string_view bytes);         // false: the server has closed
  Reply read_reply(bool head_only = false);  // gives up after two minutes without a byte
  std::string read_some();                   // what comes next; empty at the end
  void end_sending();                        // closes this side alone
  void close();

  // POST with a body, GET without.
  Reply ask(const std::string& path, const std::string& body = "",
            const std::vector<std::pair<std::string, std::string>>& headers = {});

 private:
  int socket_ = -1;
  std::string unread_;
};

// A request by a client of its own.
Reply ask(uint16_t port, const std::string& path, const std::string& body = "",
          const std::vector<std::pair<std::string, std::string>>& headers = {});

// The data of a stream's events, in order; comments and names are left out.
std::vector<std::string> events_of(const std::string& stream);

}  // namespace levin::test
