#include "serve/http_server.h"

#include <fcntl.h>
#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <future>
#include <list>
#include <optional>
#include <set>
#include <thread>
#include <vector>

namespace levin::serve {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
constexpr uint32_t kMaxHeadBytes = 64 << 10;
constexpr size_t kReadBytes = 16 << 10;    // at a time
constexpr size_t kPieceBytes = 256 << 10;  // of a whole answer, for each of which the client has its time
constexpr std::string_view kComment = ": still here\n\n";
constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
constexpr auto kGiveUpTime = std::chrono::seconds(2);
constexpr auto kNoteInterval = std::chrono::minutes(1);

// What the connection writes of one exchange. Everything but `request` belongs to the server's thread.
struct Output {
  HttpRequest request;
  asio::steady_timer wake;  // cancelled when there is something to do
  std::string unsent;
  bool begun = false;  // the head is in `unsent` or out
  bool streaming = false;
  bool ended = false;
  bool half_closed = false;  // the client has closed its own side
  bool gone = false;         // the client is
  bool keep_alive = true;
  std::function<void()> on_disconnect;

  Output(const asio::any_io_executor& executor, HttpRequest r) : request(std::move(r)), wake(executor) {}

  void append(std::string_view bytes) {
    if (gone || ended) return;
    unsent += bytes;
    wake.cancel();
  }
  // Bytes that say nothing, but are reset by a client that is gone. False: this answer has no place for any.
  bool probe() {
    if (ended) return true;
    if (streaming) {
      append(stream_piece(request, kComment));
    } else if (request.version_1_0) {
      return false;
    } else if (!begun) {
      append(kContinue);
    }
    return true;
  }
  void finish() {
    ended = true;
    on_disconnect = nullptr;
    wake.cancel();
  }
  void leave() {
    gone = true;
    unsent.clear();
    if (on_disconnect && !ended) std::exchange(on_disconnect, nullptr)();
    wake.cancel();
  }
};

// The side of an exchange that other threads see: every call becomes a piece of work for the server's thread.
class ExchangeHandle final : public Exchange {
 public:
  ExchangeHandle(asio::any_io_executor executor, std::shared_ptr<Output> output, const HttpServer::Refusal& refusal)
      : executor_(std::move(executor)), output_(std::move(output)), refusal_(refusal) {}
  ~ExchangeHandle() override {
    asio::post(executor_, [output = output_, refusal = refusal_] {
      if (output->ended) return;
      if (!output->begun) write_whole(*output, refusal(500, "the server lost the request"));
      output->keep_alive = false;
      output->finish();
    });
  }

  const HttpRequest& request() const override { return output_->request; }

  void respond(HttpResponse response) override {
    asio::post(executor_, [output = output_, response = std::move(response)] { write_whole(*output, response); });
  }
  void begin_stream(HttpResponse head) override {
    asio::post(executor_, [output = output_, head = std::move(head)] {
      if (output->begun) return;
      output->begun = output->streaming = true;
      if (output->request.version_1_0) output->keep_alive = false;
      output->append(response_head(output->request, head, output->keep_alive, nullptr));
    });
  }
  void send(std::string bytes) override {
    if (bytes.empty()) return;  // would end a chunked stream
    asio::post(executor_,
               [output = output_, bytes = std::move(bytes)] { output->append(stream_piece(output->request, bytes)); });
  }
  void end() override {
    asio::post(executor_, [output = output_] {
      output->append(stream_piece(output->request, ""));
      output->finish();
    });
  }
  void on_disconnect(std::function<void()> call) override {
    asio::post(executor_, [output = output_, call = std::move(call)] {
      if (output->ended) return;
      if (output->gone) return call();
      output->on_disconnect = call;
    });
  }

 private:
  static void write_whole(Output& output, const HttpResponse& response) {
    if (output.begun) return;
    output.begun = true;
    const size_t length = response.body.size();
    output.append(response_head(output.request, response, output.keep_alive, &length));
    if (output.request.method != "HEAD") output.append(response.body);
    output.finish();
  }

