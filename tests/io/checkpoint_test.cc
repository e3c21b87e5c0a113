#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "io/safetensors.h"
#include "support/must.h"
#include "support/safetensors_bytes.h"
#include "support/temp_dir.h"

namespace levin::io {
namespace {

using test::as_bytes;
using test::must;
using test::TempDir;

constexpr const char* kIndex = "model.safetensors.index.json";

// A file of U8 tensors of one byte each, the byte being the first of the file's name.
void write_shard(const TempDir& dir, const std::string& name, const std::vector<std::string>& tensors) {
  SafetensorsWriter writer;
  for (const std::string& tensor : tensors) {
    writer.add({tensor, StoredDtype::kU8, {1}, as_bytes(name).first(1)});
  }
  must(writer.write(dir / name));
}

void write_index(const TempDir& dir, std::string_view weight_map) {
  must(write_file_atomically(dir / kIndex, "{\"metadata\": {}, \"weight_map\": " + std::string(weight_map) + "}"));
}

void write_two_shards(const TempDir& dir) {
  write_shard(dir, "1.safetensors", {"c", "a"});
  write_shard(dir, "2.safetensors", {"b"});
  write_index(dir, R"({"a": "1.safetensors", "c": "1.safetensors", "b": "2.safetensors"})");
}

TEST(Checkpoint, OpensAFolderWithOneFile) {
  const TempDir dir;
  write_shard(dir, "model.safetensors", {"b", "a"});
  for (const auto& path : {dir.path(), dir / "model.safetensors"}) {
    const Checkpoint checkpoint = must(Checkpoint::open(path));
    EXPECT_EQ(checkpoint.names(), (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(checkpoint.shard_names(), (std::vector<std::string>{"model.safetensors"}));
    EXPECT_EQ(checkpoint.total_bytes(), 2);
    EXPECT_TRUE(checkpoint.has_tensors());
    ASSERT_NE(checkpoint.find("b"), nullptr);
    EXPECT_EQ(checkpoint.find("b")->bytes[0], std::byte{'m'});
    EXPECT_EQ(checkpoint.find("c"), nullptr);
  }
}

TEST(Checkpoint, OpensShards) {
  const TempDir dir;
  write_two_shards(dir);
  const Checkpoint checkpoint = must(Checkpoint::open(dir.path()));  // moved out of a Result
  EXPECT_EQ(checkpoint.names(), (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(checkpoint.find("a")->bytes[0], std::byte{'1'});
  EXPECT_EQ(checkpoint.find("b")->bytes[0], std::byte{'2'});
  EXPECT_EQ(checkpoint.file_of(*checkpoint.find("b")), dir / "2.safetensors");
  EXPECT_EQ(checkpoint.total_bytes(), 3);
}

TEST(Checkpoint, ReadsNamesFromTheIndexAlone) {
  const TempDir dir;
  write_index(dir, R"({"b": "2.safetensors", "a": "1.safetensors"})");
  const Checkpoint checkpoint = must(Checkpoint::open(dir.path(), CheckpointMode::kNames));
  EXPECT_FALSE(checkpoint.has_tensors());
  EXPECT_EQ(checkpoint.names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(checkpoint.shard_names(), (std::vector<std::string>{"1.safetensors", "2.safetensors"}));
  EXPECT_EQ(checkpoint.find("a"), nullptr);
}

TEST(Checkpoint, OpensTheDemonstrationModel) {
  const Checkpoint checkpoint = must(Checkpoint::open(LEVIN_SOURCE_DIR "/models/demo-v32"));
  EXPECT_EQ(checkpoint.files().size(), 2u);
  EXPECT_EQ(checkpoint.total_bytes(), 24888224);  // metadata.total_size of its index
}

struct Broken {
  std::string_view name;
  std::function<void(const TempDir&)> make;
  std::string_view message;
};

class BrokenCheckpoint : public ::testing::TestWithParam<Broken> {};

TEST_P(BrokenCheckpoint, IsAnErrorThatNamesTheFault) {
  const TempDir dir;
  GetParam().make(dir);
  const Result<Checkpoint> result = Checkpoint::open(dir / "");
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().kind, ErrorKind::kModelInvalid);
  EXPECT_NE(result.error().message.find(GetParam().message), std::string::npos) << result.error().message;
}

INSTANTIATE_TEST_SUITE_P(
    Rows, BrokenCheckpoint,
    ::testing::Values(
        Broken{"NoFolder", [](const TempDir& dir) { std::filesystem::remove(dir.path()); }, "no such file or folder"},
        Broken{"EmptyFolder", [](const TempDir&) {}, "has neither model.safetensors nor model.safetensors.index.json"},
        Broken{"WeightsAreAFolder",
               [](const TempDir& dir) { std::filesystem::create_directory(dir / "model.safetensors"); },
               "model.safetensors: it is a folder"},
        Broken{"DanglingLink",
               [](const TempDir& dir) { std::filesystem::create_symlink("gone", dir / "model.safetensors"); },
               "has neither"},
        Broken{"IndexIsNoJson", [](const TempDir& dir) { must(write_file_atomically(dir / kIndex, "weights")); },
               "index.json: line 1"},
        Broken{"IndexIsAList", [](const TempDir& dir) { must(write_file_atomically(dir / kIndex, "[]")); },
               "expected an object"},
        Broken{"NoWeightMap", [](const TempDir& dir) { must(write_file_atomically(dir / kIndex, "{}")); },
               "weight_map is missing"},
        Broken{"EmptyWeightMap", [](const TempDir& dir) { write_index(dir, "{}"); }, "names no tensor"},
        Broken{"FileIsANumber", [](const TempDir& dir) { write_index(dir, R"({"a": 1})"); },
               "weight_map.a is 1 (a number), expected a string"},
        Broken{"FileElsewhere", [](const TempDir& dir) { write_index(dir, R"({"a": "../x.safetensors"})"); },
               "expected the name of a file in the same folder"},
        Broken{"FileAbsolute", [](const TempDir& dir) { write_index(dir, R"({"a": "/etc/passwd"})"); },
               "expected the name of a file in the same folder"},
        Broken{"ShardMissing",
               [](const TempDir& dir) {
                 write_two_shards(dir);
                 std::filesystem::remove(dir / "2.safetensors");
               },
               "file 2.safetensors is missing"},
        Broken{"ShardCutOff",
               [](const TempDir& dir) {
                 write_two_shards(dir);
                 const auto shard = dir / "2.safetensors";
                 std::filesystem::resize_file(shard, std::filesystem::file_size(shard) - 1);
               },
               "2.safetensors: tensor b: data_offsets [0, 1] reach beyond"},
        Broken{"TensorMissing",
               [](const TempDir& dir) {
                 write_two_shards(dir);
                 write_shard(dir, "1.safetensors", {"a"});
               },
               "1.safetensors: tensor c is missing"},
        Broken{"LastTensorMissing",
               [](const TempDir& dir) {
                 write_two_shards(dir);
                 write_index(dir, R"({"a": "1.safetensors", "c": "1.safetensors", "b": "2.safetensors",
                                      "d": "2.safetensors"})");
               },
               "2.safetensors: tensor d is missing"},
        Broken{"TensorNotInIndex",
               [](const TempDir& dir) {
                 write_two_shards(dir);
                 write_shard(dir, "2.safetensors", {"b", "e"});
               },
               "tensor e is not named in"},
        Broken{"TensorInOtherShard",
               [](const TempDir& dir) {
                 write_two_shards(dir);
                 write_index(dir, R"({"a": "2.safetensors", "c": "1.safetensors", "b": "2.safetensors"})");
               },
               "tensor a belongs to 2.safetensors"},
        Broken{"TensorInTwoShards",
               [](const TempDir& dir) {
                 write_two_shards(dir);
                 write_shard(dir, "2.safetensors", {"b", "c"});
               },
               "tensor c is in two files"},
        Broken{"TensorTwiceInIndex",
               [](const TempDir& dir) { write_index(dir, R"({"a": "1.safetensors", "a": "2.safetensors"})"); },
               "has the key \"a\" twice"}),
    [](const auto& test_info) { return std::string(test_info.param.name); });

}  // namespace
}  // namespace levin::io
