#include "serve/access.h"

#include <arpa/inet.h>
#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <string_view>

namespace levin::serve {
namespace {

std::string lower_case(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

// Compares in time that depends on the lengths alone.
bool same_key(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

bool has_key(const HttpRequest& request, const std::vector<std::string>& keys) {
  static constexpr std::string_view kBearer = "bearer ";
  std::vector<std::string_view> given;
  if (const std::string* header = request.header("authorization");
      header != nullptr && lower_case(std::string_view(*header).substr(0, kBearer.size())) == kBearer) {
    const size_t key = header->find_first_not_of(' ', kBearer.size());
    if (key != std::string::npos) given.push_back(std::string_view(*header).substr(key));
  }
  if (const std::string* header = request.header("x-api-key")) given.emplace_back(*header);
  return std::any_of(keys.begin(), keys.end(), [&](const std::string& key) {
    return std::any_of(given.begin(), given.end(), [&](std::string_view g) { return same_key(g, key); });
  });
}

// "[::1]:8000" is ::1, "localhost:8000" is localhost.
std::string without_port(std::string_view host) {
  if (host.starts_with('[')) return lower_case(host.substr(1, host.find(']') - 1));
  return lower_case(host.substr(0, host.rfind(':')));
}

bool is_address(const std::string& name) {
  in6_addr address{};
  return inet_pton(AF_INET, name.c_str(), &address) == 1 || inet_pton(AF_INET6, name.c_str(), &address) == 1;
}

bool is_localhost(const std::string& name) { return name == "localhost" || name.ends_with(".localhost"); }

bool is_this_machine(const std::string& name) {
  in_addr address{};
  if (inet_pton(AF_INET, name.c_str(), &address) == 1) return name.starts_with("127.");
  return is_localhost(name) || name == "::1";
}

// Names of hosts are the same in letters of either case, and browsers write those of origins in small ones.
bool has(const std::vector<std::string>& list, const std::string& name) {
  return std::any_of(list.begin(), list.end(),
                     [&](const std::string& each) { return each == "*" || lower_case(each) == lower_case(name); });
}

}  // namespace

bool is_cors_origin(const AccessRules& rules, const std::string& origin) { return has(rules.cors_origins, origin); }

std::optional<ApiError> check_origin(const AccessRules& rules, const HttpRequest& request) {
  if (!rules.api_keys.empty() || !rules.loopback_only) return std::nullopt;
  const std::string* host = request.header("host");
  const std::string name = host != nullptr ? without_port(*host) : "";
  if (!name.empty() && !is_address(name) && !is_localhost(name) && !has(rules.allowed_hosts, name)) {
    return foreign(
        fmt::format("the Host header is {}, and without keys this server answers to addresses and to localhost only; "
                    "start it with --allowed-hosts {} or with --api-key",
                    *host, name));
  }
  const std::string* origin = request.header("origin");
  if (origin == nullptr || is_cors_origin(rules, *origin)) return std::nullopt;
  const size_t scheme = origin->find("://");
  const std::string_view place = scheme == std::string::npos ? "" : std::string_view(*origin).substr(scheme + 3);
  if (!place.empty() && ((host != nullptr && place == *host) || is_this_machine(without_port(place))))
    return std::nullopt;
  return foreign(fmt::format(
      "the request comes from a page of {}, which may not call this server; start it with --cors-origins {} "
      "or with --api-key",
      *origin, *origin));
}

std::optional<ApiError> check_key(const AccessRules& rules, const HttpRequest& request) {
  if (rules.api_keys.empty() || has_key(request, rules.api_keys)) return std::nullopt;
  return wrong_key();
}

}  // namespace levin::serve
