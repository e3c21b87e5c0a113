#include "io/mapped_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <thread>

#include "support/must.h"
#include "support/temp_dir.h"

namespace levin::io {
namespace {

using test::must;
using test::TempDir;

std::string text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.size_bytes()};
}

TEST(MappedFile, GivesTheBytesAndKeepsThemWhenMoved) {
  const TempDir dir;
  must(write_file_atomically(dir / "a", "lightning"));
  MappedFile first = must(MappedFile::open(dir / "a"));
  EXPECT_EQ(text_of(first), "lightning");
  const std::byte* address = first.bytes().data();
  MappedFile second = std::move(first);
  EXPECT_EQ(second.bytes().data(), address);
  EXPECT_TRUE(first.bytes().empty());  // NOLINT(bugprone-use-after-move): a moved-from file is empty
  must(write_file_atomically(dir / "b", "other"));
  second = must(MappedFile::open(dir / "b"));
  EXPECT_EQ(text_of(second), "other");
}

TEST(MappedFile, IsEmptyForAnEmptyFile) {
  const TempDir dir;
  must(write_file_atomically(dir / "empty", ""));
  EXPECT_EQ(must(MappedFile::open(dir / "empty")).size_bytes(), 0u);
}

TEST(MappedFile, RefusesWhatIsNoFile) {
  const TempDir dir;
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  const std::pair<std::filesystem::path, std::string> rows[] = {
      {dir / "absent", "No such file"}, {dir.path(), "a folder"}, {dir / "pipe", "a pipe"}, {"/dev/null", "a device"}};
  for (const auto& [path, message] : rows) {
    const Result<MappedFile> mapped = MappedFile::open(path, ErrorKind::kUsage);
    const Result<std::string> read = read_file(path, {.kind = ErrorKind::kUsage});
    ASSERT_FALSE(mapped.ok()) << path;
    ASSERT_FALSE(read.ok()) << path;
    for (const Error& error : {mapped.error(), read.error()}) {
      EXPECT_EQ(error.kind, ErrorKind::kUsage);
      EXPECT_NE(error.message.find(path.string()), std::string::npos) << error.message;
      EXPECT_NE(error.message.find(message), std::string::npos) << error.message;
    }
  }
}

TEST(ReadFile, HasALimit) {
  const TempDir dir;
  must(write_file_atomically(dir / "a", "12345"));
  EXPECT_EQ(must(read_file(dir / "a", {.max_bytes = 5})), "12345");
  EXPECT_EQ(must(read_file(dir / "a", {.max_bytes = SIZE_MAX})), "12345");
  const Result<std::string> too_long = read_file(dir / "a", {.max_bytes = 4});
  ASSERT_FALSE(too_long.ok());
  EXPECT_NE(too_long.error().message.find("more than 4 bytes"), std::string::npos) << too_long.error().message;
}

TEST(ReadFile, ReadsPipesWhenAsked) {
  const TempDir dir;
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  const std::string sent(200000, 'x');
  std::thread writer([&] {
    FILE* pipe = std::fopen((dir / "pipe").c_str(), "w");
    ASSERT_EQ(std::fwrite(sent.data(), 1, sent.size(), pipe), sent.size());
    std::fclose(pipe);
  });
  const Result<std::string> received = read_file(dir / "pipe", {.accept_pipes = true});
  writer.join();
  EXPECT_EQ(must(received), sent);
}

TEST(AtomicFile, AppearsOnlyWhenCommitted) {
  const TempDir dir;
  must(write_file_atomically(dir / "a", "old"));
  {
    AtomicFile file = must(AtomicFile::create(dir / "a"));
    must(file.write("new"));
    EXPECT_EQ(must(read_file(dir / "a")), "old");
  }
  EXPECT_EQ(must(read_file(dir / "a")), "old");
  AtomicFile file = must(AtomicFile::create(dir / "a"));
  must(file.write("new "));
  must(file.write("text"));
  must(file.commit());
  EXPECT_EQ(must(read_file(dir / "a")), "new text");
  int n_files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(dir.path())) ++n_files;
  EXPECT_EQ(n_files, 1) << "temporary files were left";
}

TEST(AtomicFile, LeavesNothingBehindWhenItsProcessIsKilled) {
  const TempDir dir;
  if (const int unnamed = ::open(dir.path().c_str(), O_WRONLY | O_TMPFILE, 0600); unnamed >= 0) {
    ::close(unnamed);
  } else {
    GTEST_SKIP() << "no files without a name here: " << std::strerror(errno);
  }
  const pid_t child = ::fork();
  if (child == 0) {
    AtomicFile file = must(AtomicFile::create(dir / "a"));
    ::_exit(file.write("half").ok() ? 0 : 1);  // without the destructor, as where a signal ends it
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(AtomicFile, NamesThePathThatCannotBeWritten) {
  const TempDir dir;
  const std::pair<std::filesystem::path, std::string> rows[] = {
      {dir / "absent/file", "No such file"}, {dir.path(), "a folder"}, {"/dev/null", "a device"}};
  for (const auto& [path, message] : rows) {
    const Status status = write_file_atomically(path, "x");
    ASSERT_FALSE(status.ok()) << path;
    EXPECT_EQ(status.error().kind, ErrorKind::kRuntime);
    EXPECT_NE(status.error().message.find(path.string()), std::string::npos) << status.error().message;
    EXPECT_NE(status.error().message.find(message), std::string::npos) << status.error().message;
  }
}

}  // namespace
}  // namespace levin::io
