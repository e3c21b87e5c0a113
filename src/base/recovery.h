// What a thread does about a failed check (check.h) and about memory that runs out: by default the process ends where it
// happens. Within a Recovery it is thrown, as CheckFailed or std::bad_alloc, for code that can end one piece of work and
// continue with the others, as the loop of an engine does with requests.
#pragma once

#include <stdexcept>

namespace levin {

// A bug of our own: the message says where and what.
class CheckFailed : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

class Recovery {
 public:
  Recovery();
  ~Recovery();
  Recovery(const Recovery&) = delete;
  Recovery& operator=(const Recovery&) = delete;

  static bool active();  // on this thread
};

}  // namespace levin
