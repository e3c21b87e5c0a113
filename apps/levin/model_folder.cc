#include "apps/levin/model_folder.h"

#include <fmt/core.h>

#include <algorithm>
#include <system_error>

#include "io/mapped_file.h"

namespace fs = std::filesystem;

namespace levin::app {
namespace {

Error model_error(std::string message) { return {ErrorKind::kModelInvalid, std::move(message)}; }

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

// ORG/NAME with the characters that the hub allows.
bool is_hub_name(const std::string& name) {
  const size_t slash = name.find('/');
  if (slash == std::string::npos || slash == 0 || slash + 1 == name.size() ||
      name.find('/', slash + 1) != std::string::npos)
    return false;
  return name.front() != '.' && std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '/' || c == '-' || c == '_' || c == '.';
         });
}

std::string trimmed(std::string text) {
  text.erase(std::find_if(text.rbegin(), text.rend(), [](unsigned char c) { return std::isspace(c) == 0; }).base(),
             text.end());
  return text;
}

// The revision is a branch or tag with a file in refs, or the name of a snapshot itself.
Result<std::string> find_snapshot(const std::string& name, const ModelSearch& search) {
  std::string folder_name = "models--" + name;
  folder_name.replace(folder_name.find('/'), 1, "--");
  const fs::path model = search.hub_cache / folder_name;
  const std::string download = fmt::format("download it with: hf download {}{}", name,
                                           search.revision == "main" ? "" : " --revision " + search.revision);
  if (!is_folder(model)) {
    return model_error(fmt::format("no model '{}': there is no such folder, and no {} in the hub cache; {}", name,
                                   model.string(), download));
  }
  std::string snapshot = search.revision;
  if (const fs::path ref = model / "refs" / search.revision; is_there(ref)) {
    LEVIN_ASSIGN(const std::string text, io::read_file(ref, {.max_bytes = 4096}));
    snapshot = trimmed(text);
  }
  const fs::path folder = model / "snapshots" / snapshot;
  if (snapshot.find('/') != std::string::npos || !is_folder(folder)) {
    return model_error(
        fmt::format("no revision '{}' of {}: {} is not there; {}", search.revision, name, folder.string(), download));
  }
  return folder.string();
}

}  // namespace

Result<std::string> find_model_folder(const std::string& name, const ModelSearch& search) {
  std::string folder = name;
  if (name.empty()) {
    if (search.demo_folder.empty()) {
      return Error{ErrorKind::kUsage,
                   "MODEL is missing, and the demonstration model (models/demo-v32) was found neither where this "
                   "program was built nor where it is"};
    }
    folder = search.demo_folder.string();
  } else if (!is_there(name)) {
    if (!is_hub_name(name)) return model_error(fmt::format("no model '{}': there is no such folder", name));
    LEVIN_ASSIGN(folder, find_snapshot(name, search));
  } else if (!is_folder(name)) {
    return model_error(
        fmt::format("'{}' is a file; MODEL is the folder with config.json and the safetensors in it", name));
  }
  if (!is_there(fs::path(folder) / "config.json")) {
    return model_error(
        fmt::format("no config.json in {}; MODEL is the folder of a Hugging Face style checkpoint", folder));
  }
  return folder;
}

fs::path find_demo_folder() {
  std::error_code ignored;
  fs::path folder = fs::read_symlink("/proc/self/exe", ignored);
  while (folder.has_relative_path()) {
    folder = folder.parent_path();
    const fs::path demo = folder / "models" / "demo-v32";
    if (is_there(demo / "config.json")) return demo;
  }
  return {};
}

}  // namespace levin::app
