#include <fmt/core.h>

#include <cstdio>
#include <string>
#include <vector>

#include "apps/levin/commands.h"

int main(int argc, char** argv) {
  using namespace levin;
  app::CommandLine line(LEVIN_VERSION);
  app::add_run(line);
  app::add_serve(line);
  app::add_load(line);
  app::add_tokenize(line);
  app::add_bench(line);
  app::add_eval(line);
  app::add_trace(line);
  app::add_inspect(line);
  app::add_export_gguf(line);
  app::add_doctor(line);

  const Status status = line.run(std::vector<std::string>(argv + 1, argv + argc), app::process_environment());
  if (status.ok()) return 0;
  fmt::print(stderr, "error: {}\n", status.error().message);
  return status.error().exit_code();
}
