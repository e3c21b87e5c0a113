// The options that every command with a model shares (docs/cli.md), as one struct for the engine.
#pragma once

#include <memory>
#include <string>

#include "apps/levin/options.h"
#include "engine/options.h"

namespace levin::app {

enum class ModelArgument {
  kRequired,  // MODEL must be given
  kOptional,  // without MODEL: the demonstration model of the repository
};

// Adds MODEL and the engine options to a command. When the command's action runs, the returned options are complete and
// checked: the model's folder is found, the device exists, the kernel set is one this processor has, numerics and cache
// dtype go together.
std::shared_ptr<EngineOptions> add_engine_options(Command& command, ModelArgument model);

}  // namespace levin::app
