// Which folder a MODEL argument means.
#pragma once

#include <filesystem>
#include <string>

#include "base/result.h"

namespace levin::app {

// Where models may be; filled from the environment by the option parser.
struct ModelSearch {
  std::filesystem::path hub_cache;  // of the Hugging Face hub: models--ORG--NAME/snapshots/REVISION
  std::string revision = "main";
  std::filesystem::path demo_folder;  // the demonstration model; empty when it was not found
};

// `name` is a folder, or ORG/NAME in the hub cache; empty means the demonstration model. The folder found has a
// config.json.
Result<std::string> find_model_folder(const std::string& name, const ModelSearch& search);

// models/demo-v32 of the source tree that this program was built in or stands in; empty when there is none.
std::filesystem::path find_demo_folder();

}  // namespace levin::app
