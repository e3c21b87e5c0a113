// One function per command: declares its options on the command line and what it does.
#pragma once

#include "apps/levin/options.h"

namespace levin::app {

void add_run(CommandLine& line);
void add_serve(CommandLine& line);
void add_load(CommandLine& line);
void add_tokenize(CommandLine& line);
void add_bench(CommandLine& line);
void add_eval(CommandLine& line);
void add_trace(CommandLine& line);
void add_inspect(CommandLine& line);
void add_export_gguf(CommandLine& line);
void add_doctor(CommandLine& line);

}  // namespace levin::app
