// The page at `/`: chat and dashboard in one HTML document (serve/page, joined and embedded by the build).
#pragma once

#include <memory>
#include <string_view>

#include "serve/http_server.h"
#include "serve/served_model.h"

namespace levin::serve {

std::string_view page_html();

// The directives of a Content-Security-Policy that admit the document's scripts and styles by their hashes, and no others.
std::string_view page_sources();

// GET /: the page for browsers, a line of text for others.
void handle_page(const ServedModel& model, const std::shared_ptr<Exchange>& exchange);

}  // namespace levin::serve
