#include "support/fixture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "io/json.h"
#include "io/mapped_file.h"
#include "support/must.h"
#include "support/temp_checkpoint.h"
#include "support/temp_dir.h"

namespace levin::test {
namespace {

std::vector<std::string> fixture_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(fixture_folder(""))) {
    const bool is_fixture = std::filesystem::exists(entry.path() / "weights.json");
    if (is_fixture) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

TEST(Fixture, IsDrawnWithItsChecksumAndReadBack) {
  ASSERT_GE(fixture_names().size(), 3u);
  for (const std::string& name : fixture_names()) {
    const TempDir dir;
    must(materialise(fixture_folder(name), dir / "model"));
    const io::Checkpoint checkpoint = must(io::Checkpoint::open(dir / "model"));
    std::vector<DrawnTensor> stored;
    for (const io::StoredTensor& t : checkpoint.tensors()) {
      stored.push_back({t.name, t.dtype, t.shape, {t.bytes.begin(), t.bytes.end()}});
    }
    const std::string text = must(io::read_file(fixture_folder(name) / "weights.json"));
    EXPECT_NE(text.find(sha256_hex(stored)), std::string::npos) << name;
    EXPECT_EQ(must(io::read_file(dir / "model/config.json")),
              must(io::read_file(fixture_folder(name) / "config.json")));
  }
}

TEST(Fixture, NoticesAChangedRecipe) {
  const TempDir dir;
  std::string text = must(io::read_file(fixture_folder("v32-odd") / "weights.json"));
  text.replace(text.find("\"exp\":-7"), 8, "\"exp\":-6");
  must(io::write_file_atomically(dir / "weights.json", text));
  const Result<std::vector<DrawnTensor>> tensors = draw_tensors(dir / "weights.json");
  ASSERT_FALSE(tensors.ok());
  EXPECT_NE(tensors.error().message.find("SHA-256"), std::string::npos) << tensors.error().message;
}

TEST(TempCheckpoint, WritesWhatWasChanged) {
  TempCheckpoint model = TempCheckpoint::from_fixture("v32-odd");
  const std::vector<std::string> names = model.tensor_names();
  model.remove_tensor(names[0]);
  model.set_shape(names[1], {3});
  model.set_dtype(names[1], io::StoredDtype::kI64);
  model.rename_tensor(names[2], "zzz");
  model.set_config("a.b", 7);
  model.erase_config("hidden_size");
  for (const int n_shards : {1, 3}) {
    const io::Checkpoint checkpoint = must(io::Checkpoint::open(model.write(n_shards)));
    EXPECT_EQ(checkpoint.files().size(), static_cast<size_t>(n_shards));
    EXPECT_EQ(checkpoint.tensors().size(), names.size() - 1);
    EXPECT_EQ(checkpoint.find(names[0]), nullptr);
    EXPECT_EQ(checkpoint.find(names[1])->dtype, io::StoredDtype::kI64);
    EXPECT_EQ(checkpoint.find(names[1])->shape, (std::vector<int64_t>{3}));
    EXPECT_EQ(checkpoint.find(names[2]), nullptr);
    EXPECT_NE(checkpoint.find("zzz"), nullptr);
  }
  const std::string config = must(io::read_file(model.path() / "config.json"));
  EXPECT_NE(config.find(R"("a": {"b": 7})"), std::string::npos);
  EXPECT_EQ(config.find("\"hidden_size\""), std::string::npos);

  model.write();
  model.truncate_file("model.safetensors", 100);
  EXPECT_FALSE(io::Checkpoint::open(model.path()).ok());
}

TEST(TempCheckpoint, TakesAFolderWithItsOtherFiles) {
  TempCheckpoint model = TempCheckpoint::from_folder(LEVIN_SOURCE_DIR "/models/demo-v32");
  const std::filesystem::path folder = model.write(2);
  EXPECT_TRUE(std::filesystem::exists(folder / "tokenizer.json"));
  EXPECT_TRUE(io::Checkpoint::open(folder).ok());
  model.remove_file("tokenizer.json");
  EXPECT_FALSE(std::filesystem::exists(folder / "tokenizer.json"));
}

}  // namespace
}  // namespace levin::test
