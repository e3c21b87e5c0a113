// The program itself, as a user starts it.
#pragma once

#include <csignal>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace levin::test {

struct ProgramResult {
  int exit_code = -1;  // 128 + signal when it was killed, 124 when it did not end in time
  std::string out;     // standard output
  std::string err;     // standard error
};

struct ProgramSurroundings {
  std::vector<std::pair<std::string, std::string>> environment = {};  // besides the caller's, whose LEVIN_ are left out
  std::string input = {};                                             // standard input
  std::string interrupt_at = {};             // Ctrl-C, once, when this stands on standard output; empty: never
  bool interrupt_on_error_output = false;    // it is looked for on standard error
  int interrupt_signal = SIGINT;             // in place of Ctrl-C
  std::optional<std::string> out_file = {};  // where standard output goes instead of the result; "": it is closed
  int64_t address_space_bytes = 0;           // at most (ulimit -v); 0: as the caller's
  int timeout_s = 300;                       // then it is killed
};

ProgramResult run_levin(const std::vector<std::string>& arguments, const ProgramSurroundings& surroundings = {});

}  // namespace levin::test
