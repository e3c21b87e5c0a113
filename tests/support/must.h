// The value of a Result that a test relies on but does not test; stops the test program with the error otherwise.
#pragma once

#include <utility>

#include "base/check.h"
#include "base/result.h"

namespace levin::test {

template <class T>
T must(Result<T> result) {
  LEVIN_CHECK(result.ok(), "{}", result.error().message);
  return std::move(result).value();
}

inline void must(const Status& status) { LEVIN_CHECK(status.ok(), "{}", status.error().message); }

}  // namespace levin::test
