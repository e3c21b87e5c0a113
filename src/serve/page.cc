#include "serve/page.h"

#include <fmt/core.h>

namespace levin::serve {
namespace {

// The page is one document that talks to its own server alone; a browser holds it to that.
constexpr std::string_view kPolicy =
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
    "form-action 'none'; frame-ancestors 'none'; base-uri 'none'";

}  // namespace

void handle_page(const ServedModel& model, const std::shared_ptr<Exchange>& exchange) {
  const std::string* accept = exchange->request().header("accept");
  if (accept == nullptr || accept->find("text/html") == std::string::npos) {
    return exchange->respond(
        {.content_type = "text/plain; charset=utf-8",
         .body = fmt::format("levin {} serves {}. Try POST /v1/chat/completions, or open this page in a browser.\n",
                             model.version, model.name())});
  }
  exchange->respond({.content_type = "text/html; charset=utf-8",
                     .headers = {{"Content-Security-Policy", std::string(kPolicy)},
                                 {"X-Content-Type-Options", "nosniff"},
                                 {"Referrer-Policy", "no-referrer"},
                                 {"Cache-Control", "no-cache"}},
                     .body = std::string(page_html())});
}

}  // namespace levin::serve
