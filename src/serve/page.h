// The page at `/`: chat and dashboard in one HTML document.
#pragma once

#include <memory>

#include "serve/http_server.h"
#include "serve/served_model.h"

namespace levin::serve {

// GET /: the page for browsers, a line of text for others.
void handle_page(const ServedModel& model, const std::shared_ptr<Exchange>& exchange);

}  // namespace levin::serve
