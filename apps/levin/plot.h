// Line plots as SVG.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace levin::app {

struct PlotLine {
  std::string name;
  std::vector<std::pair<double, double>> points;  // ascending x
};

struct Plot {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<PlotLine> lines;
};

// A whole SVG document; the y axis begins at 0.
std::string plot_svg(const Plot& plot);

}  // namespace levin::app
