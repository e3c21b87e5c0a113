#include <fmt/core.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "apps/levin/commands.h"
#include "apps/levin/standard_output.h"
#include "apps/levin/terminal.h"
#include "base/device_fault.h"
#include "base/recovery.h"

namespace levin::app {
namespace {

constexpr std::string_view kOutOfMemory =
    "out of memory: the system or a process limit (ulimit -v) allows no more; give a smaller --max-model-len, --chunk "
    "or --cache-tokens";

// Allocates nothing.
[[noreturn]] void end_for_lack_of_memory() {
  const auto say = [](std::string_view text) { return ::write(STDERR_FILENO, text.data(), text.size()); };
  const bool said = say("error: ") >= 0 && say(kOutOfMemory) >= 0 && say("\n") >= 0;
  ::_exit(said ? Error{.kind = ErrorKind::kOutOfMemory, .message = {}}.exit_code() : EXIT_FAILURE);
}

// Unless the thread recovers nothing is thrown: others may be in the middle of work on what an exception would take away.
[[noreturn]] void on_lack_of_memory() {
  if (Recovery::active()) throw std::bad_alloc();
  end_for_lack_of_memory();
}

[[noreturn]] void end_for_lost_device(const DeviceFault& fault) {
  std::fprintf(stderr, "error: %s\n", fault.what());
  ::_exit(Error{.kind = ErrorKind::kNoDevice, .message = {}}.exit_code());
}

[[noreturn]] void on_terminate() {
  try {
    if (std::current_exception()) throw;
  } catch (const std::bad_alloc&) {
    end_for_lack_of_memory();
  } catch (const DeviceFault& fault) {
    end_for_lost_device(fault);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "this is a bug in levin: %s\n", e.what());
  } catch (...) {
    std::fputs("this is a bug in levin\n", stderr);
  }
  std::abort();
}

Status system_failure(const std::system_error& e) {
  if (const Status output = flush_standard_output(); !output.ok()) {
    return Error{ErrorKind::kRuntime, fmt::format("cannot write standard output: {}", e.code().message())};
  }
  // What a thread's stack cannot be had for: memory, or as many threads.
  if (e.code() == std::errc::resource_unavailable_try_again) {
    return Error{ErrorKind::kOutOfMemory,
                 fmt::format("cannot start a thread: {}; give fewer --threads, or raise the limits of the process "
                             "(ulimit -v, ulimit -u)",
                             e.code().message())};
  }
  return Error{ErrorKind::kRuntime, e.what()};
}

Status run(CommandLine& line, const std::vector<std::string>& arguments) try {
  LEVIN_TRY(line.run(arguments, process_environment()));
  return flush_standard_output();
} catch (const std::bad_alloc&) {
  return Error{ErrorKind::kOutOfMemory, std::string(kOutOfMemory)};
} catch (const DeviceFault& fault) {
  return Error{ErrorKind::kNoDevice, fault.what()};
} catch (const std::system_error& e) {
  return system_failure(e);
}

void add_commands(CommandLine& line) {
  add_run(line);
  add_serve(line);
  add_load(line);
  add_tokenize(line);
  add_bench(line);
  add_eval(line);
  add_trace(line);
  add_inspect(line);
  add_export_gguf(line);
  add_doctor(line);
}

}  // namespace
}  // namespace levin::app

int main(int argc, char** argv) {
  using namespace levin;
  std::set_new_handler(app::on_lack_of_memory);
  std::set_terminate(app::on_terminate);
  app::occupy_closed_streams();
  app::use_utf8_characters();
  app::CommandLine line(LEVIN_VERSION);
  app::add_commands(line);
  const Status status = app::run(line, std::vector<std::string>(argv + 1, argv + argc));
  if (status.ok()) return 0;
  std::fprintf(stderr, "error: %s\n", status.error().message.c_str());
  return status.error().exit_code();
}
