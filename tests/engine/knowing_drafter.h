// A drafter that knows the answers: its drafts are all right, all wrong, or some of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "engine/drafter.h"

namespace levin::test {

enum class Knowledge : uint8_t { kRight, kWrong, kMixed };

// texts: prompts, each followed by its answer.
class KnowingDrafter final : public TaplessDrafter {
 public:
  KnowingDrafter(std::vector<std::vector<int32_t>> texts, Knowledge knowledge)
      : texts_(std::move(texts)), knowledge_(knowledge) {}

  int max_drafts() const override { return 5; }

  void propose(DraftRound& round) override {
    for (DraftEntry& entry : round.entries) {
      const auto text = std::find_if(texts_.begin(), texts_.end(), [&](const std::vector<int32_t>& known) {
        return entry.tokens.size() <= known.size() &&
               std::equal(entry.tokens.begin(), entry.tokens.end(), known.begin());
      });
      if (text == texts_.end()) continue;
      for (size_t i = entry.tokens.size(); i < text->size() && std::ssize(entry.drafts) < entry.n_wanted; ++i) {
        const int32_t token = (*text)[i];
        entry.drafts.push_back(lies_at(i, token) ? std::abs(token - 1) : token);
      }
    }
  }

 private:
  // kMixed: two of three drafts are right, which ones depends on place and token.
  bool lies_at(size_t i, int32_t token) const {
    if (knowledge_ != Knowledge::kMixed) return knowledge_ == Knowledge::kWrong;
    return (i * 7 + static_cast<size_t>(token)) % 3 == 0;
  }

  std::vector<std::vector<int32_t>> texts_;
  Knowledge knowledge_;
};

}  // namespace levin::test
