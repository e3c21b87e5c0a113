// Dummy weights stay what they are: figures measured with them are compared over years, and answers recorded with them.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "arch/load_config.h"
#include "base/digest.h"
#include "model/architecture.h"
#include "model/tensor_source.h"
#include "support/fixture.h"
#include "support/must.h"

namespace levin::test {
namespace {

struct Recorded {
  const char* fixture;
  const char* sha256;
};

// Of the names, types and bytes of all tensors and their scales, in the order of the table.
std::string digest_of(const std::string& fixture) {
  const ModelConfig config = must(load_model_config(fixture_folder(fixture).string())).config;
  const TensorSource dummies = dummy_tensors(config);
  Sha256 sum;
  const auto add = [&](const io::StoredTensor& t) { sum.add(t.name).add(io::dtype_name(t.dtype)).add(t.bytes); };
  for (const WeightRow& row : weight_table(config, nullptr, nullptr)) {
    must(dummies.read(row, [&](const io::StoredTensor& tensor, const StoredScales* scales) -> Status {
      add(tensor);
      if (scales != nullptr) add(*scales->of_blocks);
      return {};
    }));
  }
  return hex(sum.finish());
}

class DummyWeightsOf : public ::testing::TestWithParam<Recorded> {};

TEST_P(DummyWeightsOf, AreThoseRecorded) { EXPECT_EQ(digest_of(GetParam().fixture), GetParam().sha256); }

INSTANTIATE_TEST_SUITE_P(
    Fixtures, DummyWeightsOf,
    ::testing::Values(Recorded{"v32-official", "9c85d604bca0b8cfa2b859bd25cfbd713aa13673df2982156f89c86fd20d14bc"},
                      Recorded{"glm-nvfp4", "7a6d526d594b7b062a48e475559dd68989c04ea91b9bfa1dba61a9fa35b7008d"},
                      Recorded{"v4-fp4", "26c926a9bf98aa2c3e732e1e5641f20032f49384798f0399e292fb80299c00d4"},
                      Recorded{"glm-next", "0a69b8f6666441cbb8974249577105ba76fd1abc7aa04586b619947d6578d4d6"},
                      Recorded{"v41-flash", "7889478b859488dba3489c2fde6ee2b46dc2f237c24ab3ba3e5b2c1d65cb9fb5"}),
    [](const auto& recorded) {
      std::string name = recorded.param.fixture;
      std::replace(name.begin(), name.end(), '-', '_');
      return name;
    });

// A width that MXFP4 cannot hold, since two columns share a byte: experts are stored like the other matrices.
TEST(DummyWeightsTest, ExpertsOfOddWidthAreNotMxfp4) {
  ModelConfig config = must(load_model_config(fixture_folder("v4-fp4").string())).config;
  ASSERT_TRUE(config.mxfp4_experts);
  config.d_expert = 63;
  const TensorSource dummies = dummy_tensors(config);
  int n_odd = 0;
  for (const WeightRow& row : weight_table(config, nullptr, nullptr)) {
    if (row.storage != Storage::kExpertMatrix) continue;
    const bool odd = row.shape[1] == 63;
    n_odd += odd ? 1 : 0;
    must(dummies.read(row, [&](const io::StoredTensor& tensor, const StoredScales*) -> Status {
      EXPECT_EQ(tensor.dtype, odd ? io::StoredDtype::kF8_E4M3 : io::StoredDtype::kI8) << row.name;
      EXPECT_EQ(tensor.shape[1], odd ? 63 : row.shape[1] / 2) << row.name;
      return {};
    }));
  }
  EXPECT_GT(n_odd, 0);
}

}  // namespace
}  // namespace levin::test
