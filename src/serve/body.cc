#include "serve/body.h"

namespace levin::serve {

void Body::note(std::string_view key) const {
  trace_->last = key;
  record(key);
}

void Body::record(std::string_view key) const {
  if (!is_inner_ && !trace_->fields.contains(key)) trace_->fields.emplace(key);
}

}  // namespace levin::serve
