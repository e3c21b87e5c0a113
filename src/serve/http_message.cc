#include "serve/http_message.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>

namespace levin::serve {
namespace {

struct Reason {
  int status;
  std::string_view phrase;
};
constexpr Reason kReasons[] = {{100, "Continue"},
                               {200, "OK"},
                               {204, "No Content"},
                               {400, "Bad Request"},
                               {401, "Unauthorized"},
                               {403, "Forbidden"},
                               {404, "Not Found"},
                               {405, "Method Not Allowed"},
                               {413, "Payload Too Large"},
                               {415, "Unsupported Media Type"},
                               {429, "Too Many Requests"},
                               {431, "Request Header Fields Too Large"},
                               {500, "Internal Server Error"},
                               {501, "Not Implemented"},
                               {503, "Service Unavailable"}};

// "/path" of "http://host/path"; every other target as it is.
std::string_view without_host(std::string_view target) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!target.starts_with(scheme)) continue;
    const size_t path = target.find_first_of("/?", scheme.size());
    return path == std::string_view::npos ? "/" : target.substr(path);
  }
  return target;
}

}  // namespace

const std::string* HttpRequest::header(std::string_view lower_case_name) const {
  const auto found =
      std::find_if(headers.begin(), headers.end(), [&](const auto& h) { return h.first == lower_case_name; });
  return found == headers.end() ? nullptr : &found->second;
}

std::string_view reason_phrase(int status) {
  const auto* found =
      std::find_if(std::begin(kReasons), std::end(kReasons), [=](const Reason& r) { return r.status == status; });
  return found == std::end(kReasons) ? "Unknown" : found->phrase;
}

// By hand: strftime() writes the names in the language of the locale.
std::string http_date(std::time_t time) {
  static constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  static constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                            "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  std::tm utc{};
  gmtime_r(&time, &utc);
  return fmt::format("{}, {:02} {} {} {:02}:{:02}:{:02} GMT", kDays[utc.tm_wday], utc.tm_mday, kMonths[utc.tm_mon],
                     1900 + utc.tm_year, utc.tm_hour, utc.tm_min, utc.tm_sec);
}

std::string response_head(const HttpRequest& request, const HttpResponse& response, bool keep_alive,
                          const size_t* length) {
  std::string head = fmt::format("HTTP/1.1 {} {}\r\nServer: levin\r\nDate: {}\r\n", response.status,
                                 reason_phrase(response.status), http_date(std::time(nullptr)));
  const auto add = [&](std::string_view name, std::string_view value) {
    head.append(name).append(": ").append(value).append("\r\n");
  };
  if (!response.content_type.empty()) add("Content-Type", response.content_type);
  for (const auto& [name, value] : response.headers) add(name, value);
  if (response.status == 204) {
    // has neither a body nor its length: RFC 9110, section 8.6
  } else if (length != nullptr) {
    add("Content-Length", std::to_string(*length));
  } else if (!request.version_1_0) {
    add("Transfer-Encoding", "chunked");
  }
  add("Connection", keep_alive ? "keep-alive" : "close");
  return head + "\r\n";
}

std::string stream_piece(const HttpRequest& request, std::string_view bytes) {
  if (request.version_1_0) return std::string(bytes);
  return fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes);
}

bool split_target(std::string_view target, std::string* path, std::string* query) {
  target = without_host(target);
  const size_t mark = target.find('?');
  *query = mark == std::string_view::npos ? "" : target.substr(mark + 1);
  target = target.substr(0, mark);
  if (!target.starts_with('/')) return false;
  path->clear();
  for (size_t i = 0; i < target.size(); ++i) {
    if (target[i] != '%') {
      path->push_back(target[i]);
      continue;
    }
    unsigned value = 0;
    const char* digits = target.data() + i + 1;
    if (i + 2 >= target.size() || std::from_chars(digits, digits + 2, value, 16).ptr != digits + 2) return false;
    path->push_back(static_cast<char>(value));
    i += 2;
  }
  return true;
}

}  // namespace levin::serve
