#include "apps/report/plot.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <iterator>

namespace levin::app {
namespace {

constexpr double kWidth = 820, kLeft = 70, kRight = 200;
constexpr double kHead = 56, kHeight = 380, kTop = 40, kBottom = 50;  // of the figure's head; of each plot
constexpr std::array<const char*, 6> kColours = {"#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b"};

std::string escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '&')
      out += "&amp;";
    else
      out += c;
  }
  return out;
}

// The next of 1, 2, 5 times a power of ten that cuts `range` into at most six steps.
double tick_step(double range) {
  const double power = std::pow(10, std::floor(std::log10(std::max(range, 1e-9) / 6)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (range <= 6 * factor * power) return factor * power;
  }
  return 10 * power;
}

struct Scale {
  double max_x = 0, max_y = 0;
  double top = 0;  // of the plot in the figure
  double x(double value) const { return kLeft + value / max_x * (kWidth - kLeft - kRight); }
  double y(double value) const { return top + kHeight - kBottom - value / max_y * (kHeight - kTop - kBottom); }
};

Scale scale_of(const Plot& plot, double top) {
  Scale scale{.top = top};
  for (const PlotLine& line : plot.lines) {
    for (const auto& [x, y] : line.points) {
      scale.max_x = std::max(scale.max_x, x);
      scale.max_y = std::max(scale.max_y, 1.05 * y);
    }
    for (const auto& [low, high] : line.ranges) scale.max_y = std::max(scale.max_y, 1.05 * high);
  }
  if (scale.max_x <= 0) scale.max_x = 1;
  if (scale.max_y <= 0) scale.max_y = 1;
  return scale;
}

void draw_axes(const Plot& plot, const Scale& scale, std::string* out) {
  const auto text = [&](double x, double y, const char* anchor, const std::string& what) {
    fmt::format_to(std::back_inserter(*out), "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y,
                   anchor, escape(what));
  };
  for (double v = 0; v <= scale.max_y; v += tick_step(scale.max_y)) {
    fmt::format_to(std::back_inserter(*out),
                   "<line x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#ddd\"/>\n", kLeft,
                   kWidth - kRight, scale.y(v), scale.y(v));
    text(kLeft - 8, scale.y(v) + 4, "end", fmt::format("{:g}", v));
  }
  for (double v = 0; v <= scale.max_x; v += tick_step(scale.max_x)) {
    text(scale.x(v), scale.top + kHeight - kBottom + 18, "middle", fmt::format("{:g}", v));
  }
  text(kLeft, scale.top + kTop - 16, "start", plot.title + ", " + plot.y_label);
  text((kLeft + kWidth - kRight) / 2, scale.top + kHeight - 12, "middle", plot.x_label);
}

void draw_line(const PlotLine& line, const Scale& scale, size_t place, std::string* out) {
  const char* colour = kColours[place % kColours.size()];
  const auto to = std::back_inserter(*out);
  std::string points;
  for (size_t i = 0; i < line.points.size(); ++i) {
    const double x = scale.x(line.points[i].first), y = scale.y(line.points[i].second);
    fmt::format_to(std::back_inserter(points), "{:.1f},{:.1f} ", x, y);
    fmt::format_to(to, "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>\n", x, y, colour);
    if (i >= line.ranges.size()) continue;
    fmt::format_to(to, "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\" stroke=\"{3}\"/>\n", x,
                   scale.y(line.ranges[i].first), scale.y(line.ranges[i].second), colour);
  }
  fmt::format_to(to,
                 "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n"
                 "<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"{}\">{}</text>\n",
                 points, colour, kWidth - kRight + 14, scale.top + kTop + 18.0 * static_cast<double>(place), colour,
                 escape(line.name));
}

}  // namespace

std::string figure_svg(const Figure& figure) {
  const double height = kHead + kHeight * static_cast<double>(figure.plots.size());
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
      "<text x=\"{2}\" y=\"26\" font-size=\"16\" font-weight=\"bold\">{3}</text>\n"
      "<text x=\"{2}\" y=\"46\" fill=\"#555\">{4}</text>\n",
      kWidth, height, kLeft, escape(figure.title), escape(figure.subtitle));
  for (size_t p = 0; p < figure.plots.size(); ++p) {
    const Plot& plot = figure.plots[p];
    const Scale scale = scale_of(plot, kHead + kHeight * static_cast<double>(p));
    draw_axes(plot, scale, &out);
    for (size_t i = 0; i < plot.lines.size(); ++i) draw_line(plot.lines[i], scale, i, &out);
  }
  return out + "</svg>\n";
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  tm parts{};
  ::gmtime_r(&now, &parts);
  return fmt::format("{:04}-{:02}-{:02}", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday);
}

}  // namespace levin::app
