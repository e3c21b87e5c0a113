// A device that fails while a model runs on it.
#pragma once

#include <stdexcept>

#include "base/result.h"

namespace levin {

// The device failed in a way that nothing there survives. Thrown from wherever it shows, since no request can continue and
// there is nothing to give back; the program ends with its message.
class DeviceFault : public std::runtime_error {
 public:
  explicit DeviceFault(const Error& error) : std::runtime_error(error.message) {}
};

}  // namespace levin
