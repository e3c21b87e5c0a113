#include "ops/expand_topk.h"

#include "ops/support.h"

namespace levin::testing {
namespace {

using Row = std::vector<int32_t>;

struct Expansion {
  const char* what;
  Row entries;
  int32_t end, visible;
  int64_t ratio;
  int32_t first_token;
  Row topk;
};

const Expansion kExpansions[] = {
    {"entries and the tokens after the last", {0, 2}, 3, 14, 4, 0, {0, 1, 2, 3, 8, 9, 10, 11, 12, 13, -1}},
    {"the newest entry has just become complete", {2, -1}, 3, 12, 4, 0, {8, 9, 10, 11, -1, -1, -1, -1, -1, -1, -1}},
    {"no entry is complete", {-1, -1}, 0, 3, 4, 0, {0, 1, 2, -1, -1, -1, -1, -1, -1, -1, -1}},
    {"entries of one token", {1, 4}, 5, 5, 1, 0, {1, 4}},
    {"the MTP layer's: entry 1 stands for slots 1 to 4", {1, 2}, 3, 11, 4, -3, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, -1}},
    {"a row of padding sees nothing", {-1, -1}, 0, 0, 4, 0, {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1}},
    {"nor does one of the MTP layer", {-1, -1}, 1, 1, 4, -3, {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1}},
    {"the MTP layer's has no tokens before slot 1", {-1, -1}, 1, 4, 4, -3, {1, 2, 3, -1, -1, -1, -1, -1, -1, -1, -1}},
};

TEST(ExpandPicksTest, AreTheTokensOfTheEntriesAndOfTheIncompleteOne) {
  for (const Expansion& e : kExpansions) {
    for (TestDevice* device : backends_under_test()) {
      const auto width = static_cast<int64_t>(e.topk.size());
      const Tensor entries = Tensor::of(e.entries, {1, std::ssize(e.entries)}), end = Tensor::of(Row{e.end}, {1}),
                   visible = Tensor::of(Row{e.visible}, {1});
      const Tensor topk = Tensor::of(Row(static_cast<size_t>(width), 99), {1, width});
      Args args(*device);
      ops::expand_topk(device->ctx(), {.entries = args.in(entries),
                                       .end = args.in(end),
                                       .visible = args.in(visible),
                                       .ratio = e.ratio,
                                       .first_token = e.first_token,
                                       .topk = args.out(topk)});
      args.fetch();
      EXPECT_EQ(Row(topk.view().data<int32_t>(), topk.view().data<int32_t>() + width), e.topk)
          << device->name() << ": " << e.what;
    }
  }
}

TEST(ExpandPicksDeathTest, AnIncompleteEntryHasFewerTokensThanACompleteOne) {
  const Tensor entries = Tensor::of(Row{-1}, {1, 1}), end = Tensor::of(Row{1}, {1}), visible = Tensor::of(Row{8}, {1});
  const Tensor topk = Tensor::of(Row(7, 0), {1, 7});
  EXPECT_DEATH(ops::expand_topk(plain_device().ctx(),
                                {.entries = entries, .end = end, .visible = visible, .ratio = 4, .topk = topk}),
               "expand_topk: row 0 sees 8 tokens, its entries 4");
}

}  // namespace
}  // namespace levin::testing