  asio::any_io_executor executor_;
  std::shared_ptr<Output> output_;
  HttpServer::Refusal refusal_;
};

HttpRequest plain_request(const http::request<http::string_body>& message) {
  HttpRequest request;
  request.method = std::string(message.method_string());
  request.version_1_0 = message.version() < 11;
  request.keep_alive = message.keep_alive();
  for (const auto& field : message) {
    std::string name(field.name_string());
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    request.headers.emplace_back(std::move(name), std::string(field.value()));
  }
  return request;
}

using Parser = http::request_parser<http::string_body>;

struct Refused {
  int status;
  std::string message;
};

// What is said of a request that could not be read; nothing if its client is gone or was too slow.
std::optional<Refused> unreadable(error_code ec, const Parser& parser, size_t max_body_bytes) {
  if (ec == http::error::body_limit) {
    return Refused{413, fmt::format("the body is longer than the {} bytes that are allowed", max_body_bytes)};
  }
  if (ec == http::error::header_limit) {
    const char* what = parser.is_header_done() ? "a chunk's extensions or the trailers are" : "the head is";
    return Refused{431, fmt::format("{} longer than the {} bytes that are allowed", what, kMaxHeadBytes)};
  }
  if (ec == http::error::end_of_stream || ec == http::error::partial_message) return std::nullopt;
  if (ec.category() != http::make_error_code(http::error::end_of_stream).category()) return std::nullopt;
  return Refused{400, fmt::format("this is not an HTTP/1.1 request: {}", ec.message())};
}

// Why the body that is announced could not be understood. One in an unknown transfer coding has no end that we know.
std::optional<Refused> unknown_coding(const Parser& parser) {
  const auto& head = parser.get();
  const std::string_view transfer(head[http::field::transfer_encoding]);
  if (head.count(http::field::transfer_encoding) > 0 && !beast::iequals(transfer, "chunked")) {
    return Refused{501, fmt::format("Transfer-Encoding is {}, and only chunked is supported", transfer)};
  }
  const std::string_view content(head[http::field::content_encoding]);
  const bool has_body = parser.chunked() || parser.content_length().value_or(0) > 0;
  if (!has_body || content.empty() || beast::iequals(content, "identity")) return std::nullopt;
  return Refused{
      415, fmt::format("Content-Encoding is {}, and only identity is supported; send the body as it is", content)};
}

class Server;

// Its two coroutines read() and write() are the only callers of the stream's own: each further caller would have the compiler make
// its operations again.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Server& server, tcp::socket socket, bool late)
      : server_(server), stream_(std::move(socket)), late_(late) {}
  asio::awaitable<void> run();
  bool late() const { return late_; }
  void close_if_idle() {
    if (output_ == nullptr && !reading_) close();
  }
  void close() {
    if (output_) output_->leave();
    error_code ignored;
    stream_.socket().close(ignored);
  }

 private:
  asio::awaitable<error_code> read();
  asio::awaitable<error_code> write(std::string_view bytes);
  asio::awaitable<error_code> write_in_pieces(std::string_view bytes, size_t n_piece);
  asio::awaitable<error_code> parse(Parser& parser, bool (Parser::*is_done)() const);
  bool at_request();
  asio::awaitable<std::shared_ptr<Output>> read_request();
  asio::awaitable<bool> write_answer();
  asio::awaitable<void> watch();
  asio::awaitable<bool> has_left(Output& output);
  asio::awaitable<void> refuse(int status, std::string message);
  asio::awaitable<void> linger();

  Server& server_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;
  std::shared_ptr<Output> output_;  // of the exchange that is being answered
  const bool late_;                 // accepted while the server stops: nobody waits for it
  bool reading_ = false;            // in the middle of a request
  bool watching_ = false;
};

