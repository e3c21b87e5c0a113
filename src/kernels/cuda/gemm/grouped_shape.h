// The weights of a grouped product, one matrix a group, by their sizes.
#pragma once

namespace levin::cuda {

constexpr int kMaxGroups = 512;

struct GroupedShape {
  int n = 0;  // outputs
  int k = 0;  // inputs
  int n_groups = 1;
};

}  // namespace levin::cuda
