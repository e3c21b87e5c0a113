#include "base/closest.h"

#include <algorithm>
#include <cstddef>

namespace levin {

std::optional<std::string> closest(std::string_view word, const std::vector<std::string>& known) {
  const auto distance = [&](std::string_view other) {  // insertions, deletions, replacements, swaps of neighbours
    std::vector<std::vector<size_t>> d(word.size() + 1, std::vector<size_t>(other.size() + 1));
    for (size_t i = 0; i <= word.size(); ++i) {
      for (size_t j = 0; j <= other.size(); ++j) {
        if (i == 0 || j == 0) {
          d[i][j] = i + j;
          continue;
        }
        d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (word[i - 1] == other[j - 1] ? 0 : 1)});
        const bool swapped = i > 1 && j > 1 && word[i - 1] == other[j - 2] && word[i - 2] == other[j - 1];
        if (swapped) d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
    return d[word.size()][other.size()];
  };
  if (word.size() > 64) return std::nullopt;
  std::optional<std::string> best;
  size_t best_distance = std::string_view::npos;
  for (const std::string& name : known) {
    const size_t d = distance(name), allowed = std::max<size_t>(1, std::max(word.size(), name.size()) / 3);
    if (d <= allowed && d < best_distance) {
      best = name;
      best_distance = d;
    }
  }
  return best;
}

}  // namespace levin
