// A fresh folder that is gone, with all in it, at the end of the scope.
#pragma once

#include <filesystem>
#include <string_view>

namespace levin::test {

class TempDir {
 public:
  TempDir();
  TempDir(TempDir&& other) noexcept;
  TempDir& operator=(TempDir&& other) = delete;
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir();

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

 private:
  std::filesystem::path path_;  // empty: moved from
};

}  // namespace levin::test