class Server final : public HttpServer {
 public:
  Server(const HttpServerOptions& options, Handler handler, Refusal refusal)
      : options_(options), handler_(std::move(handler)), refusal_(std::move(refusal)) {}
  ~Server() override { stop(std::chrono::milliseconds(0), {}); }

  Status open();
  uint16_t port() const override { return port_; }
  bool loopback_only() const override { return loopback_only_; }
  void stop(std::chrono::milliseconds grace, const std::function<void()>& give_up) override;

  const HttpServerOptions& options() const { return options_; }
  const Handler& handler() const { return handler_; }
  const Refusal& refusal() const { return refusal_; }
  bool stopping() const { return stopping_; }

 private:
  Result<std::vector<asio::ip::address>> addresses();
  error_code open_one(const asio::ip::address& address);
  Error cannot_listen(error_code why) const;
  asio::awaitable<void> accept(tcp::acceptor& acceptor);
  asio::awaitable<void> serve(std::shared_ptr<Connection> connection);
  void run();
  void take(tcp::socket socket);
  error_code accept_with_spare(tcp::acceptor& acceptor);
  void turn_away(tcp::socket& socket, const std::string& message);
  void keep_spare();
  void note(const std::string& line);

  HttpServerOptions options_;
  Handler handler_;
  Refusal refusal_;
  asio::io_context io_{1};
  std::list<tcp::acceptor> acceptors_;  // one for each address of the host
  uint16_t port_ = 0;                   // of all of them
  bool loopback_only_ = true;
  asio::posix::stream_descriptor null_{io_};   // what the spare one is a copy of
  asio::posix::stream_descriptor spare_{io_};  // given up for a moment to say 503 where there are no descriptors left
  std::chrono::steady_clock::time_point noted_{};
  std::set<std::shared_ptr<Connection>> connections_;
  bool stopping_ = false;
  size_t n_waited_for_ = 0;     // connections that were there when stopping began
  std::promise<void> drained_;  // set when stopping and none of these is left
  bool closing_ = false;
  std::promise<void> emptied_;  // set when closing and no connection is left
  std::thread thread_;
};

// ---- a connection ------------------------------------------------------------------------------------------------

asio::awaitable<void> Connection::run() {
  stream_.socket().set_option(tcp::no_delay(true));
  bool keep_alive = true;
  while (keep_alive) {
    output_ = co_await read_request();
    reading_ = false;
    if (output_ == nullptr) co_return;
    server_.handler()(std::make_shared<ExchangeHandle>(stream_.get_executor(), output_, server_.refusal()));
    watching_ = true;
    asio::co_spawn(stream_.get_executor(), [self = shared_from_this()] { return self->watch(); }, asio::detached);
    keep_alive = co_await write_answer();
    error_code ignored;
    stream_.socket().cancel(ignored);  // ends watch()
    while (watching_) {
      output_->wake.expires_at(asio::steady_timer::time_point::max());
      if (watching_) co_await output_->wake.async_wait(kAwait);
    }
    output_ = nullptr;
  }
  co_await linger();
}

// More bytes into the buffer.
asio::awaitable<error_code> Connection::read() {
  const auto [ec, n] = co_await stream_.async_read_some(buffer_.prepare(kReadBytes), kAwait);
  buffer_.commit(n);
  co_return ec;
}

asio::awaitable<error_code> Connection::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const auto [ec, n] = co_await stream_.async_write_some(asio::const_buffer(bytes.data(), bytes.size()), kAwait);
    if (ec) co_return ec;
    bytes.remove_prefix(n);
  }
  co_return error_code();
}

// The client has options.write_timeout for each piece.
asio::awaitable<error_code> Connection::write_in_pieces(std::string_view bytes, size_t n_piece) {
  error_code ec;
  for (; !bytes.empty() && !ec; bytes.remove_prefix(std::min(n_piece, bytes.size()))) {
    stream_.expires_after(server_.options().write_timeout);
    ec = co_await write(bytes.substr(0, n_piece));
  }
  stream_.expires_never();
  co_return ec;
}

