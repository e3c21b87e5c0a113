#include "serve/page.h"

#include <fmt/core.h>

#include <string>

#include "serve/page_document.h"

namespace levin::serve {
namespace {

// The page is one document that talks to its own server alone; a browser holds it to that. Of scripts and styles it runs
// those of the build, by their hashes, and nothing on the page may turn a string into markup or code.
std::string policy() {
  return fmt::format(
      "default-src 'none'; {}; img-src data:; connect-src 'self'; form-action 'none'; frame-ancestors 'none'; "
      "base-uri 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
      page_sources());
}

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
                     .headers = {{"Content-Security-Policy", policy()},
                                 {"X-Content-Type-Options", "nosniff"},
                                 {"Referrer-Policy", "no-referrer"},
                                 {"Cache-Control", "no-cache"}},
                     .body = std::string(page_html())});
}

}  // namespace levin::serve
