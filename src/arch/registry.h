// The families of models that this program runs. A registry is a value: a program takes the built-in one, a test adds a
// family of its own to a copy.
#pragma once

#include <span>
#include <vector>

#include "base/result.h"
#include "io/json.h"
#include "model/architecture.h"

namespace levin {

class Registry {
 public:
  static const Registry& built_in();

  // This registry and one family more, which must outlive it. Its model_type must be new.
  Registry with(const Architecture& family) const;

  std::span<const Architecture* const> families() const { return families_; }

  // The family of a config.json, by model_type and keys, never by the name of the model. kModelInvalid for one that is
  // not here: the message names the families that are.
  Result<const Architecture*> family_of(const io::JsonFields& config) const;

 private:
  explicit Registry(std::vector<const Architecture*> families) : families_(std::move(families)) {}

  std::vector<const Architecture*> families_;
};

}  // namespace levin