// Has the parser take what comes until it is done with the head or with all of a request.
asio::awaitable<error_code> Connection::parse(Parser& parser, bool (Parser::*is_done)() const) {
  while (!(parser.*is_done)()) {
    error_code ec = http::error::need_more;
    if (buffer_.size() > 0) buffer_.consume(parser.put(buffer_.data(), ec));
    if (ec == http::error::need_more) {
      // The parser limits the head, and takes a body as it comes: more than this waits only for the end of a chunk's
      // extensions or of the trailers.
      if (buffer_.size() > kMaxHeadBytes) co_return http::error::header_limit;
      ec = co_await read();
      if (ec == asio::error::eof && !parser.got_some()) ec = http::error::end_of_stream;
      if (ec == asio::error::eof) {
        ec = {};
        parser.put_eof(ec);
      }
    }
    if (ec) co_return ec;
  }
  co_return error_code();
}

// Whether the buffer has the first byte of a request. Some clients send an empty line after a body: RFC 9112, section 2.2.
bool Connection::at_request() {
  const std::string_view bytes(static_cast<const char*>(buffer_.data().data()), buffer_.size());
  buffer_.consume(std::min(bytes.find_first_not_of("\r\n"), bytes.size()));
  return buffer_.size() > 0;
}

// The next request; nullptr when the connection is to be closed, after an answer if there is somebody to read one.
asio::awaitable<std::shared_ptr<Output>> Connection::read_request() {
  const HttpServerOptions& options = server_.options();
  Parser parser;
  parser.header_limit(kMaxHeadBytes);
  parser.body_limit(options.max_body_bytes);
  stream_.expires_after(options.idle_timeout);
  while (!at_request()) {  // wait for its first byte
    if (co_await read()) co_return nullptr;
  }
  reading_ = true;
  stream_.expires_after(options.head_timeout);
  error_code ec = co_await parse(parser, &Parser::is_header_done);
  std::optional<Refused> refused = ec ? std::nullopt : unknown_coding(parser);
  // HTTP/1.0 knows no such answer: RFC 9110, section 10.1.1
  const bool may_wait = parser.get().version() >= 11;
  if (!ec && !refused && may_wait && beast::iequals(parser.get()[http::field::expect], "100-continue")) {
    ec = co_await write(kContinue);
  }
  if (!ec && !refused) {
    stream_.expires_after(options.body_timeout);
    parser.eager(true);
    ec = co_await parse(parser, &Parser::is_done);
  }
  if (ec) refused = unreadable(ec, parser, options.max_body_bytes);
  if (refused) co_await refuse(refused->status, refused->message);
  if (ec || refused) co_return nullptr;
  HttpRequest request = plain_request(parser.get());
  const auto n_hosts = parser.get().count(http::field::host);
  if (n_hosts > 1 || (n_hosts == 0 && !request.version_1_0)) {
    co_await refuse(400, fmt::format("the request has {} Host headers; HTTP/1.1 needs one", n_hosts));
    co_return nullptr;
  }
  if (!split_target(std::string_view(parser.get().target().data(), parser.get().target().size()), &request.path,
                    &request.query)) {
    co_await refuse(400, "the request's target is not a path");
    co_return nullptr;
  }
  request.body = std::move(parser.get().body());
  auto output = std::make_shared<Output>(stream_.get_executor(), std::move(request));
  output->keep_alive = output->request.keep_alive && !server_.stopping();
  co_return output;
}

