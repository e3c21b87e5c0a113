// The document of the page at `/`, which the build joins of the files in serve/page and embeds.
#pragma once

#include <string_view>

namespace levin::serve {

std::string_view page_html();

// The directives of a Content-Security-Policy that admit the document's scripts and styles by their hashes, and no others.
std::string_view page_sources();

}  // namespace levin::serve
