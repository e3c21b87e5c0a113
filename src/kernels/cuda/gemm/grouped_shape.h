// The weights of a grouped product, one matrix a group, by their sizes, and how many rows its groups have.
#pragma once

#include <cmath>

namespace levin::cuda {

constexpr int kMaxGroups = 512;

struct GroupedShape {
  int n = 0;  // outputs
  int k = 0;  // inputs
  int n_groups = 1;
};

// Tokens choose their experts by chance, as it were: groups of `mean` rows on average have more and fewer. The rows of a group
// whose number is so many standard deviations of a Poisson distribution above the mean; of all groups, 16% have more than one
// deviation, and 2% more than two.
inline double rows_by_chance(double mean, double deviations) { return mean + deviations * std::sqrt(mean); }

}  // namespace levin::cuda
