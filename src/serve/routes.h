// The routes: what the server answers to, as one table in the .cc. A row is all that the server, its errors (404, 405)
// and the OpenAPI document know of a route; docs/adding_a_route.md has the steps for another.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "serve/fields.h"
#include "serve/http_server.h"
#include "serve/served_model.h"

namespace levin::serve {

using HandlerFunction = void (*)(const ServedModel&, const std::shared_ptr<Exchange>&);

struct Route {
  std::string_view method;  // GET, also for HEAD, or POST
  std::string_view path;    // ends with '*': every longer path that begins so
  HandlerFunction handle = nullptr;
  std::string_view what;               // a sentence without its full stop
  bool open = false;                   // needs no key
  std::vector<FieldList> fields = {};  // of the body; "model" is read everywhere
};

std::span<const Route> built_in_routes();
bool matches(const Route& route, std::string_view path);

// The OpenAPI 3.1 document of these routes.
io::JsonObject openapi_document(std::span<const Route> routes, std::string_view version);

}  // namespace levin::serve
