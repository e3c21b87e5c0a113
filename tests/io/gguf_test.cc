#include "io/gguf.h"

#include <gtest/gtest.h>

#include "support/must.h"
#include "support/temp_dir.h"

namespace levin::io {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

GgufTensor tensor(std::string name, GgufType type, std::vector<int64_t> shape, std::string bytes) {
  return {.name = std::move(name),
          .type = type,
          .shape = std::move(shape),
          .write = [bytes](const GgufSink& sink) -> Status {
            const size_t half = bytes.size() / 2;  // in two pieces
            LEVIN_TRY(sink(bytes_of(bytes).first(half)));
            return sink(bytes_of(bytes).subspan(half));
          }};
}

std::string u32(uint32_t x) {
  std::string out;
  for (int i = 0; i < 4; ++i) out += static_cast<char>(x >> (8 * i));
  return out;
}
std::string u64(uint64_t x) { return u32(static_cast<uint32_t>(x)) + u32(static_cast<uint32_t>(x >> 32)); }
std::string text(const std::string& s) { return u64(s.size()) + s; }

// Written out by hand from the description of the format.
TEST(GgufTest, WritesKeysInfosAndAlignedData) {
  GgufWriter writer;
  writer.set("a", uint32_t{7});
  writer.set("b", 1.5f);
  writer.set("c", true);
  writer.set("d", std::string("xy"));
  writer.set("e", std::vector<int32_t>{-1, 2});
  writer.set("f", std::vector<std::string>{"u", ""});
  const std::string data(2 * 3 * 2, 'p'), ids(4, 'q');
  writer.add(tensor("m", GgufType::kBF16, {2, 3}, data));
  writer.add(tensor("v", GgufType::kI32, {1}, ids));
  const test::TempDir folder;
  const std::filesystem::path path = folder.path() / "x.gguf";
  std::vector<int64_t> told;
  test::must(writer.write(path, [&](int64_t done, int64_t total) {
    told.push_back(done);
    EXPECT_EQ(total, 64);
  }));
  EXPECT_EQ(told, (std::vector<int64_t>{32, 64}));

  std::string expected = "GGUF" + u32(3) + u64(2) + u64(6);
  expected += text("a") + u32(4) + u32(7);
  expected += text("b") + u32(6) + u32(0x3FC00000);
  expected += text("c") + u32(7) + '\1';
  expected += text("d") + u32(8) + text("xy");
  expected += text("e") + u32(9) + u32(5) + u64(2) + u32(0xFFFFFFFF) + u32(2);
  expected += text("f") + u32(9) + u32(8) + u64(2) + text("u") + text("");
  expected += text("m") + u32(2) + u64(3) + u64(2) + u32(30) + u64(0);  // dimensions fastest first
  expected += text("v") + u32(1) + u64(1) + u32(26) + u64(32);
  expected.resize((expected.size() + 31) / 32 * 32, '\0');
  expected += data + std::string(32 - data.size(), '\0') + ids + std::string(32 - ids.size(), '\0');
  EXPECT_EQ(test::must(read_file(path)), expected);
}

TEST(GgufTest, CountsBytesOfEveryType) {
  const std::vector<int64_t> shape = {3, 64};
  EXPECT_EQ(gguf_bytes(GgufType::kF32, shape), 3 * 64 * 4);
  EXPECT_EQ(gguf_bytes(GgufType::kI32, shape), 3 * 64 * 4);
  EXPECT_EQ(gguf_bytes(GgufType::kF16, shape), 3 * 64 * 2);
  EXPECT_EQ(gguf_bytes(GgufType::kBF16, shape), 3 * 64 * 2);
  EXPECT_EQ(gguf_bytes(GgufType::kMxfp4, shape), 3 * 2 * 17);
}

TEST(GgufTest, AFailureLeavesNoFile) {
  GgufWriter writer;
  writer.add({.name = "m", .type = GgufType::kF32, .shape = {1}, .write = [](const GgufSink&) -> Status {
                return Error{ErrorKind::kModelInvalid, "no such tensor"};
              }});
  const test::TempDir folder;
  const std::filesystem::path path = folder.path() / "x.gguf";
  EXPECT_EQ(writer.write(path).error().message, "no such tensor");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace levin::io
