#include "engine/recall_test.h"

namespace levin::test {
namespace {

constexpr int kDocuments = 4;

INSTANTIATE_TEST_SUITE_P(Demo, RecallTest,
                         ::testing::Values(RecallCase{"demo-v32", kDocuments}, RecallCase{"demo-glm", kDocuments}),
                         [](const auto& c) { return test_name(c.param.model); });
INSTANTIATE_TEST_SUITE_P(Demo, RecallOfV32Test, ::testing::Values(kDocuments),
                         [](const auto& n) { return "documents_" + std::to_string(n.param); });

}  // namespace
}  // namespace levin::test
