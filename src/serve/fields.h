// What a request's body may have, as the OpenAPI document says it. Each reader of fields lists its own, next to the code
// that reads them; a test compares what is listed with what is read.
#pragma once

#include <span>
#include <string_view>
#include <vector>

namespace levin::serve {

struct Field {
  std::string_view name;
  std::string_view type;  // of JSON, "string"; several with bars between them, "string|array"
  std::string_view what;  // a sentence without its full stop
  bool required = false;
};

using FieldList = std::span<const Field>;

}  // namespace levin::serve
