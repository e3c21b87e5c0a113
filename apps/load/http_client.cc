#include "apps/load/http_client.h"

#include <fmt/core.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <iterator>
#include <memory>
#include <optional>

#include "base/clock.h"

namespace levin::app {
namespace {

Error usage_error(std::string message) { return {ErrorKind::kUsage, std::move(message)}; }
Error broken(std::string message) { return {ErrorKind::kRuntime, std::move(message)}; }

template <class T>
std::optional<T> number(std::string_view text, int base = 10) {
  T value = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (failed != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r')) text.remove_suffix(1);
  return text;
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&&) = delete;
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int get() const { return fd_; }

  // False at the deadline.
  bool wait(short events, Clock::time_point deadline) const {
    while (true) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
      if (left <= 0) return false;
      pollfd entry{.fd = fd_, .events = events, .revents = 0};
      const int n = ::poll(&entry, 1, static_cast<int>(std::min<int64_t>(left, 60'000)));
      if (n > 0) return true;
      if (n < 0 && errno != EINTR) return true;  // the next call on the socket says what is wrong
    }
  }

 private:
  int fd_;
};

Result<Socket> connect_to(const Url& url, Clock::time_point deadline) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failed = ::getaddrinfo(url.host.c_str(), std::to_string(url.port).c_str(), &hints, &found);
  if (failed != 0) return broken(fmt::format("{}: {}", url.host, ::gai_strerror(failed)));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> list(found, ::freeaddrinfo);
  int reason = 0;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    Socket socket(::socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    reason = errno;
    if (socket.get() < 0) continue;
    int error = ::connect(socket.get(), at->ai_addr, at->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
      socklen_t size = sizeof(error);
      if (!socket.wait(POLLOUT, deadline)) {
        error = ETIMEDOUT;
      } else {
        ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
      }
    }
    if (error == 0) {
      const int on = 1;
      ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      return socket;
    }
    reason = error;
  }
  return broken(fmt::format("cannot reach {} port {}: {}", url.host, url.port, std::strerror(reason)));
}

Status send_all(const Socket& socket, std::string_view bytes, Clock::time_point deadline) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n > 0) {
      bytes.remove_prefix(static_cast<size_t>(n));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!socket.wait(POLLOUT, deadline)) return broken("the server did not accept the request in time");
    } else if (errno != EINTR) {
      return broken(fmt::format("cannot send: {}", std::strerror(errno)));
    }
  }
  return {};
}

std::string request_text(const Url& url, const HttpCall& call) {
  std::string text = fmt::format("{} {}{} HTTP/1.1\r\nHost: {}:{}\r\nConnection: close\r\n", call.method, url.base,
                                 call.path, url.host, url.port);
  for (const auto& [name, value] : call.headers) text += fmt::format("{}: {}\r\n", name, value);
  if (!call.body.empty()) {
    text += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", call.body.size());
  }
  return text + "\r\n" + call.body;
}

}  // namespace

Result<Url> parse_url(std::string_view text) {
  static constexpr std::string_view kScheme = "http://";
  const auto refuse = [&](std::string_view why) {
    return usage_error(fmt::format("{} is not a server's address: {}; write http://HOST:PORT", text, why));
  };
  std::string_view rest = text;
  if (rest.starts_with("https://")) return refuse("TLS is not supported; use a local proxy");
  if (rest.starts_with(kScheme)) rest.remove_prefix(kScheme.size());
  if (rest.find("://") != std::string_view::npos) return refuse("only http is supported");
  Url url;
  const size_t slash = std::min(rest.find('/'), rest.size());
  std::string_view authority = rest.substr(0, slash), base = rest.substr(slash);
  while (base.ends_with('/')) base.remove_suffix(1);
  if (base.ends_with("/v1")) base.remove_suffix(3);
  url.base = base;
  std::string_view port;
  if (authority.starts_with('[')) {  // an IPv6 address
    const size_t end = authority.find(']');
    if (end == std::string_view::npos) return refuse("the bracket is not closed");
    url.host = authority.substr(1, end - 1);
    port = authority.substr(end + 1);
    if (!port.empty() && port[0] != ':') return refuse("a colon and a port are expected after the bracket");
  } else {
    const size_t colon = std::min(authority.find(':'), authority.size());
    url.host = authority.substr(0, colon);
    port = authority.substr(colon);
  }
  if (url.host.empty()) return refuse("it names no host");
  if (port.empty()) return url;
  const auto value = number<uint16_t>(port.substr(1));
  if (!value || *value == 0) return refuse("the port is not a number from 1 to 65535");
  url.port = *value;
  return url;
}

// ---- an answer ---------------------------------------------------------------------------------------------------