// Writes until the exchange ends. False: the connection cannot be used again.
asio::awaitable<bool> Connection::write_answer() {
  const HttpServerOptions& options = server_.options();
  Output& output = *output_;
  while (!output.gone) {
    if (output.unsent.size() > options.max_unsent_bytes && output.streaming) {
      output.leave();
    } else if (!output.unsent.empty()) {
      const std::string bytes = std::exchange(output.unsent, {});
      // of a stream more may pile up meanwhile, so that what there is has to be read at once
      const error_code ec = co_await write_in_pieces(bytes, output.streaming ? bytes.size() : kPieceBytes);
      if (ec) output.leave();
    } else if (output.ended) {
      co_return output.keep_alive && !server_.stopping();
    } else {
      output.wake.expires_after(options.comment_interval);
      const auto [ec] = co_await output.wake.async_wait(kAwait);
      if (!ec && output.unsent.empty() && (output.streaming || output.half_closed)) output.probe();
    }
  }
  co_return false;
}

// Notices a client that leaves while it is being answered. What it sends meanwhile is the next request, which waits for
// its turn in the buffer; of one that does not fit there, the end is not seen before the answer.
asio::awaitable<void> Connection::watch() {
  const std::shared_ptr<Connection> self = shared_from_this();
  const std::shared_ptr<Output> output = output_;
  error_code ec;
  while (!ec && buffer_.size() <= kMaxHeadBytes) {
    const auto [wait_ec] = co_await stream_.socket().async_wait(tcp::socket::wait_read, kAwait);
    if (wait_ec) break;  // the answer is written
    stream_.socket().non_blocking(true, ec);
    buffer_.commit(stream_.socket().receive(buffer_.prepare(kReadBytes), 0, ec));
    if (ec == asio::error::would_block) ec = {};
  }
  const bool half_closed = ec == asio::error::eof;
  if (half_closed ? co_await has_left(*output) : bool{ec}) output->leave();
  watching_ = false;
  output->wake.cancel();
}

// Whether a client that has closed its own side is gone altogether. Waits until that shows, or watch() is to end.
asio::awaitable<bool> Connection::has_left(Output& output) {
  output.half_closed = true;
  if (!output.probe()) co_return true;
  const auto [ec] = co_await stream_.socket().async_wait(tcp::socket::wait_error, kAwait);
  co_return !ec;
}

asio::awaitable<void> Connection::refuse(int status, std::string message) {
  const HttpResponse response = server_.refusal()(status, message);
  const size_t length = response.body.size();
  const std::string text = response_head({}, response, false, &length) + response.body;
  stream_.expires_after(server_.options().write_timeout);
  co_await write(text);
  co_await linger();
}

// Closes so that the client still reads what was written: what it sends meanwhile is read and dropped, for a while.
asio::awaitable<void> Connection::linger() {
  error_code ignored;
  stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
  stream_.expires_after(std::chrono::seconds(2));
  for (int i = 0; i < 8000 && !server_.stopping(); ++i) {
    buffer_.clear();
    if (co_await read()) break;
  }
  stream_.socket().close(ignored);
}

// ---- the server --------------------------------------------------------------------------------------------------

// A name may have an address that this machine lacks, as localhost has ::1 where there is no IPv6.
bool is_elsewhere(error_code ec) {
  return ec == asio::error::address_family_not_supported || ec == boost::system::errc::address_not_available;
}

bool is_out_of_descriptors(error_code ec) {
  return ec == asio::error::no_descriptors || ec == boost::system::errc::too_many_files_open_in_system;
}

// What the host stands for. Digits and dots, or colons, are meant as an address: no name server is asked about them.
Result<std::vector<asio::ip::address>> Server::addresses() {
  error_code ec;
  const asio::ip::address address = asio::ip::make_address(options_.host, ec);
  if (!ec) return std::vector{address};
  const bool numeric = options_.host.find_first_not_of("0123456789.") == std::string::npos ||
                       options_.host.find(':') != std::string::npos;
  if (numeric) {
    return Error{ErrorKind::kUsage,
                 fmt::format("--host {} is not an address; give one like 127.0.0.1 or ::", options_.host)};
  }
  std::vector<asio::ip::address> found;
  for (const auto& entry : tcp::resolver(io_).resolve(options_.host, "", tcp::resolver::passive, ec)) {
    const asio::ip::address each = entry.endpoint().address();
    if (std::find(found.begin(), found.end(), each) == found.end()) found.push_back(each);
  }
  if (!ec && !found.empty()) return found;
  return Error{ErrorKind::kUsage,
               fmt::format("--host {} is not an address, nor a name that can be resolved ({}); give an address like "
                           "127.0.0.1 or ::, or a name like localhost",
                           options_.host, ec.message())};
}

