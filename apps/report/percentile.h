#pragma once

#include <vector>

namespace levin::app {

// Linear between the two nearest; 0 of nothing. `percent` 0 to 100.
double percentile(std::vector<double> values, double percent);

}  // namespace levin::app
