#include "serve/body.h"

namespace levin::serve {

void Body::note(std::string_view key) const {
  trace_->last = fields_.path_of(key);
  record(key);
}

void Body::record(std::string_view key) const {
  const std::string_view name = key.substr(0, key.find('.'));
  if (!is_inner_ && !trace_->fields.contains(name)) trace_->fields.emplace(name);
}

}  // namespace levin::serve
