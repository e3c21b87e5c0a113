#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <string>

#include "io/safetensors.h"
#include "support/json_gen.h"
#include "support/must.h"
#include "support/safetensors_bytes.h"
#include "support/temp_dir.h"

namespace levin::io {
namespace {

using test::as_bytes;
using test::must;
using test::TempDir;

TEST(SafetensorsWriter, WritesTheFormat) {
  const TempDir dir;
  SafetensorsWriter writer;
  writer.set_metadata("format", "pt");
  writer.add({"w", StoredDtype::kBF16, {1, 2}, as_bytes("abcd")});
  writer.add({"a", StoredDtype::kU8, {}, as_bytes("e")});
  must(writer.write(dir / "x.safetensors"));
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"w":{"dtype":"BF16","shape":[1,2],"data_offsets":[0,4]},)"
      R"("a":{"dtype":"U8","shape":[],"data_offsets":[4,5]}})";
  const size_t n_padded = (header.size() + 7) / 8 * 8;
  EXPECT_EQ(must(read_file(dir / "x.safetensors")), static_cast<char>(n_padded) + std::string(7, '\0') + header +
                                                        std::string(n_padded - header.size(), ' ') + "abcde");
}

TEST(SafetensorsWriter, NamesAPathThatCannotBeWritten) {
  const TempDir dir;
  const Status status = SafetensorsWriter().write(dir / "absent/x.safetensors");
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("absent/x.safetensors"), std::string::npos) << status.error().message;
}

TEST(SafetensorsWriterDeathTest, StopsOnWrongSizesAndDoubleNames) {
  SafetensorsWriter writer;
  EXPECT_DEATH(writer.add({"w", StoredDtype::kF32, {1}, as_bytes("abc")}), "tensor w: 3 bytes for F32 \\[1\\]");
  writer.add({"w", StoredDtype::kU8, {1}, as_bytes("a")});
  EXPECT_DEATH(writer.add({"w", StoredDtype::kU8, {1}, as_bytes("a")}), "added twice");
}

struct Drawn {
  std::string name;
  StoredDtype dtype = StoredDtype::kU8;
  std::vector<int64_t> shape;
  std::string bytes;
};

Drawn draw_tensor() {
  Drawn t;
  t.name = *test::arbitrary_text();
  t.dtype = static_cast<StoredDtype>(*rc::gen::inRange(0, 13));
  const int rank = *rc::gen::inRange(0, 4);
  for (int i = 0; i < rank; ++i) t.shape.push_back(*rc::gen::inRange<int64_t>(0, 5));
  t.bytes = *rc::gen::container<std::string>(static_cast<size_t>(*tensor_bytes(t.dtype, t.shape)),
                                             rc::gen::arbitrary<char>());
  return t;
}

RC_GTEST_PROP(SafetensorsWriter, IsReadBackTheSame, ()) {
  std::vector<Drawn> drawn;
  for (int i = *rc::gen::inRange(0, 8); i > 0; --i) {
    Drawn t = draw_tensor();
    const auto same_name = [&](const Drawn& other) { return other.name == t.name; };
    if (t.name != "__metadata__" && std::none_of(drawn.begin(), drawn.end(), same_name)) drawn.push_back(std::move(t));
  }
  const TempDir dir;
  SafetensorsWriter writer;
  for (const Drawn& t : drawn) writer.add({t.name, t.dtype, t.shape, as_bytes(t.bytes)});
  must(writer.write(dir / "x.safetensors"));

  const Checkpoint checkpoint = must(Checkpoint::open(dir / "x.safetensors"));
  RC_ASSERT(checkpoint.tensors().size() == drawn.size());
  for (const Drawn& t : drawn) {
    const StoredTensor* stored = checkpoint.find(t.name);
    RC_ASSERT(stored != nullptr);
    RC_ASSERT(stored->dtype == t.dtype);
    RC_ASSERT(stored->shape == t.shape);
    RC_ASSERT(std::ranges::equal(stored->bytes, as_bytes(t.bytes)));
  }
}

}  // namespace
}  // namespace levin::io
