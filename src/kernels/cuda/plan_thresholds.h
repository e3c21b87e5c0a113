// Where a plan changes with the number of rows: the counts at which a test of batch invariance has to look.
#pragma once

#include <cstdint>
#include <vector>

namespace levin::cuda {

// Row counts n from 2 to most_rows, ascending, for which plan_of(n) differs from plan_of(n - 1).
template <class PlanOf>
std::vector<int64_t> plan_thresholds(int64_t most_rows, const PlanOf& plan_of) {
  std::vector<int64_t> found;
  auto before = plan_of(int64_t{1});
  for (int64_t n = 2; n <= most_rows; ++n) {
    auto plan = plan_of(n);
    if (!(plan == before)) found.push_back(n);
    before = plan;
  }
  return found;
}

}  // namespace levin::cuda
