#include "apps/levin/model_folder.h"

#include <gtest/gtest.h>

#include <fstream>

#include "support/must.h"
#include "support/temp_dir.h"

namespace fs = std::filesystem;

namespace levin::app {
namespace {

constexpr const char* kRevision = "0123456789abcdef";

class ModelFolderTest : public testing::Test {
 protected:
  ModelFolderTest() {
    touch(dir_ / "plain" / "config.json");
    touch(model() / "snapshots" / kRevision / "config.json");
    touch(model() / "snapshots" / "older" / "config.json");
    touch(model() / "refs" / "main", std::string(kRevision) + "\n");
  }

  fs::path model() const { return dir_.path() / "hub" / "models--org--name"; }
  ModelSearch search() const { return {.hub_cache = dir_ / "hub", .demo_folder = dir_ / "plain"}; }

  static void touch(const fs::path& path, const std::string& text = "{}") {
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }

  void expect_error(const std::string& name, const ModelSearch& where, const std::string& message) {
    const auto found = find_model_folder(name, where);
    ASSERT_FALSE(found.ok()) << *found;
    EXPECT_NE(found.error().message.find(message), std::string::npos) << found.error().message;
  }

  test::TempDir dir_;
};

TEST_F(ModelFolderTest, TakesAFolderAsItIs) {
  EXPECT_EQ(test::must(find_model_folder((dir_ / "plain").string(), search())), (dir_ / "plain").string());
}

TEST_F(ModelFolderTest, FindsTheSnapshotOfARevision) {
  EXPECT_EQ(test::must(find_model_folder("org/name", search())), (model() / "snapshots" / kRevision).string());
  ModelSearch other = search();
  other.revision = "older";
  EXPECT_EQ(test::must(find_model_folder("org/name", other)), (model() / "snapshots" / "older").string());
}

TEST_F(ModelFolderTest, WithoutANameTakesTheDemonstrationModel) {
  EXPECT_EQ(test::must(find_model_folder("", search())), (dir_ / "plain").string());
  expect_error("", {}, "MODEL is missing");
}

TEST_F(ModelFolderTest, SaysWhatWasLookedFor) {
  ModelSearch other = search();
  other.revision = "v2";
  expect_error("org/name", other, "no revision 'v2' of org/name");
  expect_error("org/name", other, "hf download org/name --revision v2");
  other.revision = "../../x";
  expect_error("org/name", other, "no revision '../../x'");
  expect_error("org/other", search(), "models--org--other in the hub cache; download it with: hf download org/other");
  expect_error("nowhere", search(), "no model 'nowhere': there is no such folder");
  expect_error("../up/there", search(), "there is no such folder");
  expect_error((dir_ / "hub").string(), search(), "no config.json in");
  expect_error((dir_ / "plain" / "config.json").string(), search(), "is a file");
}

}  // namespace
}  // namespace levin::app
