#include "apps/run_levin.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "base/check.h"
#include "io/mapped_file.h"
#include "support/must.h"
#include "support/temp_dir.h"

namespace levin::test {
namespace {

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

std::vector<std::string> child_environment(const std::vector<std::pair<std::string, std::string>>& added) {
  std::vector<std::string> out;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    bool replaced = text.starts_with("LEVIN_");
    for (const auto& [name, value] : added) replaced |= text.starts_with(name + "=");
    if (!replaced) out.push_back(text);
  }
  for (const auto& [name, value] : added) out.push_back(name + "=" + value);
  return out;
}

bool holds(const std::string& file, const std::string& text) {
  return must(io::read_file(file)).find(text) != std::string::npos;
}

int wait_for(pid_t pid, const std::string& watched_file, const ProgramSurroundings& surroundings) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(surroundings.timeout_s);
  bool interrupted = surroundings.interrupt_at.empty();
  int status = 0;
  while (waitpid(pid, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > deadline) {
      kill(pid, SIGKILL);
      waitpid(pid, &status, 0);
      return 124;
    }
    if (!interrupted && holds(watched_file, surroundings.interrupt_at)) {
      kill(pid, surroundings.interrupt_signal);
      interrupted = true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace

ProgramResult run_levin(const std::vector<std::string>& arguments, const ProgramSurroundings& surroundings) {
  const TempDir dir;
  const std::string in_file = (dir / "in").string(), out_file = (dir / "out").string(),
                    err_file = (dir / "err").string();
  must(io::write_file_atomically(in_file, surroundings.input));
  std::vector<std::string> words = {LEVIN_PROGRAM};
  if (surroundings.address_space_bytes > 0) {
    const std::string limit = "ulimit -v " + std::to_string(surroundings.address_space_bytes / 1024);
    words = {"/bin/sh", "-c", limit + " && exec \"$@\"", "sh", LEVIN_PROGRAM};
  }
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<std::string> variables = child_environment(surroundings.environment);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, in_file.c_str(), O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, out_file.c_str(), O_WRONLY | O_CREAT, 0600);
  if (surroundings.out_file && surroundings.out_file->empty()) {
    posix_spawn_file_actions_addclose(&actions, 1);
  } else if (surroundings.out_file) {
    posix_spawn_file_actions_addopen(&actions, 1, surroundings.out_file->c_str(), O_WRONLY, 0);
  }
  posix_spawn_file_actions_addopen(&actions, 2, err_file.c_str(), O_WRONLY | O_CREAT, 0600);
  pid_t pid = 0;
  const int error =
      posix_spawn(&pid, words.front().c_str(), &actions, nullptr, pointers(words).data(), pointers(variables).data());
  posix_spawn_file_actions_destroy(&actions);
  LEVIN_CHECK(error == 0, "cannot start {}", LEVIN_PROGRAM);

  ProgramResult result;
  result.exit_code = wait_for(pid, surroundings.interrupt_on_error_output ? err_file : out_file, surroundings);
  result.out = must(io::read_file(out_file));
  result.err = must(io::read_file(err_file));
  return result;
}

}  // namespace levin::test
