// Who may use the server. With keys: requests that carry one. Without keys, on a server that only this machine can reach:
// requests that no foreign web page has made.
//
// Keys    "Authorization: Bearer KEY", in letters of either case, or "x-api-key: KEY"
// Host    a page can have its own name stand for 127.0.0.1 (DNS rebinding) and then reads what it likes; its requests
//         still carry that name. So the Host header must be an address, localhost, a name below it, or one that was allowed
// Origin  a page can send a request anywhere without asking first, and have it computed though it may not read the
//         answer. So an Origin, where there is one, must be the server's own, this machine's, or one that was allowed
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "serve/api_error.h"
#include "serve/http_message.h"

namespace levin::serve {

struct AccessRules {
  std::vector<std::string> api_keys;       // none: everybody who can reach the server
  bool loopback_only = false;              // no other machine reaches the server
  std::vector<std::string> allowed_hosts;  // further names; "*": any
  std::vector<std::string> cors_origins;   // "*": any
};

// Whether pages of this origin may read answers.
bool is_cors_origin(const AccessRules& rules, const std::string& origin);

// The refusal, if there is one: of the request's host and origin, and of its key.
std::optional<ApiError> check_origin(const AccessRules& rules, const HttpRequest& request);
std::optional<ApiError> check_key(const AccessRules& rules, const HttpRequest& request);

}  // namespace levin::serve
