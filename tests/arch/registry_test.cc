// The registry of families: what each must have, how one is found, and what an unknown one is told.
#include "arch/registry.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "arch/load_config.h"
#include "engine/loaded_model.h"
#include "support/must.h"
#include "text/tokenizer.h"

namespace levin::test {
namespace {

TEST(Registry, EveryFamilyHasWhatALoadNeedsUnderATypeOfItsOwn) {
  std::set<std::string_view> types, names;
  for (const Architecture* family : Registry::built_in().families()) {
    EXPECT_TRUE(types.insert(family->model_type).second) << family->model_type;
    EXPECT_TRUE(names.insert(family->name).second) << family->name;
    EXPECT_FALSE(family->releases.empty()) << family->name;
    EXPECT_FALSE(family->class_name.empty()) << family->name;
    EXPECT_TRUE(family->keys != nullptr && family->read_config != nullptr) << family->name;
    EXPECT_TRUE(family->layer_prefix != nullptr && family->weight_rows != nullptr) << family->name;
    EXPECT_TRUE(family->layer_cache != nullptr && family->make_model != nullptr) << family->name;
    EXPECT_TRUE(family->describe != nullptr && family->describe_json != nullptr) << family->name;
    EXPECT_NE(family->make_chat, nullptr) << family->name;
    const bool unknown_to_gguf = family->model_type == "glm5_next" || family->model_type == "deepseek_v41";
    EXPECT_EQ(family->gguf == nullptr, unknown_to_gguf) << family->name;
    EXPECT_TRUE(family->gguf == nullptr || !family->gguf->architectures.empty()) << family->name;
  }
}

TEST(Registry, AnUnknownModelTypeIsToldTheKnownOnes) {
  const auto refused = parse_model_config(R"({"model_type": "llama"})", "config.json");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().kind, ErrorKind::kModelInvalid);
  EXPECT_NE(refused.error().message.find("model_type is \"llama\", a model this program does not know"),
            std::string::npos)
      << refused.error().message;
  for (const Architecture* known : Registry::built_in().families()) {
    const std::string listed = fmt::format("\"{}\" ({})", known->model_type, known->releases);
    EXPECT_NE(refused.error().message.find(listed), std::string::npos) << refused.error().message;
  }
}

TEST(Registry, AFolderHasTheChatFormatOfItsFamily) {
  const auto format_of = [](const char* name) {
    const std::filesystem::path folder = demo_model_folder(name);
    const text::Tokenizer tokenizer = must(text::Tokenizer::load(folder));
    const ModelConfig config = must(load_model_config(folder)).config;
    return std::string(must(load_chat_format(*config.family, folder, tokenizer)).name());
  };
  EXPECT_EQ(format_of("demo-v32"), "DeepSeek-V3.2");
  EXPECT_EQ(format_of("demo-glm"), "GLM-5 (no chat template)");
}

TEST(RegistryDeathTest, ATypeCannotHaveTwoFamilies) {
  const Architecture& first = *Registry::built_in().families().front();
  EXPECT_DEATH(Registry::built_in().with(first), "has a family already");
}

}  // namespace
}  // namespace levin::test
