#include "support/temp_dir.h"

#include <cstdlib>
#include <string>
#include <system_error>
#include <utility>

#include "base/check.h"

namespace levin::test {

TempDir::TempDir() {
  std::string name = (std::filesystem::temp_directory_path() / "levin-test-XXXXXX").string();
  LEVIN_CHECK(::mkdtemp(name.data()) != nullptr, "cannot make a temporary folder like {}", name);
  path_ = name;
}

TempDir::TempDir(TempDir&& other) noexcept : path_(std::exchange(other.path_, {})) {}

TempDir::~TempDir() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

}  // namespace levin::test