error_code Server::open_one(const asio::ip::address& address) {
  error_code ec;
  tcp::acceptor acceptor(io_);
  const tcp::endpoint endpoint(address, port_);
  acceptor.open(endpoint.protocol(), ec);
  if (!ec) acceptor.set_option(tcp::acceptor::reuse_address(true), ec);
  if (!ec) acceptor.bind(endpoint, ec);
  if (!ec) acceptor.listen(asio::socket_base::max_listen_connections, ec);
  if (!ec) acceptor.non_blocking(true, ec);
  if (ec) return ec;
  port_ = acceptor.local_endpoint().port();
  loopback_only_ = loopback_only_ && address.is_loopback();
  acceptors_.push_back(std::move(acceptor));
  return {};
}

Error Server::cannot_listen(error_code why) const {
  return {ErrorKind::kUsage, fmt::format("cannot listen on {} port {}: {}; choose another with --host and --port",
                                         options_.host, options_.port, why.message())};
}

Status Server::open() {
  LEVIN_ASSIGN(const std::vector<asio::ip::address> all, addresses());
  port_ = options_.port;
  error_code failed;
  for (const asio::ip::address& address : all) {
    const error_code ec = open_one(address);
    if (ec && !(all.size() > 1 && is_elsewhere(ec))) return cannot_listen(ec);
    if (ec) failed = ec;
  }
  if (acceptors_.empty()) return cannot_listen(failed);
  keep_spare();
  for (tcp::acceptor& acceptor : acceptors_) asio::co_spawn(io_, accept(acceptor), asio::detached);
  thread_ = std::thread([this] { run(); });
  return {};
}

// What a handler throws ends that handler.
void Server::run() {
  while (true) {
    try {
      io_.run();
      return;
    } catch (const std::exception& thrown) {
      note(fmt::format("an event was dropped: {}", thrown.what()));
    }
  }
}

asio::awaitable<void> Server::accept(tcp::acceptor& acceptor) {
  while (acceptor.is_open()) {
    auto [ec, socket] = co_await acceptor.async_accept(kAwait);
    if (ec == asio::error::operation_aborted || !acceptor.is_open()) co_return;
    if (!ec) {
      take(std::move(socket));
    } else if (is_out_of_descriptors(ec)) {  // perhaps with nobody waiting
      const auto [wait_ec] = co_await acceptor.async_wait(tcp::acceptor::wait_read, kAwait);
      if (!wait_ec) ec = accept_with_spare(acceptor);
    }
    if (!ec || ec == asio::error::would_block) continue;
    asio::steady_timer pause(io_, std::chrono::milliseconds(50));
    co_await pause.async_wait(kAwait);
  }
}

void Server::take(tcp::socket socket) {
  std::shared_ptr<Connection> connection;
  try {
    if (connections_.size() >= options_.max_connections) {
      turn_away(socket, "too many connections; try again later");
      return note(fmt::format("all {} connections are taken; new ones get status 503", options_.max_connections));
    }
    connection = std::make_shared<Connection>(*this, std::move(socket), stopping_);
    connections_.insert(connection);
    asio::co_spawn(io_, serve(connection), asio::detached);
  } catch (const std::exception& thrown) {  // the others stay, and the next may find memory
    connections_.erase(connection);
    note(fmt::format("a connection was not taken: {}", thrown.what()));
  }
}

