// The program itself, as a user starts it.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace levin::test {

struct ProgramResult {
  int exit_code = -1;  // 128 + signal when it was killed, 124 when it did not end in time
  std::string out;     // standard output
  std::string err;     // standard error
};

// Runs levin with these arguments, without the LEVIN_ variables of the caller; `environment` is added. Killed after
// `timeout_s`.
ProgramResult run_levin(const std::vector<std::string>& arguments,
                        const std::vector<std::pair<std::string, std::string>>& environment = {}, int timeout_s = 60);

}  // namespace levin::test
