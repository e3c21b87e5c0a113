#include "apps/levin/plot.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

namespace levin::app {
namespace {

constexpr double kWidth = 720, kHeight = 420, kLeft = 70, kRight = 180, kTop = 40, kBottom = 50;
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
  double max_x = 1, max_y = 1;
  double x(double value) const { return kLeft + value / max_x * (kWidth - kLeft - kRight); }
  double y(double value) const { return kHeight - kBottom - value / max_y * (kHeight - kTop - kBottom); }
};

Scale scale_of(const Plot& plot) {
  Scale scale;
  for (const PlotLine& line : plot.lines) {
    for (const auto& [x, y] : line.points) {
      scale.max_x = std::max(scale.max_x, x);
      scale.max_y = std::max(scale.max_y, 1.05 * y);
    }
  }
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
    text(scale.x(v), kHeight - kBottom + 18, "middle", fmt::format("{:g}", v));
  }
  text(kLeft, kTop - 16, "start", plot.title + ", " + plot.y_label);
  text((kLeft + kWidth - kRight) / 2, kHeight - 12, "middle", plot.x_label);
}

}  // namespace

std::string plot_svg(const Plot& plot) {
  const Scale scale = scale_of(plot);
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
      kWidth, kHeight);
  draw_axes(plot, scale, &out);
  for (size_t i = 0; i < plot.lines.size(); ++i) {
    const char* colour = kColours[i % kColours.size()];
    std::string points;
    for (const auto& [x, y] : plot.lines[i].points) {
      fmt::format_to(std::back_inserter(points), "{:.1f},{:.1f} ", scale.x(x), scale.y(y));
      fmt::format_to(std::back_inserter(out), "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>\n", scale.x(x),
                     scale.y(y), colour);
    }
    const double y = kTop + 18.0 * static_cast<double>(i);
    fmt::format_to(std::back_inserter(out),
                   "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n"
                   "<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"{}\">{}</text>\n",
                   points, colour, kWidth - kRight + 14, y, colour, escape(plot.lines[i].name));
  }
  return out + "</svg>\n";
}

}  // namespace levin::app