// Accepts in place of the spare descriptor. Where no other turns up to be the next spare, the client gets 503.
error_code Server::accept_with_spare(tcp::acceptor& acceptor) {
  error_code ec, ignored;
  spare_.close(ignored);
  tcp::socket socket(io_);
  acceptor.accept(socket, ec);
  keep_spare();
  if (ec) return ec;
  if (spare_.is_open()) {
    take(std::move(socket));
    return {};
  }
  turn_away(socket, "no file descriptors are left; try again later");
  // the client's descriptor becomes the spare without being free in between, when another thread could take it
  const int fd = socket.release(ignored);
  if (null_.is_open() && ::dup3(null_.native_handle(), fd, O_CLOEXEC) == fd) {
    spare_.assign(fd, ignored);
  } else {
    ::close(fd);
  }
  note(
      fmt::format("no file descriptors are left with {} connections open; new ones get status 503. Raise the limit of "
                  "descriptors (ulimit -n)",
                  connections_.size()));
  return {};
}

void Server::turn_away(tcp::socket& socket, const std::string& message) {
  HttpResponse response = refusal_(503, message);
  const size_t length = response.body.size();
  const std::string text = response_head({}, response, false, &length) + response.body;
  error_code ignored;
  socket.non_blocking(true, ignored);
  socket.send(asio::buffer(text), 0, ignored);
  // what has come already is read, so that closing does not reset the connection under the answer
  std::string rest(size_t{4} << 10, '\0');
  socket.receive(asio::buffer(rest), 0, ignored);
}

void Server::keep_spare() {
  error_code ignored;
  for (asio::posix::stream_descriptor* descriptor : {&null_, &spare_}) {
    if (descriptor->is_open()) continue;
    const int fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) descriptor->assign(fd, ignored);
  }
}

// Once in a while: where there is one such case there are thousands.
void Server::note(const std::string& line) {
  const auto now = std::chrono::steady_clock::now();
  if (!options_.note || (noted_.time_since_epoch().count() != 0 && now - noted_ < kNoteInterval)) return;
  noted_ = now;
  options_.note(line);
}

asio::awaitable<void> Server::serve(std::shared_ptr<Connection> connection) {
  try {
    co_await connection->run();
  } catch (const boost::system::system_error&) {  // the socket is unusable: NOLINT(bugprone-empty-catch)
  } catch (const std::exception& thrown) {
    note(fmt::format("a connection was closed: {}", thrown.what()));
  }
  connection->close();
  connections_.erase(connection);
  if (stopping_ && !connection->late() && --n_waited_for_ == 0) drained_.set_value();
  if (closing_ && connections_.empty()) emptied_.set_value();
}

void Server::stop(std::chrono::milliseconds grace, const std::function<void()>& give_up) {
  if (!thread_.joinable()) return;
  std::future<void> drained = drained_.get_future();
  asio::post(io_, [this] {
    stopping_ = true;
    n_waited_for_ = connections_.size();
    for (const auto& connection : connections_) connection->close_if_idle();
    if (n_waited_for_ == 0) drained_.set_value();
  });
  if (drained.wait_for(grace) != std::future_status::ready && give_up) {
    give_up();
    drained.wait_for(kGiveUpTime);
  }
  asio::post(io_, [this] {
    closing_ = true;
    error_code ignored;
    for (tcp::acceptor& acceptor : acceptors_) acceptor.close(ignored);
    for (const auto& connection : connections_) connection->close();
    if (connections_.empty()) emptied_.set_value();
  });
  emptied_.get_future().wait();
  io_.stop();
  thread_.join();
}

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::listen(const HttpServerOptions& options, Handler handler,
                                                       Refusal refusal) {
  auto server = std::make_unique<Server>(options, std::move(handler), std::move(refusal));
  LEVIN_TRY(server->open());
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace levin::serve
