#include "serve/http_client.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "base/check.h"

namespace levin::test {

HttpClient::HttpClient() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  LEVIN_CHECK(socket_ >= 0, "no socket for a client: {}", std::strerror(errno));
}

void HttpClient::connect(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  LEVIN_CHECK(::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0,
              "cannot connect to port {}: {}", port, std::strerror(errno));
  const timeval limit{.tv_sec = 120, .tv_usec = 0};
  ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
}

HttpClient::~HttpClient() { close(); }

void HttpClient::end_sending() { ::shutdown(socket_, SHUT_WR); }

void HttpClient::close() {
  if (socket_ >= 0) ::close(socket_);
  socket_ = -1;
}

bool HttpClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

std::string HttpClient::read_some() {
  if (!unread_.empty()) return std::exchange(unread_, {});
  std::string buffer(65536, '\0');
  const ssize_t n = ::recv(socket_, buffer.data(), buffer.size(), 0);
  buffer.resize(n > 0 ? static_cast<size_t>(n) : 0);
  return buffer;
}

Reply HttpClient::read_reply(bool head_only) {
  std::string text = std::exchange(unread_, {});
  const auto more = [&] {
    const std::string piece = read_some();
    text += piece;
    return !piece.empty();
  };
  Reply reply;
  size_t head_end = 0;
  while ((head_end = text.find("\r\n\r\n")) == std::string::npos) {
    if (!more()) return reply;
  }
  head_end += 4;
  reply.head = text.substr(0, head_end);
  reply.status = std::atoi(text.c_str() + text.find(' ') + 1);
  if (head_only) {
    unread_ = text.substr(head_end);
    return reply;
  }
  size_t at = head_end;
  if (const size_t field = reply.head.find("Content-Length: "); field != std::string::npos) {
    const size_t length = std::strtoull(reply.head.c_str() + field + 16, nullptr, 10);
    while (text.size() < at + length && more()) continue;
    reply.body = text.substr(at, length);
    at += length;
  } else if (reply.head.find("chunked") != std::string::npos) {
    while (true) {
      size_t line_end = 0;
      while ((line_end = text.find("\r\n", at)) == std::string::npos) {
        if (!more()) return reply;
      }
      const size_t length = std::strtoull(text.c_str() + at, nullptr, 16);
      at = line_end + 2;
      while (text.size() < at + length + 2 && more()) continue;
      reply.body += text.substr(at, length);
      at += length + 2;
      if (length == 0) break;
    }
  } else {
    while (more()) continue;
    reply.body = text.substr(at);
    at = text.size();
  }
  unread_ = at < text.size() ? text.substr(at) : "";
  return reply;
}

Reply HttpClient::ask(const std::string& path, const std::string& body,
                      const std::vector<std::pair<std::string, std::string>>& headers) {
  std::string text = (body.empty() ? "GET " : "POST ") + path + " HTTP/1.1\r\nHost: localhost\r\n";
  for (const auto& [name, value] : headers) text += name + ": " + value + "\r\n";
  if (!body.empty()) text += "Content-Length: " + std::to_string(body.size()) + "\r\n";
  send(text + "\r\n" + body);
  return read_reply();
}

Reply ask(uint16_t port, const std::string& path, const std::string& body,
          const std::vector<std::pair<std::string, std::string>>& headers) {
  HttpClient client(port);
  return client.ask(path, body, headers);
}

std::vector<std::string> events_of(const std::string& stream) {
  static constexpr std::string_view kData = "data: ";
  std::vector<std::string> out;
  for (size_t begin = 0; begin < stream.size();) {
    const size_t end = std::min(stream.find('\n', begin), stream.size());
    const std::string_view line = std::string_view(stream).substr(begin, end - begin);
    if (line.starts_with(kData)) out.emplace_back(line.substr(kData.size()));
    begin = end + 1;
  }
  return out;
}

}  // namespace levin::test
