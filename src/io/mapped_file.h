// Files as bytes: mapped read-only, read whole, or written atomically.
//
// Errors name the path and the system's reason. The caller says of which kind a failure to read is (a file of the model
// folder: kModelInvalid, a file named in an option: kUsage); failures to write are kRuntime.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace levin::io {

// A regular file mapped read-only. Nothing is read before it is touched; an empty file is an empty span.
// The file must not be shortened while mapped: touching a page that is gone is a fault of the process (SIGBUS).
class MappedFile {
 public:
  static Result<MappedFile> open(const std::filesystem::path& path, ErrorKind kind = ErrorKind::kModelInvalid);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  const std::filesystem::path& path() const { return path_; }
  size_t size_bytes() const { return bytes_.size(); }
  std::span<const std::byte> bytes() const { return bytes_; }  // valid as long as this object; moving it keeps them

 private:
  void unmap();

  std::filesystem::path path_;
  std::span<const std::byte> bytes_;
};

struct ReadOptions {
  size_t max_bytes = size_t{1} << 30;  // a longer file is an error
  ErrorKind kind = ErrorKind::kModelInvalid;
  bool accept_pipes = false;  // otherwise only regular files, so that a pipe in a model folder cannot block us
};

// The whole file.
Result<std::string> read_file(const std::filesystem::path& path, const ReadOptions& options = {});

// A file that appears under its name complete or not at all: written next to the target, synced, then renamed. What a killed
// process had written is gone with it, except where the file system only has files with names (`<target>.tmp-<process>-<n>`).
class AtomicFile {
 public:
  // An existing target is replaced at commit(); it must be a regular file.
  static Result<AtomicFile> create(const std::filesystem::path& path);

  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&& other) = delete;
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();  // without commit(): removes what was written

  Status write(std::span<const std::byte> bytes);
  Status write(std::string_view text);
  Status commit();

 private:
  AtomicFile() = default;
  // Tries names for the file until `take` succeeds with one; false if it failed otherwise than by EEXIST.
  bool take_temporary_name(const std::function<bool(const char*)>& take);

  std::filesystem::path path_;
  std::filesystem::path temporary_;  // empty: it has no name yet
  int fd_ = -1;
};

Status write_file_atomically(const std::filesystem::path& path, std::string_view content);

// The error that AtomicFile::create() would give, to be met before the work whose result is written. Leaves no file.
Status check_writable(const std::filesystem::path& path);

}  // namespace levin::io
