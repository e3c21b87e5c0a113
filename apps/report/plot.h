// Line plots as SVG.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

namespace levin::app {

struct PlotLine {
  std::string name;
  std::vector<std::pair<double, double>> points;  // ascending x
  std::vector<std::pair<double, double>> ranges;  // of each point, lowest and highest y; empty: not drawn
};

struct Plot {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<PlotLine> lines;
};

// Plots below one another, each with scales of its own: what differs by orders of magnitude goes into two of them.
struct Figure {
  std::string title;
  std::string subtitle;  // what was measured, where and when
  std::vector<Plot> plots;
};

// A whole SVG document; y axes begin at 0.
std::string figure_svg(const Figure& figure);

std::string today();  // "2026-11-23", UTC

}  // namespace levin::app