Status HttpReader::read_head(std::string_view head) {
  static constexpr std::string_view kVersion = "HTTP/1.";
  const auto code = head.size() > 12 ? number<int>(head.substr(9, 3)) : std::nullopt;
  if (!head.starts_with(kVersion) || !code) return broken("the answer is not HTTP/1.1");
  state_ = State::kUntilClose;
  status_ = *code;
  for (size_t at = head.find("\r\n"); at != std::string_view::npos && at + 2 < head.size();) {
    const size_t end = std::min(head.find("\r\n", at + 2), head.size());
    const std::string_view line = head.substr(at + 2, end - at - 2);
    at = end;
    const size_t colon = std::min(line.find(':'), line.size());
    const std::string name = lower(line.substr(0, colon));
    const std::string_view value = colon < line.size() ? trim(line.substr(colon + 1)) : std::string_view();
    if (name == "transfer-encoding" && lower(value) == "chunked") state_ = State::kChunkSize;
    if (name != "content-length" || state_ == State::kChunkSize) continue;
    const auto length = number<uint64_t>(value);
    if (!length) return broken("the answer's Content-Length is not a number");
    n_left_ = *length;
    state_ = n_left_ > 0 ? State::kLength : State::kWhole;
  }
  if (status_ < 200) {  // another head follows
    state_ = State::kHead;
  } else if (status_ == 204 || status_ == 304) {
    state_ = State::kWhole;
  }
  return {};
}

// A line of the chunked form, without its end.
Status HttpReader::read_line(std::string_view line) {
  if (state_ == State::kChunkEnd) {
    if (!line.empty()) return broken("a chunk is longer than its size");
    state_ = State::kChunkSize;
  } else if (state_ == State::kTrailer) {
    if (line.empty()) state_ = State::kWhole;
  } else {
    const auto size = number<uint64_t>(trim(line.substr(0, line.find(';'))), 16);
    if (!size) return broken("a chunk's size is not a number");
    n_left_ = *size;
    state_ = n_left_ > 0 ? State::kChunk : State::kTrailer;
  }
  return {};
}

Status HttpReader::feed(std::string_view bytes, std::string* body) {
  while (!bytes.empty() && state_ != State::kWhole) {
    if (state_ == State::kUntilClose) {
      body->append(bytes);
      return {};
    }
    if (state_ == State::kLength || state_ == State::kChunk) {
      const size_t n = static_cast<size_t>(std::min<uint64_t>(n_left_, bytes.size()));
      body->append(bytes.substr(0, n));
      bytes.remove_prefix(n);
      n_left_ -= n;
      if (n_left_ == 0) state_ = state_ == State::kLength ? State::kWhole : State::kChunkEnd;
      continue;
    }
    const std::string_view mark = state_ == State::kHead ? "\r\n\r\n" : "\r\n";
    pending_ += bytes.front();  // heads and lines are short
    bytes.remove_prefix(1);
    if (pending_.size() > kMaxHeadBytes) return broken("the answer's head is too long");
    if (!pending_.ends_with(mark)) continue;
    const std::string text = std::exchange(pending_, {});
    const std::string_view line = std::string_view(text).substr(0, text.size() - mark.size());
    LEVIN_TRY(state_ == State::kHead ? read_head(line) : read_line(line));
  }
  return {};
}

Status HttpReader::close() {
  if (state_ == State::kUntilClose) state_ = State::kWhole;
  if (whole()) return {};
  return broken(status_ == 0 ? "the server closed without an answer" : "the server closed in the middle of its answer");
}

Result<int> http_call(const Url& url, const HttpCall& call, const std::function<void(std::string_view)>& on_body) {
  const Clock::time_point deadline = Clock::now() + call.timeout;
  LEVIN_ASSIGN(const Socket socket, connect_to(url, deadline));
  LEVIN_TRY(send_all(socket, request_text(url, call), deadline));
  HttpReader reader;
  std::string buffer(64 << 10, '\0'), body;
  while (!reader.whole()) {
    if (!socket.wait(POLLIN, deadline)) {
      return broken(fmt::format("no complete answer within {} s",
                                std::chrono::duration_cast<std::chrono::seconds>(call.timeout).count()));
    }
    const ssize_t n = ::recv(socket.get(), buffer.data(), buffer.size(), 0);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) continue;
    if (n < 0) return broken(fmt::format("cannot receive: {}", std::strerror(errno)));
    LEVIN_TRY(n == 0 ? reader.close() : reader.feed(std::string_view(buffer).substr(0, static_cast<size_t>(n)), &body));
    if (!body.empty()) on_body(body);
    body.clear();
  }
  return reader.status();
}

Result<HttpReply> http_call(const Url& url, const HttpCall& call) {
  HttpReply reply;
  LEVIN_ASSIGN(reply.status, http_call(url, call, [&](std::string_view bytes) { reply.body += bytes; }));
  return reply;
}

void EventLines::feed(std::string_view bytes, const std::function<void(std::string_view data)>& on_data) {
  static constexpr std::string_view kData = "data:";
  pending_ += bytes;
  size_t begin = 0;
  for (size_t end = 0; (end = pending_.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const std::string_view line = trim(std::string_view(pending_).substr(begin, end - begin));
    if (line.starts_with(kData)) on_data(trim(line.substr(kData.size())));
  }
  pending_.erase(0, begin);
}

}  // namespace levin::app
